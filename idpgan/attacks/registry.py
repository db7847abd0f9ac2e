"""All attacks by name: what each takes, how it is run, which paper it is from. A new attack is one more row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from idpgan import checks
from idpgan.attacks import losses, membership, shadows, tracing
from idpgan.attacks.knowledge import LEAKS, Attack, by_name, of_labels, of_pixels
from idpgan.checks import typed
from idpgan.config import nearest_hint
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.progress import Progress


def _trace(images: Images, *inputs: Any, seed: int, progress: Progress) -> Tensor:
    scores = tracing.trace(images, *inputs)
    progress("traces", len(images), len(images))
    return scores


def _shadowed(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the score of the records that shadows were trained with and without."""

    def score(images: Images, samples: Images, known: shadows.Shadows, *, seed: int, progress: Progress) -> Tensor:
        density = known.density(images.images, samples.images)
        progress("density", len(images), len(images))
        return function(density, known.observed, known.included)

    return score


_nearest = of_pixels(membership.nearest_sample)
_YEOM = "Yeom, Giacomelli, Fredrikson, Jha (2018), arXiv:1709.01604"
_LIRA = "LiRA: Carlini, Chien, Nasr, Song, Terzis, Tramer (2022), arXiv:2112.03570"
_WATSON = f"offline test of {_LIRA}; one reference model: Watson et al. (2022), arXiv:2111.08440"
_BLACK = "black box"
_ROWS = (
    Attack("nearest-sample", _BLACK, ("samples",), LEAKS, _nearest),
    Attack(
        "nearest-in-features",
        _BLACK,
        ("samples",),
        "distances of GAN-Leaks, in features of Gabor filters",
        of_pixels(membership.nearest_in_features),
    ),
    Attack(
        "neighborhood-count",
        _BLACK,
        ("samples",),
        "Hilprecht, Haerterich, Bernau (2019), PoPETs 2019(4)",
        of_pixels(membership.neighborhood_count),
    ),
    Attack(
        "copies",
        _BLACK,
        ("samples",),
        "Carlini et al. (2023), arXiv:2301.13188, section 4.2",
        of_pixels(membership.copies),
    ),
    Attack(
        "person-set",
        _BLACK,
        ("samples",),
        "all images of a person as one set, by the distances of GAN-Leaks",
        _nearest,
        by_person=True,
        change=membership.closeness,
    ),
    Attack(
        "density-ratio",
        _BLACK,
        ("samples", "reference"),
        "DOMIAS: van Breugel, Sun, Qian, van der Schaar (2023), arXiv:2302.12580",
        of_pixels(membership.density_ratio),
    ),
    Attack(
        "gen-lra",
        _BLACK,
        ("samples", "reference"),
        "Gen-LRA: Ward, Wang, Cheng (2025), local likelihood attacks",
        of_pixels(membership.gen_lra),
    ),
    Attack(
        "classifier-confidence",
        _BLACK,
        ("samples", "sample_labels"),
        "Yang, Zhou and Ning, section 3.2.2; Song, Shokri, Mittal (2019)",
        of_labels(losses.classifier_confidence, seeded=True),
    ),
    Attack(
        "latent-reconstruction",
        "partial black box",
        ("generator",),
        LEAKS,
        of_labels(losses.latent_reconstruction, seeded=True),
        costly=True,
    ),
    Attack(
        "critic-score",
        "white box",
        ("critic",),
        "LOGAN: Hayes, Melis, Danezis, De Cristofaro (2019), arXiv:1705.07663",
        of_labels(losses.critic_score),
    ),
    Attack(
        "diffusion-loss",
        "partial black box",
        ("denoiser",),
        "Matsumoto, Miura, Yanai (2023), arXiv:2302.03262",
        of_labels(losses.denoising_loss),
    ),
    Attack("teacher-loss", "partial black box", ("teacher",), _YEOM, of_labels(losses.loss_threshold)),
    Attack(
        "teacher-loss-calibrated",
        "partial black box",
        ("teacher", "reference"),
        _WATSON,
        of_labels(losses.loss_calibrated, seeded=True),
    ),
    Attack(
        "trace",
        "released sums",
        ("sums", "reference"),
        "Homer et al. (2008); Dwork, Smith, Steinke, Ullman, Vadhan (2015)",
        _trace,
    ),
    Attack("shadow-lira", _BLACK, ("samples", "shadows"), _LIRA, _shadowed(shadows.lira)),
    Attack(
        "shadow-rmia",
        _BLACK,
        ("samples", "shadows"),
        "RMIA: Zarifzadeh, Liu, Shokri (2024), arXiv:2312.03262",
        _shadowed(shadows.rmia),
    ),
    Attack("loss-threshold", _BLACK, ("classifier",), _YEOM, of_labels(losses.loss_threshold), target="classifier"),
    Attack(
        "loss-calibrated",
        _BLACK,
        ("classifier", "reference"),
        _WATSON,
        of_labels(losses.loss_calibrated, seeded=True),
        target="classifier",
    ),
)
ATTACKS: Mapping[str, Attack] = by_name(_ROWS)


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
