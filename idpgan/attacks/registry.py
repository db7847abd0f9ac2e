"""All attacks by name: what each must know, how it is run, which paper it is from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from idpgan import checks
from idpgan.attacks.distances import Progress
from idpgan.attacks.membership import (
    CriticScores,
    calibrate,
    classifier_confidence,
    critic_score,
    density_ratio,
    nearest_sample,
    neighborhood_count,
)
from idpgan.attacks.reconstruction import latent_reconstruction
from idpgan.checks import typed
from idpgan.config import nearest_hint
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.models.generator import Generator


@dataclass(frozen=True)
class Knowledge:
    """What the attacker has besides the images in question, all on one device.

    Attributes:
        samples: Generated images, with labels if the generator is conditional.
        generator: The released generator.
        critic: Scores of the trained critic: the attacker is inside.
        reference: Real images of the same distribution, neither members nor non-members.
        reference_samples: Images of a generator that was trained on other images of the same distribution.
        reference_generator: That generator.
        seed: Of what an attack draws.
        why_not: For a missing attribute, by name: one sentence why the run cannot give it.
    """

    samples: Images | None = None
    generator: Generator | None = None
    critic: CriticScores | None = None
    reference: Images | None = None
    reference_samples: Images | None = None
    reference_generator: Generator | None = None
    seed: int = 0
    why_not: Mapping[str, str] = field(default_factory=dict)

    def needed(self, name: str) -> Images:
        """Return a set of images that `Attack.missing` has found to be there."""
        images = getattr(self, name)
        if not isinstance(images, Images):
            raise InputError(f"This attack needs {_WORDS[name]}, and there are none.")
        return images


_WORDS = {
    "samples": "generated images",
    "generator": "the generator",
    "critic": "the trained critic",
    "reference": "real images that are neither members nor non-members",
    "reference_samples": "images of a reference generator",
    "reference_generator": "a reference generator",
    "sample_labels": "labeled generated images",
}


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        name: As on the command line.
        access: "black box" (images only), "partial black box" (the generator), "white box" (the critic).
        needs: Attributes of `Knowledge`, or "sample_labels", without which it cannot be run.
        paper: Where it is from.
        score: Maps (knowledge, images to be judged, progress) to scores (n,), higher = member.
        costly: Whether it optimizes for each image, so that fewer images are judged.
    """

    name: str
    access: str
    needs: tuple[str, ...]
    paper: str
    score: Callable[[Knowledge, Images, Progress | None], Tensor]
    costly: bool = False

    def missing(self, knowledge: Knowledge) -> str | None:
        """Return why this attack cannot be run, or None if it can."""
        for name in self.needs:
            if name == "sample_labels":
                there = knowledge.samples is None or knowledge.samples.labels is not None
            else:
                there = getattr(knowledge, name) is not None
            if not there:
                default = f"needs {_WORDS[name]}"
                return knowledge.why_not.get(name, default)
        return None


def _nearest(knowledge: Knowledge, images: Images, progress: Progress | None) -> Tensor:
    return nearest_sample(images.images, knowledge.needed("samples").images, progress=progress)


def _nearest_calibrated(knowledge: Knowledge, images: Images, progress: Progress | None) -> Tensor:
    reference = nearest_sample(images.images, knowledge.needed("reference_samples").images)
    return calibrate(_nearest(knowledge, images, progress), reference)


def _count(knowledge: Knowledge, images: Images, progress: Progress | None) -> Tensor:
    return neighborhood_count(images.images, knowledge.needed("samples").images, progress=progress)


def _count_calibrated(knowledge: Knowledge, images: Images, progress: Progress | None) -> Tensor:
    reference = neighborhood_count(images.images, knowledge.needed("reference_samples").images)
    return calibrate(_count(knowledge, images, progress), reference)


def _density(knowledge: Knowledge, images: Images, progress: Progress | None) -> Tensor:
    samples, reference = knowledge.needed("samples"), knowledge.needed("reference")
    return density_ratio(images.images, samples.images, reference.images, progress=progress)


def _critic(knowledge: Knowledge, images: Images, progress: Progress | None) -> Tensor:
    if knowledge.critic is None:
        raise InputError("The critic score needs the trained critic.")
    return critic_score(images.images, images.labels, knowledge.critic, progress=progress)


def _reconstruction(knowledge: Knowledge, images: Images, progress: Progress | None) -> Tensor:
    if knowledge.generator is None:
        raise InputError("Reconstruction needs the generator.")
    return latent_reconstruction(
        images.images, images.labels, knowledge.generator, seed=knowledge.seed, progress=progress
    )


def _reconstruction_calibrated(knowledge: Knowledge, images: Images, progress: Progress | None) -> Tensor:
    if knowledge.reference_generator is None:
        raise InputError("Calibration needs a reference generator.")
    reference = latent_reconstruction(images.images, images.labels, knowledge.reference_generator, seed=knowledge.seed)
    return calibrate(_reconstruction(knowledge, images, progress), reference)


def _confidence(knowledge: Knowledge, images: Images, progress: Progress | None) -> Tensor:
    samples = knowledge.needed("samples")
    return classifier_confidence(images.images, images.labels, samples, seed=knowledge.seed, progress=progress)


_LEAKS = "GAN-Leaks: Chen, Yu, Zhang, Fritz (2020), arXiv:1909.03935"
_MONTE_CARLO = "Hilprecht, Haerterich, Bernau (2019), PoPETs 2019(4)"
_ROWS = (
    Attack("nearest-sample", "black box", ("samples",), _LEAKS, _nearest),
    Attack("nearest-sample-calibrated", "black box", ("samples", "reference_samples"), _LEAKS, _nearest_calibrated),
    Attack("neighborhood-count", "black box", ("samples",), _MONTE_CARLO, _count),
    Attack(
        "neighborhood-count-calibrated",
        "black box",
        ("samples", "reference_samples"),
        f"{_MONTE_CARLO}; calibrated as in GAN-Leaks",
        _count_calibrated,
    ),
    Attack(
        "density-ratio",
        "black box",
        ("samples", "reference"),
        "DOMIAS: van Breugel, Sun, Qian, van der Schaar (2023), arXiv:2302.12580",
        _density,
    ),
    Attack(
        "classifier-confidence",
        "black box",
        ("samples", "sample_labels"),
        "Yang, Zhou and Ning, section 3.2.2; Song, Shokri, Mittal (2019)",
        _confidence,
    ),
    Attack("latent-reconstruction", "partial black box", ("generator",), _LEAKS, _reconstruction, costly=True),
    Attack(
        "latent-reconstruction-calibrated",
        "partial black box",
        ("generator", "reference_generator"),
        _LEAKS,
        _reconstruction_calibrated,
        costly=True,
    ),
    Attack(
        "critic-score",
        "white box",
        ("critic",),
        "LOGAN: Hayes, Melis, Danezis, De Cristofaro (2019), arXiv:1705.07663",
        _critic,
    ),
)
ATTACKS: Mapping[str, Attack] = {row.name: row for row in _ROWS}


@typed
def select_attacks(names: Sequence[str]) -> tuple[Attack, ...]:
    """Return attacks by name; "all" is every one.

    Raises:
        InputError: If one is unknown; the message names the nearest.
    """
    for name in names:
        checks.fit(name, str, "names")
        if name != "all" and name not in ATTACKS:
            raise InputError(f"There is no attack '{name}'. {nearest_hint(name, [*ATTACKS, 'all'])}")
    return tuple(ATTACKS.values()) if "all" in names else tuple(ATTACKS[name] for name in dict.fromkeys(names))
