"""All attacks by name: what each takes, how it is run, which paper it is from. A new attack is one more row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from idpgan import checks
from idpgan.attacks import losses, membership, shadows
from idpgan.attacks.knowledge import LEAKS, Attack, by_name, of_labels, of_pixels
from idpgan.config import nearest_hint
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.progress import Progress


def _trace(images: Images, *inputs: Any, seed: int, progress: Progress) -> Tensor:
    scores = membership.trace(images, *inputs)
    progress("traces", len(images), len(images))
    return scores


def _shadowed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the score of the records that shadows were trained with and without."""

    def score(images: Images, samples: Images, known: shadows.Shadows, *, seed: int, progress: Progress) -> Tensor:
        density = known.density(images.images, samples.images)
        progress("density", len(images), len(images))
        return function(density, known.observed, known.included)

    return score


def _compared(name: str, function: Callable[..., Tensor], paper: str, *more: str) -> Attack:
    """Return an attack that compares pixels with generated images, and with ``more`` images that the attacker has."""
    return Attack(name, _BLACK, ("samples", *more), paper, of_pixels(function))


_BLACK, _INSIDE = "black box", "partial black box"
_YEOM = "Yeom, Giacomelli, Fredrikson, Jha (2018), arXiv:1709.01604"
_LIRA = "LiRA: Carlini, Chien, Nasr, Song, Terzis, Tramer (2022), arXiv:2112.03570"
_WATSON = f"offline test of {_LIRA}; one reference model: Watson et al. (2022), arXiv:2111.08440"
_PERSON = "all images of a person as one set, by the distances of GAN-Leaks"
_DOMIAS = "DOMIAS: van Breugel, Sun, Qian, van der Schaar (2023), arXiv:2302.12580"
_SONG = "Yang, Zhou and Ning, section 3.2.2; Song, Shokri, Mittal (2019)"
_LOGAN = "LOGAN: Hayes, Melis, Danezis, De Cristofaro (2019), arXiv:1705.07663"
_HOMER = "Homer et al. (2008); Dwork, Smith, Steinke, Ullman, Vadhan (2015)"
_RMIA = "RMIA: Zarifzadeh, Liu, Shokri (2024), arXiv:2312.03262"
_threshold = of_labels(losses.loss_threshold)
_calibrated = of_labels(losses.loss_calibrated, seeded=True)
_confidence = of_labels(losses.classifier_confidence, seeded=True)
_reconstruction = of_labels(losses.latent_reconstruction, seeded=True)
_denoising = of_labels(losses.denoising_loss)
_NEAREST = _compared("nearest-sample", membership.nearest_sample, LEAKS)
_ROWS = (
    _NEAREST,
    _compared(
        "nearest-in-features",
        membership.nearest_in_features,
        "distances of GAN-Leaks, in features of Gabor filters",
    ),
    _compared(
        "neighborhood-count",
        membership.neighborhood_count,
        "Hilprecht, Haerterich, Bernau (2019), PoPETs 2019(4)",
    ),
    _compared("copies", membership.copies, "Carlini et al. (2023), arXiv:2301.13188, section 4.2"),
    Attack("person-set", _BLACK, ("samples",), _PERSON, _NEAREST.score, by_person=True, change=membership.closeness),
    _compared("density-ratio", membership.density_ratio, _DOMIAS, "reference"),
    _compared(
        "gen-lra", membership.gen_lra, "Gen-LRA: Ward, Wang, Cheng (2025), local likelihood attacks", "reference"
    ),
    Attack("classifier-confidence", _BLACK, ("samples", "sample_labels"), _SONG, _confidence),
    Attack("latent-reconstruction", _INSIDE, ("generator",), LEAKS, _reconstruction, costly=True),
    Attack("critic-score", "white box", ("critic",), _LOGAN, of_labels(losses.critic_score)),
    Attack("diffusion-loss", _INSIDE, ("denoiser",), "Matsumoto, Miura, Yanai (2023), arXiv:2302.03262", _denoising),
    Attack("teacher-loss", _INSIDE, ("teacher",), _YEOM, _threshold),
    Attack("teacher-loss-calibrated", _INSIDE, ("teacher", "reference"), _WATSON, _calibrated),
    Attack("trace", "released sums", ("sums", "reference"), _HOMER, _trace),
    Attack("shadow-lira", _BLACK, ("samples", "shadows"), _LIRA, _shadowed(shadows.lira)),
    Attack("shadow-rmia", _BLACK, ("samples", "shadows"), _RMIA, _shadowed(shadows.rmia)),
    Attack("loss-threshold", _BLACK, ("classifier",), _YEOM, _threshold, target="classifier"),
    Attack("loss-calibrated", _BLACK, ("classifier", "reference"), _WATSON, _calibrated, target="classifier"),
)
ATTACKS: Mapping[str, Attack] = by_name(_ROWS)


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
