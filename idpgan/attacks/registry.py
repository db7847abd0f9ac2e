"""All attacks by name: what each must know, how it is run, which paper it is from. A new attack is one more row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from idpgan import checks
from idpgan.attacks import losses, membership
from idpgan.attacks.attack import Attack, Knowledge, Membership, Outcome, Score, draw, run_attack
from idpgan.attacks.independence import check_independent
from idpgan.attacks.shadows import Shadows, lira, rmia
from idpgan.attacks.tracing import trace
from idpgan.checks import typed
from idpgan.config import nearest_hint
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.progress import Progress, silent


def _compared(
    function: Callable[..., Tensor], clouds: Sequence[str], knowledge: Knowledge, images: Images, progress: Progress
) -> Tensor:
    """Score images by comparing them with other images that the attacker has."""
    others = (knowledge.needed(name).images for name in clouds)
    return function(images.images, *others, progress=progress)


def _by_seed(
    function: Callable[..., Tensor], needs: Sequence[str], knowledge: Knowledge, images: Images, progress: Progress
) -> Tensor:
    """Score labeled images by an attack that draws or learns something by a seed."""
    known = (knowledge.needed(name) for name in needs)
    return function(images.images, images.labels, *known, seed=knowledge.seed, progress=progress)


def _copies(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    return membership.copies(images.images, knowledge.needed("samples").images, progress=progress)


def _by_network(
    function: Callable[..., Tensor], network: str, knowledge: Knowledge, images: Images, progress: Progress
) -> Tensor:
    """Score labeled images by what a network says of them."""
    return function(images.images, images.labels, knowledge.needed(network), progress=progress)


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
    return membership.closeness(knowledge.scores(score, images, progress))


def _calibrated(score: Score, knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    """Score by the same attack minus its score against the reference generator and its images."""
    samples, generator = knowledge.reference_samples, knowledge.reference_generator
    reference = dataclasses.replace(knowledge, samples=samples, generator=generator)
    return membership.calibrate(knowledge.scores(score, images, progress), score(reference, images, silent))


_OF_REFERENCE = {  # what the attacker has of a reference generator too; attacks that need no more can be calibrated
    "samples": "reference_samples",
    "generator": "reference_generator",
    "sample_labels": "reference_labels",
}


def _calibrated_row(row: Attack) -> Attack:
    """Return an attack calibrated by a reference generator (GAN-Leaks)."""
    needs = (*row.needs, *(_OF_REFERENCE[name] for name in row.needs))
    paper = row.paper if row.paper == _LEAKS else f"{row.paper}; calibrated as in GAN-Leaks"
    name, score = f"{row.name}-calibrated", partial(_calibrated, row.score)
    return dataclasses.replace(row, name=name, needs=needs, paper=paper, score=score)


_nearest = partial(_compared, membership.nearest_sample, ("samples",))
_LEAKS = "GAN-Leaks: Chen, Yu, Zhang, Fritz (2020), arXiv:1909.03935"
_YEOM = "Yeom, Giacomelli, Fredrikson, Jha (2018), arXiv:1709.01604"
_LIRA = "LiRA: Carlini, Chien, Nasr, Song, Terzis, Tramer (2022), arXiv:2112.03570"
_WATSON = f"offline test of {_LIRA}; one reference model: Watson et al. (2022), arXiv:2111.08440"
_BLACK = "black box"
_ROWS = (
    Attack("nearest-sample", _BLACK, ("samples",), _LEAKS, _nearest),
    Attack(
        "nearest-in-features",
        _BLACK,
        ("samples",),
        "distances of GAN-Leaks, in features of Gabor filters",
        partial(_compared, membership.nearest_in_features, ("samples",)),
    ),
    Attack(
        "neighborhood-count",
        _BLACK,
        ("samples",),
        "Hilprecht, Haerterich, Bernau (2019), PoPETs 2019(4)",
        partial(_compared, membership.neighborhood_count, ("samples",)),
    ),
    Attack("copies", _BLACK, ("samples",), "Carlini et al. (2023), arXiv:2301.13188, section 4.2", _copies),
    Attack(
        "person-set",
        _BLACK,
        ("samples",),
        "all images of a person as one set, by the distances of GAN-Leaks",
        partial(_of_person, _nearest),
        by_person=True,
    ),
    Attack(
        "density-ratio",
        _BLACK,
        ("samples", "reference"),
        "DOMIAS: van Breugel, Sun, Qian, van der Schaar (2023), arXiv:2302.12580",
        partial(_compared, membership.density_ratio, ("samples", "reference")),
    ),
    Attack(
        "gen-lra",
        _BLACK,
        ("samples", "reference"),
        "Gen-LRA: Ward, Wang, Cheng (2025), local likelihood attacks",
        partial(_compared, membership.gen_lra, ("samples", "reference")),
    ),
    Attack(
        "classifier-confidence",
        _BLACK,
        ("samples", "sample_labels"),
        "Yang, Zhou and Ning, section 3.2.2; Song, Shokri, Mittal (2019)",
        partial(_by_seed, losses.classifier_confidence, ("samples",)),
    ),
    Attack(
        "latent-reconstruction",
        "partial black box",
        ("generator",),
        _LEAKS,
        partial(_by_seed, losses.latent_reconstruction, ("generator",)),
        costly=True,
    ),
    Attack(
        "critic-score",
        "white box",
        ("critic",),
        "LOGAN: Hayes, Melis, Danezis, De Cristofaro (2019), arXiv:1705.07663",
        partial(_by_network, losses.critic_score, "critic"),
    ),
    Attack(
        "diffusion-loss",
        "partial black box",
        ("denoiser",),
        "Matsumoto, Miura, Yanai (2023), arXiv:2302.03262",
        partial(_by_network, losses.denoising_loss, "denoiser"),
    ),
    Attack(
        "teacher-loss", "partial black box", ("teacher",), _YEOM, partial(_by_network, losses.loss_threshold, "teacher")
    ),
    Attack(
        "teacher-loss-calibrated",
        "partial black box",
        ("teacher", "reference"),
        _WATSON,
        partial(_by_seed, losses.loss_calibrated, ("teacher", "reference")),
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
    Attack(
        "loss-threshold",
        _BLACK,
        ("classifier",),
        _YEOM,
        partial(_by_network, losses.loss_threshold, "classifier"),
        target="classifier",
    ),
    Attack(
        "loss-calibrated",
        _BLACK,
        ("classifier", "reference"),
        _WATSON,
        partial(_by_seed, losses.loss_calibrated, ("classifier", "reference")),
        target="classifier",
    ),
)
ATTACKS: Mapping[str, Attack] = {
    each.name: each
    for row in _ROWS
    for each in ((row, _calibrated_row(row)) if _OF_REFERENCE.keys() >= set(row.needs) else (row,))
}


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


@own_state()
def attack_model(
    model: Generator | PrivateClassifier,
    members: Images,
    others: Images,
    reference: Images | None = None,
    *,
    attacks: Sequence[str] = ("all",),
    samples: int = 10_000,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Outcome, ...]:
    """Ask who was in a model's training data, by every attack that needs no more than the model; curator only.

    Args:
        model: What `idpgan.load_generator`, `idpgan.load_classifier` or `idpgan.release.load_model` return.
        members: Images that it was trained on, uint8.
        others: As many images of the same distribution that it was not trained on. Exact copies on a side are left out,
            each image being one draw.
        reference: Further such images that the attacker knows; None = none.
        attacks: Names, or "all".
        samples: Images that are drawn from a generator.

    Raises:
        InputError: If members and others are not equally many, two at least, or are not independent draws
            (`independence.check_independent`) and have no people.
    """
    if len(members) != len(others) or len(members) < 2:
        raise InputError(f"{len(members)} members and {len(others)} others: give as many of both, two at least.")
    members, others = members.distinct(), others.distinct()
    fewer, nobody = torch.arange(min(len(members), len(others))), members.select(torch.arange(0))
    members, others = members.select(fewer), others.select(fewer)
    known = None if reference is None or len(reference) < losses.LEAST_REFERENCE else reference
    if isinstance(model, PrivateClassifier):
        knowledge = Knowledge(classifier=model.logits, reference=known, seed=seed)
    else:
        drawn = draw(model, samples, seed, progress, "generated images")
        knowledge = Knowledge(samples=drawn, generator=model, reference=known, seed=seed)
    kind = "classifier" if isinstance(model, PrivateClassifier) else "generator"
    images = Membership(members, others, nobody if reference is None else reference)
    if images.people is None:
        check_independent(members.images, others.images, seed=seed)
    return tuple(run_attack(attack, knowledge, images, progress=progress) for attack in select_attacks(attacks, kind))
