"""Shadow generators of a run: trained again with and without its most exposed records, kept, and continued.

The attacker knows all private images but the records in question, and retrains by the run's own config. Each shadow is
trained on exactly N images: the private ones that are not in question, and a random half of those that are (members and
as many holdout images). Its seed is another than the run's, and its noise the operating system's, so that it shares no
random bit with the target. What a shadow shows of the records is all that is kept of it, in ``shadows/`` of the run:
one file each, durable when the shadow is trained, so that an interrupted call goes on with the next one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor

from idpgan import trainer
from idpgan.attacks.knowledge import draw, joined
from idpgan.attacks.shadows import Density, Shadows, halves, vulnerable
from idpgan.commands.attacked_run import Target
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.files import PRIVATE_FOLDER, parse_json, read_plain, write_private_json
from idpgan.models.generator import Generator
from idpgan.progress import renamed

FOLDER, FORMAT = "shadows", "idpgan shadow 1"
_MOST_RECORDS = 250  # chosen on each side: each of them must be in shadows and out of others
_SEED = 7_000_003  # added to the run's training seed, further than anybody counts seeds
_MOST_BYTES = 1 << 24


def train_shadows(
    target: Target, members: Images, others: Images, reference: Images, shadows: int, samples: int
) -> Shadows:
    """Choose the records, train the shadows that are not there yet, and return what all of them show.

    Args:
        target: The run, which keeps them in ``shadows/``.
        members: Of the attack: the first private images.
        others: As many non-members.
        reference: Images that are neither.
        shadows: Even, at least 4.
        samples: Images that are drawn of each.

    Raises:
        InputError: If there is no reference to choose the records by, or the training was interrupted: what is trained
            is kept.
    """
    if len(reference) < 3:
        raise InputError(
            f"--shadows needs reference images to choose the most exposed records by, and {len(reference)} are "
            "left of the holdout and the test part. Give the data set a larger holdout_share or test part."
        )
    count = min(_MOST_RECORDS, len(members))
    places = [vulnerable(side.images, reference.images, count) for side in (members, others)]
    members, others = members.select(places[0]), others.select(places[1])
    records, density = joined(members, others), Density.of(reference.images)
    run, config, split, progress = target.run, target.config, target.split.existing(), target.progress
    included = halves(shadows, len(records), config.training.seed + _SEED)
    background = torch.ones(len(split.private), dtype=torch.bool)
    background[places[0]] = False  # members are the first private images
    rest = split.private.select(background)
    observed = []
    for number, kept in enumerate(included):
        private = _together(rest, records.select(kept))
        training = config.training.model_copy(update={"seed": config.training.seed + _SEED + number})
        shadow = config.model_copy(update={"training": training})
        facts = {"config": shadow.identity(), "images": private.digest(), "records": records.digest()}
        key = hashlib.sha256(json.dumps([facts, samples], sort_keys=True).encode()).hexdigest()
        path, what = run.path / FOLDER / f"{number:04}.json", f"shadow {number + 1} of {shadows}"
        densities = _kept(path, key, len(records))
        if densities is None:
            trained = trainer.train_on(shadow, dataclasses.replace(split, private=private), renamed(progress, what))
            generator: Generator = trained.artifact(shadow.release).generator  # with its teacher, if it has one
            drawn = draw(generator.eval().to(target.device), samples, training.seed, progress, what)
            densities = density(records.images.to(target.device), drawn.images)
            path.parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            content = {"format": FORMAT, "curator_only": True, "key": key, "observed": densities.tolist()}
            write_private_json(path, content)
        observed.append(densities)
    return Shadows(members, others, included, torch.stack(observed), density)


def _together(rest: Images, chosen: Images) -> Images:
    """Return both as one private part, in an order that does not tell which images are in question."""
    both = joined(rest, chosen)
    people = [part.identities for part in (rest, chosen)]
    if people[0] is not None and people[1] is not None:
        both = dataclasses.replace(both, identities=torch.cat([people[0], people[1]]))
    return both.select(torch.randperm(len(both), generator=torch.Generator().manual_seed(len(both))))


def _kept(path: Path, key: str, records: int) -> Tensor | None:
    """Return what a shadow showed of the records; None if it is not there, or was trained otherwise."""
    if not path.is_file():
        return None
    content = parse_json(read_plain(path, _MOST_BYTES))
    if not isinstance(content, dict) or content.get("key") != key or len(content.get("observed", ())) != records:
        return None
    return torch.tensor(content["observed"], dtype=torch.float64)
