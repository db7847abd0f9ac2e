"""All attacks by name: what each must know, how it is run, which paper it is from. A new attack is one more row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from idpgan import checks
from idpgan.attacks.attack import Attack
from idpgan.attacks.knowledge import Knowledge
from idpgan.attacks.losses import loss_calibrated, loss_threshold
from idpgan.attacks.membership import (
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
from idpgan.progress import Progress


def _nearest(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    samples = knowledge.needed("samples").images
    return nearest_sample(images.images, samples, progress=progress, ranks=knowledge.ranks)


def _nearest_calibrated(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    reference = nearest_sample(images.images, knowledge.needed("reference_samples").images, ranks=knowledge.ranks)
    return calibrate(_nearest(knowledge, images, progress), reference)


def _count(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    samples = knowledge.needed("samples").images
    return neighborhood_count(images.images, samples, progress=progress, ranks=knowledge.ranks)


def _count_calibrated(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    reference = neighborhood_count(images.images, knowledge.needed("reference_samples").images, ranks=knowledge.ranks)
    return calibrate(_count(knowledge, images, progress), reference)


def _density(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    samples, reference = knowledge.needed("samples"), knowledge.needed("reference")
    clouds = samples.images, reference.images
    return density_ratio(images.images, *clouds, progress=progress, ranks=knowledge.ranks)


def _critic(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    if knowledge.critic is None:
        raise InputError("The critic score needs the trained critic.")
    return critic_score(images.images, images.labels, knowledge.critic, progress=progress)


def _reconstruction(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    if knowledge.generator is None:
        raise InputError("Reconstruction needs the generator.")
    return latent_reconstruction(
        images.images, images.labels, knowledge.generator, seed=knowledge.seed, progress=progress
    )


def _reconstruction_calibrated(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    if knowledge.reference_generator is None:
        raise InputError("Calibration needs a reference generator.")
    reference = latent_reconstruction(images.images, images.labels, knowledge.reference_generator, seed=knowledge.seed)
    return calibrate(_reconstruction(knowledge, images, progress), reference)


def _logits(knowledge: Knowledge) -> Callable[[Tensor], Tensor]:
    if knowledge.classifier is None:
        raise InputError("This attack needs the released classifier.")
    return knowledge.classifier


def _loss(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    return loss_threshold(images.images, images.labels, _logits(knowledge))


def _loss_calibrated(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
    return loss_calibrated(
        images.images, images.labels, _logits(knowledge), knowledge.needed("reference"), seed=knowledge.seed,
        progress=progress,
    )  # fmt: skip


def _confidence(knowledge: Knowledge, images: Images, progress: Progress) -> Tensor:
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
        _loss_calibrated,
        target="classifier",
    ),
)
ATTACKS: Mapping[str, Attack] = {row.name: row for row in _ROWS}


@typed
def select_attacks(names: Sequence[str], target: str = "generator") -> tuple[Attack, ...]:
    """Return attacks by name; "all" is every one on such a target.

    Args:
        names: Of attacks, or "all".
        target: What is attacked: "generator" or "classifier".

    Raises:
        InputError: If one is unknown, or is for another target; the message names the nearest.
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
