"""``idpgan audit CONFIG --exposure``: one training with secrets in it, and how well the model knows them.

The secrets, *canaries*, are random members of a declared space: pictures of black and white blocks with random labels.
They stand among the private images of the config's own data, so what was trained is no product: it lies in a folder
that is thrown away, its network is dropped, and the result is for the curator. Scores are the critic's (of a
classifier: the log-odds of the label, which order as minus the loss) and, of a generator, the distance of the nearest
sample.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.attacks.exposure import FLOOR, LEAST_REFERENCES, Exposure, exposure
from idpgan.checks import whole
from idpgan.data.images import Images
from idpgan.data.load import Split, load
from idpgan.errors import InputError
from idpgan.jobs.critics import by_critic, by_nearest_sample
from idpgan.jobs.train import load_config, train_on
from idpgan.privacy.guarantee import Guarantee
from idpgan.progress import Progress, silent

FORMAT = "idpgan exposure 1"
_BLOCKS = 8  # per side of a canary
_NOT_FOR_RELEASE = "what was trained holds constructed secrets: it is no product, was never released, and is dropped"

Score = Callable[[Any, Images], Tensor]  # what was trained, images -> (n,), higher = known better


@dataclass(frozen=True)
class CanarySpace:
    """All pictures of B x B blocks, each black or white, with each label: ``2^(B^2) max(K, 1)`` members.

    Attributes:
        image_shape: (C, H, W).
        classes: Names of the K classes; empty = no labels.
    """

    image_shape: tuple[int, int, int]
    classes: tuple[str, ...] = ()

    @property
    def bits(self) -> float:
        """log2 of the number of members."""
        _, height, width = self.image_shape
        return min(_BLOCKS, height) * min(_BLOCKS, width) + math.log2(max(len(self.classes), 1))

    def draw(self, num: int, seed: int) -> Images:
        """Draw different members, uniformly."""
        rng, (channels, height, width) = torch.Generator().manual_seed(seed), self.image_shape
        rows, columns = min(_BLOCKS, height), min(_BLOCKS, width)
        blocks = torch.randint(2, (num, rows, columns), generator=rng, dtype=torch.uint8)
        while len(blocks.flatten(1).unique(dim=0)) < num:
            blocks = torch.randint(2, (num, rows, columns), generator=rng, dtype=torch.uint8)
        down, across = torch.arange(height) * rows // height, torch.arange(width) * columns // width
        images = (255 * blocks)[:, None, down][..., across].expand(num, channels, height, width).contiguous()
        labels = torch.randint(len(self.classes), (num,), generator=rng) if self.classes else None
        return Images(images, labels, self.classes)


def with_canaries(split: Split, canaries: Images, repeats: int) -> Split:
    """Append each canary ``repeats`` times to the private images; each copy is a person of its own.

    Raises:
        InputError: If the private images carry attributes, which a canary has none of.
    """
    private = split.private
    if private.attributes is not None:
        raise InputError("exposure needs images without attributes: a canary has none. Take other data.")
    copies = canaries.select(torch.arange(len(canaries)).repeat(repeats))
    joined: dict[str, Any] = {"images": torch.cat([private.images, copies.images])}
    if private.labels is not None and copies.labels is not None:
        joined["labels"] = torch.cat([private.labels, copies.labels])
    if private.identities is not None:
        first = int(private.identities.max()) + 1
        joined["identities"] = torch.cat([private.identities, first + torch.arange(len(copies))])
    if private.null is not None:
        joined["null"] = torch.cat([private.null, torch.zeros(len(copies), dtype=torch.bool)])
    return dataclasses.replace(split, private=dataclasses.replace(private, **joined))


@dataclass(frozen=True)
class ExposureReport:
    """What one training with canaries showed; never for release, as its training is not.

    Attributes:
        method: Name.
        proven: What the accountant proves of the training, canaries included; None = nothing was asked.
        results: Exposure by score.
        canaries: m.
        repeats: How often each was in.
        notes: What a reader has to know.
    """

    method: str
    proven: Guarantee | None
    results: Mapping[str, Exposure]
    canaries: int
    repeats: int
    notes: tuple[str, ...] = (_NOT_FOR_RELEASE,)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "format": FORMAT,
            "curator_only": True,
            "for_release": False,
            "method": self.method,
            "proven": self.proven.to_json() if self.proven else None,
            "canaries": self.canaries,
            "repeats": self.repeats,
            "exposure": {name: result.to_json() for name, result in self.results.items()},
            "floor": FLOOR,
            "notes": list(self.notes),
        }


def expose(
    split: Split,
    train: Callable[[Split], Any],
    scores: Mapping[str, Score],
    *,
    canaries: int = 20,
    references: int = 1000,
    repeats: int = 1,
    seed: int = 0,
) -> tuple[Any, dict[str, Exposure]]:
    """Train with canaries and return what was trained, and the exposure by each score that says anything.

    Args:
        split: Data set.
        train: Maps a split to whatever is scored.
        scores: Higher = known better.
        canaries: m, 1 .. 1000.
        references: n, other members of the space: 100 .. 100,000.
        repeats: How often each canary is in the training data, 1 .. 1000.
        seed: Of the draw from the space; public.
    """
    whole(canaries, "canaries", 1, 1000)
    whole(references, "references", LEAST_REFERENCES, 100_000)
    whole(repeats, "repeats", 1, 1000)
    space = CanarySpace(split.image_shape, split.classes)
    drawn = space.draw(canaries + references, seed)
    trained = train(with_canaries(split, drawn.select(torch.arange(canaries)), repeats))
    found: dict[str, Exposure] = {}
    for name, score in scores.items():
        given = score(trained, drawn)
        if bool((given != given[0]).any()):
            found[name] = exposure(given[:canaries], given[canaries:], space.bits)
    return trained, found


def exposure_of(
    path: Path,
    *,
    canaries: int = 20,
    references: int = 1000,
    repeats: int = 1,
    seed: int = 0,
    overrides: Sequence[str] = (),
    progress: Progress = silent,
) -> ExposureReport:
    """Train a config once on its own data, with canaries among the private images. Curator only, never released.

    Arguments are those of `expose`.

    Raises:
        InputError: If the config cannot be run, or the data have attributes.
    """
    config = load_config(path, list(overrides))
    trained, results = expose(
        load(config.data, progress),
        lambda split: train_on(config, split, progress),
        {"critic": by_critic, "nearest sample": by_nearest_sample},
        canaries=canaries,
        references=references,
        repeats=repeats,
        seed=seed,
    )
    proven = trained.privacy().proven
    return ExposureReport(config.method.name, proven, results, canaries, repeats)
