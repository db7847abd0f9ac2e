"""What an attacker knows, and the images that he is asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from idpgan.attacks.membership import CriticScores
from idpgan.data.images import Images, to_uint8
from idpgan.data.load import Split
from idpgan.errors import InputError
from idpgan.models.generator import Generator
from idpgan.progress import Progress, renamed
from idpgan.ranks import ALONE, Ranks

WORDS = {
    "samples": "generated images",
    "generator": "the generator",
    "critic": "the trained critic",
    "classifier": "the released classifier",
    "reference": "real images that are neither members nor non-members",
    "reference_samples": "images of a reference generator",
    "reference_generator": "a reference generator",
    "sample_labels": "labeled generated images",
}


@dataclass(frozen=True)
class Knowledge:
    """What the attacker has besides the images in question, all on one device.

    Attributes:
        samples: Generated images, with labels if the generator is conditional.
        classifier: Logits (n, K) of the released classifier for images (n, C, H, W).
        critic: Scores of the trained critic: the attacker is inside.
        reference: Real images of the same distribution, neither members nor non-members.
        reference_samples: Images of ``reference_generator``, which was trained on other images of the same
            distribution.
        why_not: For a missing attribute, by name: one sentence why the run cannot give it.
        ranks: Processes of `torchrun` that share what is computed of distances, seen by rank 0.
    """

    samples: Images | None = None
    generator: Generator | None = None
    classifier: Callable[[Tensor], Tensor] | None = None
    critic: CriticScores | None = None
    reference: Images | None = None
    reference_samples: Images | None = None
    reference_generator: Generator | None = None
    seed: int = 0
    why_not: Mapping[str, str] = field(default_factory=dict)
    ranks: Ranks = ALONE

    def missing(self, name: str) -> str | None:
        """Return why an attribute, or "sample_labels", is not there; None if it is."""
        if name == "sample_labels":
            there = self.samples is None or self.samples.labels is not None
        else:
            there = getattr(self, name) is not None
        return None if there else self.why_not.get(name, f"needs {WORDS[name]}")

    def needed(self, name: str) -> Images:
        """Return a set of images that `missing` has found to be there."""
        images = getattr(self, name)
        if not isinstance(images, Images):
            raise InputError(f"This attack needs {WORDS[name]}, and there are none.")
        return images


class Membership(NamedTuple):
    """Real images of one distribution, by what the attacked generator has to do with them.

    Attributes:
        members: The first private images: it was trained on them.
        non_members: As many holdout images: it was not.
        reference: The test part and the rest of the holdout: neither, and known to the attacker.
    """

    members: Images
    non_members: Images
    reference: Images

    @property
    def people(self) -> tuple[Tensor, Tensor] | None:
        """Who is on members and on non-members, (n,) each; None where nobody knows, or people are on both sides."""
        members, others = self.members.identities, self.non_members.identities
        if members is None or others is None or bool(torch.isin(members, others).any()):
            return None
        return members, others


def choose_members(split: Split, most: int) -> Membership:
    """Return members and non-members, at most so many of each, and the reference; all parts are in random order.

    Raises:
        InputError: If there are fewer than 2 of each.
    """
    num = min(split.num_private, len(split.holdout), most)
    if num < 2:
        raise InputError(
            f"{split.num_private} private and {len(split.holdout)} holdout images: 2 of each are needed to attack."
        )
    rest = split.holdout.select(torch.arange(num, len(split.holdout)))
    index = torch.arange(num)
    return Membership(split.private.select(index), split.holdout.select(index), joined(split.test, rest))


def joined(*parts: Images) -> Images:
    """Return one set of images and labels."""
    labels = [part.labels for part in parts if part.labels is not None]
    return Images(torch.cat([part.images for part in parts]), torch.cat(labels) if labels else None, parts[0].classes)


def draw(generator: Generator, num: int, seed: int, progress: Progress, what: str) -> Images:
    """Draw labeled images, uint8, and leave them on the generator's device; pixels that are not finite are refused."""
    pixels = generator.sample(num, seed=seed, progress=renamed(progress, what))
    if not bool(pixels.isfinite().all()):
        raise InputError(f"{what}: the generator makes NaN pixels, its training diverged.")
    images = Images(to_uint8(pixels), generator.sample_labels(num), generator.classes)
    return images.to(next(generator.parameters()).device)
