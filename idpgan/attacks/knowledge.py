"""What an attacker has (`Knowledge`), and one attack (`Attack`, a row of `registry`): a function and what it needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from idpgan.attacks import membership
from idpgan.attacks.shadows import Shadows
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.device import cat
from idpgan.errors import InputError
from idpgan.models.generator import Generator
from idpgan.progress import Progress, renamed, silent
from idpgan.training.method import CriticScores, ReleasedSums

WORDS = {
    "samples": "generated images",
    "generator": "the generator",
    "critic": "the trained critic",
    "classifier": "the released classifier",
    "denoiser": "the denoiser inside a released generator",
    "teacher": "the classifier inside a released generator",
    "sums": "the sums that were released, and the map of an image to what it adds",
    "shadows": "shadow generators",
    "reference": "real images that are neither members nor non-members",
    "reference_samples": "images of a reference generator",
    "reference_generator": "a reference generator",
    "sample_labels": "labeled generated images",
    "reference_labels": "labeled images of a reference generator",
    "people": "the person on each image, and nobody on both sides",
}
LEAKS = "GAN-Leaks: Chen, Yu, Zhang, Fritz (2020), arXiv:1909.03935"
_LABELS = {"sample_labels": "samples", "reference_labels": "reference_samples"}
_REFERENCE = {"samples": "reference_samples", "generator": "reference_generator", "sample_labels": "reference_labels"}
Computed = dict[tuple[Callable[..., Tensor], tuple[str, ...], str], Tensor]  # by function, inputs, digest of images


@dataclass(frozen=True)
class Knowledge:
    """What the attacker has besides the images in question, all on one device.

    Attributes:
        samples: Generated images, with labels if the generator is conditional.
        classifier: Logits (n, K) of the released classifier for images (n, C, H, W).
        critic: Scores of the trained critic, for an attacker inside (white box).
        denoiser: Losses (n,) of a released generator that draws by diffusion, of images and labels.
        teacher: Logits of the classifier that chooses among what a released generator draws.
        sums: What a method released of sums over the private images.
        shadows: Generators trained with and without the images in question.
        reference: Real images of the same distribution, neither members nor non-members.
        reference_samples: Images of ``reference_generator``, which was trained on other images of the same
            distribution; where there is no such generator, the reference images themselves may take their place.
        why_not: One sentence why the run cannot provide an attribute, by its name.
    """

    samples: Images | None = None
    generator: Generator | None = None
    classifier: Callable[[Tensor], Tensor] | None = None
    critic: CriticScores | None = None
    denoiser: Callable[[Tensor, Tensor | None], Tensor] | None = None
    teacher: Callable[[Tensor], Tensor] | None = None
    sums: ReleasedSums | None = None
    shadows: Shadows | None = None
    reference: Images | None = None
    reference_samples: Images | None = None
    reference_generator: Generator | None = None
    seed: int = 0
    why_not: Mapping[str, str] = field(default_factory=dict)

    def missing(self, name: str) -> str | None:
        """Return why an attribute, or a name in "..._labels", is missing; None if it is present."""
        if name in _LABELS:
            images = getattr(self, _LABELS[name])
            there = images is None or images.labels is not None
        else:
            there = getattr(self, name) is not None
        return None if there else self.why_not.get(name, f"needs {WORDS[name]}")

    def needed(self, name: str) -> Any:
        """Return an attribute that `missing` has found present."""
        value = getattr(self, name)
        if value is None:
            raise InputError(f"This attack needs {WORDS[name]}, and there are none.")
        return value


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        access: "black box" (images, or logits, only), "partial black box" (the generator), "white box" (the critic).
        inputs: Attributes of `Knowledge` that the score takes, in its order, and names in "..._labels" that must be
            there too.
        score: Maps (images to be judged, *inputs, seed=, progress=) to scores (n,), higher = member; see `of_pixels`
            and `of_labels`.
        costly: Whether it optimizes for each image, so that fewer images are judged.
        target: What it attacks: "generator" or "classifier".
        by_person: Whether it judges all images of a person as one set: its score of a person is the mean over them.
        change: What the scores go through; attacks with the same score compute it once.
        calibrated: Whether the score of the same attack against the reference generator and its images is subtracted.
    """

    name: str
    access: str
    inputs: tuple[str, ...]
    paper: str
    score: Callable[..., Tensor]
    costly: bool = False
    target: str = "generator"
    by_person: bool = False
    change: Callable[[Tensor], Tensor] | None = None
    calibrated: bool = False

    def with_calibrated(self) -> tuple[Attack, ...]:
        """Return this attack, and calibrated as in GAN-Leaks where a reference generator offers all that it takes."""
        if not set(self.inputs) <= _REFERENCE.keys():
            return (self,)
        paper = self.paper if self.paper == LEAKS else f"{self.paper}; calibrated as in GAN-Leaks"
        return self, dataclasses.replace(self, name=f"{self.name}-calibrated", paper=paper, calibrated=True)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of all that the attacker must have."""
        return self.inputs + tuple(_REFERENCE[name] for name in self.inputs if self.calibrated)

    def missing(self, knowledge: Knowledge, *, people_known: bool = True) -> str | None:
        """Return why this attack cannot be run, or None if it can."""
        if self.by_person and not people_known:
            return f"needs {WORDS['people']}"
        reasons = (knowledge.missing(name) for name in self.needs)
        return next((reason for reason in reasons if reason is not None), None)

    def scores(
        self, images: Images, knowledge: Knowledge, progress: Progress = silent, computed: Computed | None = None
    ) -> Tensor:
        """Return the scores of images, (n,); ``computed`` keeps what several attacks on these images start from."""
        computed = {} if computed is None else computed
        key = self.score, self.inputs, images.digest()
        if key not in computed:
            computed[key] = self._scores(images, knowledge, self.inputs, progress)
        scores = computed[key] if self.change is None else self.change(computed[key])
        if self.calibrated:
            usual = self._scores(images, knowledge, [_REFERENCE[name] for name in self.inputs], silent)
            scores = membership.calibrate(scores, usual if self.change is None else self.change(usual))
        progress("scores", len(images), len(images))
        return scores

    def _scores(self, images: Images, knowledge: Knowledge, names: Sequence[str], progress: Progress) -> Tensor:
        inputs = [knowledge.needed(name) for name in names if not name.endswith("_labels")]
        return self.score(images, *inputs, seed=knowledge.seed, progress=progress)


def by_name(rows: Iterable[Attack]) -> dict[str, Attack]:
    """Return all attacks of some rows, calibrated ones too, by name."""
    return {attack.name: attack for row in rows for attack in row.with_calibrated()}


def of_pixels(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the score of an attack that compares pixels: function(images, *other images, progress=), tensors all."""

    def score(images: Images, *others: Images, seed: int, progress: Progress) -> Tensor:
        return function(images.images, *(part.images for part in others), progress=progress)

    return score


