"""The reference generator of ``idpgan attack``: it tells which images are ordinary, so that scores can be calibrated.

It must know neither members nor non-members. It is another run's, or it is trained on the test part and the rest of the
holdout, at most as many images as are private, by the attacked run's own config with another seed; so the holdout need
not be halved.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import cast

import torch

from idpgan.attacks.attack import Membership
from idpgan.data.images import Images
from idpgan.data.load import Split, load
from idpgan.errors import InputError
from idpgan.jobs.train import load_config, train_on
from idpgan.models.checkpoint import CONFIG, load_generator, save_generator
from idpgan.models.generator import Generator
from idpgan.progress import Progress, silent
from idpgan.run import RunFolder
from idpgan.training.config import RunConfig

FOLDER = "reference"  # of the attacked run: keeps the generator that was trained


def other_generator(path: Path, images: Membership) -> Generator:
    """Load the generator of another finished run; refuse one that was trained on the images under attack."""
    trained_on = load(load_config(RunFolder.open(path).config).data).private.existing()
    known = {image.tobytes() for image in trained_on.images.cpu().numpy()}
    judged = (images.members, images.non_members)
    shared = [sum(image.tobytes() in known for image in part.images.cpu().numpy()) for part in judged]
    if sum(shared) > 0.01 * sum(map(len, judged)):  # drawn or tiny images may be equal by chance
        raise InputError(
            f"--reference {path} was trained on {shared[0]} of the {len(judged[0])} members and {shared[1]} of the "
            f"{len(judged[1])} non-members, so that it cannot tell what is ordinary. Use --train-reference, or a run "
            "on other images."
        )
    return load_generator(path)


def trained_generator(
    run: RunFolder, config: RunConfig, split: Split, reference: Images, progress: Progress = silent
) -> tuple[Generator, str]:
    """Train a reference generator, or load the one that an earlier attack left in the run's ``reference/``.

    Its ledger has no target, since it protects nobody: curator only. Of the data of the run under attack only the
    public part and the sizes are used; of ``reference``, in its order, at most as many images as are private. The seed
    is one more than the run's.

    Returns:
        The averaged generator, in eval mode, and a clause about it.

    Raises:
        InputError: If config and images do not fit, or the training was interrupted.
    """
    chosen = reference.to("cpu").select(torch.arange(min(len(reference), split.num_private)))
    training = config.training.model_copy(update={"seed": config.training.seed + 1})
    config, folder = config.model_copy(update={"training": training}), run.path / FOLDER
    about = f"trained by the same config on {len(chosen):,} images of the test part and the holdout"
    identity = {"config": config.identity(), "images": chosen.digest()}
    if (folder / CONFIG).is_file():
        saved = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if saved.get("reference") == identity:
            return load_generator(folder), about
    method = train_on(config, dataclasses.replace(split, private=chosen), progress)
    generator = cast(Generator, method.product).eval()
    save_generator(folder, generator, extra={"reference": identity, "curator_only": True})
    return generator, about
