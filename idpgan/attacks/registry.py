"""All attacks by name: what each must know, how it is run, which paper it is from. A new attack is one more row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from torch import Tensor

from idpgan import checks
from idpgan.attacks.attack import Attack, Knowledge, Score
from idpgan.attacks.copies import copies
from idpgan.attacks.feature_distances import nearest_in_features
from idpgan.attacks.gen_lra import gen_lra
from idpgan.attacks.losses import denoising_loss, loss_calibrated, loss_threshold
from idpgan.attacks.membership import (
    calibrate,
    classifier_confidence,
    critic_score,
    density_ratio,
    latent_reconstruction,
    nearest_sample,
    neighborhood_count,
)
from idpgan.attacks.person_set import closeness
from idpgan.attacks.shadows import Shadows, lira, rmia
from idpgan.attacks.tracing import trace
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


def _copies(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    return copies(images.images, knowledge.needed("samples").images, progress=progress)


def _critic(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    return critic_score(images.images, images.labels, knowledge.needed("critic"), progress=progress)


def _denoising(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    return denoising_loss(images.images, images.labels, knowledge.needed("denoiser"), progress=progress)


def _loss(classifier: str, knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    scores = loss_threshold(images.images, images.labels, knowledge.needed(classifier))
    progress("losses", len(images), len(images))
    return scores


def _trace(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    scores = trace(images, knowledge.needed("sums"), knowledge.needed("reference"))
    progress("traces", len(images), len(images))
    return scores


def _shadowed(function: Callable[..., Tensor], knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    """Score the records that shadows were trained with and without."""
    shadows: Shadows = knowledge.needed("shadows")
    found = shadows.density(images.images, knowledge.needed("samples").images)
    progress("density", len(images), len(images))
    return function(found, shadows.observed, shadows.included)


def _of_person(score: Score, knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    return closeness(score(knowledge, images, progress))


def _calibrated(score: Score, knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    """Score by the same attack minus its score against the reference generator and its images."""
    samples, generator = knowledge.reference_samples, knowledge.reference_generator
    reference = dataclasses.replace(knowledge, samples=samples, generator=generator)
    return calibrate(score(knowledge, images, progress), score(reference, images, silent))


_OF_REFERENCE = {
    "samples": "reference_samples",
    "generator": "reference_generator",
    "sample_labels": "reference_labels",
}


def _and_calibrated(row: Attack) -> tuple[Attack, Attack]:
    """Return an attack, and the same calibrated by a reference generator (GAN-Leaks)."""
    needs = (*row.needs, *(_OF_REFERENCE[name] for name in row.needs))
    paper = row.paper if row.paper == _LEAKS else f"{row.paper}; calibrated as in GAN-Leaks"
    name, score = f"{row.name}-calibrated", partial(_calibrated, row.score)
    return row, dataclasses.replace(row, name=name, needs=needs, paper=paper, score=score)


_nearest = partial(_compared, nearest_sample, ("samples",))
_LEAKS = "GAN-Leaks: Chen, Yu, Zhang, Fritz (2020), arXiv:1909.03935"
_YEOM = "Yeom, Giacomelli, Fredrikson, Jha (2018), arXiv:1709.01604"
_LIRA = "LiRA: Carlini, Chien, Nasr, Song, Terzis, Tramer (2022), arXiv:2112.03570"
_WATSON = f"offline test of {_LIRA}; one reference model: Watson et al. (2022), arXiv:2111.08440"
_BLACK = "black box"
_ROWS = (
    *_and_calibrated(Attack("nearest-sample", _BLACK, ("samples",), _LEAKS, _nearest)),
    *_and_calibrated(
        Attack(
            "nearest-in-features",
            _BLACK,
            ("samples",),
            "distances of GAN-Leaks, in features of Gabor filters",
            partial(_compared, nearest_in_features, ("samples",)),
        )
    ),
    *_and_calibrated(
        Attack(
            "neighborhood-count",
            _BLACK,
            ("samples",),
            "Hilprecht, Haerterich, Bernau (2019), PoPETs 2019(4)",
            partial(_compared, neighborhood_count, ("samples",)),
        )
    ),
    *_and_calibrated(
        Attack("copies", _BLACK, ("samples",), "Carlini et al. (2023), arXiv:2301.13188, section 4.2", _copies)
    ),
    *_and_calibrated(
        Attack(
            "person-set",
            _BLACK,
            ("samples",),
            "all images of a person as one set, by the distances of GAN-Leaks",
            partial(_of_person, _nearest),
            by_person=True,
        )
    ),
    Attack(
        "density-ratio",
        _BLACK,
        ("samples", "reference"),
        "DOMIAS: van Breugel, Sun, Qian, van der Schaar (2023), arXiv:2302.12580",
        partial(_compared, density_ratio, ("samples", "reference")),
    ),
    Attack(
        "gen-lra",
        _BLACK,
        ("samples", "reference"),
        "Gen-LRA: Ward, Wang, Cheng (2025), local likelihood attacks",
        partial(_compared, gen_lra, ("samples", "reference")),
    ),
    *_and_calibrated(
        Attack(
            "classifier-confidence",
            _BLACK,
            ("samples", "sample_labels"),
            "Yang, Zhou and Ning, section 3.2.2; Song, Shokri, Mittal (2019)",
            partial(_learned, classifier_confidence, ("samples",)),
        )
    ),
    *_and_calibrated(
        Attack(
            "latent-reconstruction",
            "partial black box",
            ("generator",),
            _LEAKS,
            partial(_learned, latent_reconstruction, ("generator",)),
            costly=True,
        )
    ),
    Attack(
        "critic-score",
        "white box",
        ("critic",),
        "LOGAN: Hayes, Melis, Danezis, De Cristofaro (2019), arXiv:1705.07663",
        _critic,
    ),
    Attack(
        "diffusion-loss",
        "partial black box",
        ("denoiser",),
        "Matsumoto, Miura, Yanai (2023), arXiv:2302.03262",
        _denoising,
    ),
    Attack("teacher-loss", "partial black box", ("teacher",), _YEOM, partial(_loss, "teacher")),
    Attack(
        "teacher-loss-calibrated",
        "partial black box",
        ("teacher", "reference"),
        _WATSON,
        partial(_learned, loss_calibrated, ("teacher", "reference")),
    ),
    Attack(
        "trace",
        "released sums",
        ("sums", "reference"),
        "Homer et al. (2008); Dwork, Smith, Steinke, Ullman, Vadhan (2015)",
        _trace,
    ),
    Attack("shadow-lira", _BLACK, ("samples", "shadows"), _LIRA, partial(_shadowed, lira)),
    Attack(
        "shadow-rmia",
        _BLACK,
        ("samples", "shadows"),
        "RMIA: Zarifzadeh, Liu, Shokri (2024), arXiv:2312.03262",
        partial(_shadowed, rmia),
    ),
    Attack("loss-threshold", _BLACK, ("classifier",), _YEOM, partial(_loss, "classifier"), target="classifier"),
    Attack(
        "loss-calibrated",
        _BLACK,
        ("classifier", "reference"),
        _WATSON,
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
