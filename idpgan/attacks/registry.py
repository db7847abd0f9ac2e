"""All attacks by name: what each must know, how it is run, which paper it is from. A new attack is one more row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor

from idpgan import checks
from idpgan.attacks.attack import Attack, Knowledge, Score
from idpgan.attacks.losses import loss_calibrated, loss_threshold
from idpgan.attacks.membership import (
    calibrate,
    classifier_confidence,
    critic_score,
    density_ratio,
    latent_reconstruction,
    nearest_sample,
    neighborhood_count,
)
from idpgan.checks import typed
from idpgan.config import nearest_hint
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.progress import Progress, silent


def _compared(
    function: Callable[..., Tensor], clouds: Sequence[str], knowledge: Knowledge, images: Images, progress: Progress
) -> Tensor:
    """Score images by comparing them with other images that the attacker has."""
    others = (knowledge.needed(name).images for name in clouds)
    return function(images.images, *others, progress=progress, ranks=knowledge.ranks)


def _learned(
    function: Callable[..., Tensor], needs: Sequence[str], knowledge: Knowledge, images: Images, progress: Progress
) -> Tensor:
    """Score labeled images by an attack that draws or learns something by a seed."""
    known = (knowledge.needed(name) for name in needs)
    return function(images.images, images.labels, *known, seed=knowledge.seed, progress=progress)


def _critic(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    return critic_score(images.images, images.labels, knowledge.needed("critic"), progress=progress)


def _loss(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    return loss_threshold(images.images, images.labels, knowledge.needed("classifier"))


def _calibrated(score: Score, knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    """Score by the same attack minus its score against the reference generator and its images."""
    samples, generator = knowledge.reference_samples, knowledge.reference_generator
    reference = dataclasses.replace(knowledge, samples=samples, generator=generator)
    return calibrate(score(knowledge, images, progress), score(reference, images, silent))


_nearest = partial(_compared, nearest_sample, ("samples",))
_count = partial(_compared, neighborhood_count, ("samples",))
_reconstruction = partial(_learned, latent_reconstruction, ("generator",))
_LEAKS = "GAN-Leaks: Chen, Yu, Zhang, Fritz (2020), arXiv:1909.03935"
_MONTE_CARLO = "Hilprecht, Haerterich, Bernau (2019), PoPETs 2019(4)"
_ROWS = (
    Attack("nearest-sample", "black box", ("samples",), _LEAKS, _nearest),
    Attack(
        "nearest-sample-calibrated",
        "black box",
        ("samples", "reference_samples"),
        _LEAKS,
        partial(_calibrated, _nearest),
    ),
    Attack("neighborhood-count", "black box", ("samples",), _MONTE_CARLO, _count),
    Attack(
        "neighborhood-count-calibrated",
        "black box",
        ("samples", "reference_samples"),
        f"{_MONTE_CARLO}; calibrated as in GAN-Leaks",
        partial(_calibrated, _count),
    ),
    Attack(
        "density-ratio",
        "black box",
        ("samples", "reference"),
        "DOMIAS: van Breugel, Sun, Qian, van der Schaar (2023), arXiv:2302.12580",
        partial(_compared, density_ratio, ("samples", "reference")),
    ),
    Attack(
        "classifier-confidence",
        "black box",
        ("samples", "sample_labels"),
        "Yang, Zhou and Ning, section 3.2.2; Song, Shokri, Mittal (2019)",
        partial(_learned, classifier_confidence, ("samples",)),
    ),
    Attack("latent-reconstruction", "partial black box", ("generator",), _LEAKS, _reconstruction, costly=True),
    Attack(
        "latent-reconstruction-calibrated",
        "partial black box",
        ("generator", "reference_generator"),
        _LEAKS,
        partial(_calibrated, _reconstruction),
        costly=True,
    ),
    Attack(
        "critic-score",
        "white box",
        ("critic",),
        "LOGAN: Hayes, Melis, Danezis, De Cristofaro (2019), arXiv:1705.07663",
        _critic,
    ),
    Attack(
        "loss-threshold",
        "black box",
        ("classifier",),
        "Yeom, Giacomelli, Fredrikson, Jha (2018), arXiv:1709.01604",
        _loss,
        target="classifier",
    ),
    Attack(
        "loss-calibrated",
        "black box",
        ("classifier", "reference"),
        "LiRA's offline test: Carlini et al. (2022), arXiv:2112.03570; one reference model: Watson et al. (2022), "
        "arXiv:2111.08440",
        partial(_learned, loss_calibrated, ("classifier", "reference")),
        target="classifier",
    ),
)
ATTACKS: Mapping[str, Attack] = {row.name: row for row in _ROWS}


@typed
def select_attacks(names: Sequence[str], target: str = "generator") -> tuple[Attack, ...]:
    """Return attacks by name; "all" is every attack on that target.

    Args:
        names: Names of attacks, or "all".
        target: What is attacked: "generator" or "classifier".

    Raises:
        InputError: If a name is unknown, or is for another target; the message names the nearest name.
    """
    fitting = {name: row for name, row in ATTACKS.items() if row.target == target}
    for name in names:
        checks.fit(name, str, "names")
        if name != "all" and name not in ATTACKS:
            raise InputError(f"There is no attack '{name}'. {nearest_hint(name, [*ATTACKS, 'all'])}")
        if name in ATTACKS and name not in fitting:
            raise InputError(
                f"The attack '{name}' is on a {ATTACKS[name].target}, and this is a {target}. Known: "
                f"{', '.join(fitting)}, all."
            )
    return tuple(fitting.values()) if "all" in names else tuple(ATTACKS[name] for name in dict.fromkeys(names))