def of_labels(function: Callable[..., Tensor], *, seeded: bool = False) -> Callable[..., Tensor]:
    """Return the score of an attack on labeled images: function(images, labels, *inputs, [seed=,] progress=)."""

    def score(images: Images, *inputs: Any, seed: int, progress: Progress) -> Tensor:
        if seeded:
            return function(images.images, images.labels, *inputs, seed=seed, progress=progress)
        return function(images.images, images.labels, *inputs, progress=progress)

    return score


# The images in question: members and as many others, of one distribution -----------------------------------------


def choose_members(split: Split, most: int) -> tuple[Images, Images, Images]:
    """Return members, non-members, at most so many of each, and the reference; all parts are in random order.

    Members are the first private images, non-members as many holdout images, which no generator was trained on. The
    reference is the test part and the rest of the holdout: neither of the two, and known to the attacker.

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
    return split.private.select(index), split.holdout.select(index), joined(split.test, rest)


def people_of(members: Images, others: Images) -> tuple[Tensor, Tensor] | None:
    """Return the people on the images of both sides, (n,) each; None if they are unknown or somebody is on both."""
    people = members.identities, others.identities
    if people[0] is None or people[1] is None or bool(torch.isin(people[0], people[1]).any()):
        return None
    return people[0], people[1]


def joined(*parts: Images) -> Images:
    """Return one set of images and labels."""
    labels = [part.labels for part in parts if part.labels is not None]
    images = cat([part.images for part in parts])
    return Images(images, torch.cat(labels) if labels else None, parts[0].classes)


def draw(generator: Generator, num: int, seed: int, progress: Progress, what: str) -> Images:
    """Draw labeled images, and leave them on the generator's device."""
    images = generator.sample_images(num, seed=seed, progress=renamed(progress, what))
    return images.to(next(generator.parameters()).device)
