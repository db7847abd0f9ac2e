r"""Shadow generators: how likely is an image under generators that were trained with it, and without it?

The attacker retrains the generator many times, each time with a random half of the records in question, and looks at
one number of each shadow: the logarithm of its density at the record (`Density`). The target's number is then compared
with those of the shadows that knew the record and of those that did not.

* LiRA (Carlini et al. 2022, "Membership inference attacks from first principles"): both are taken for normal laws, and
  the score is the log-likelihood ratio. With few shadows all records share one variance.
* RMIA (Zarifzadeh, Liu and Shokri 2024, "Low-cost high-power membership inference attacks"): the density under the
  target over its mean under all shadows. The paper compares that ratio with those of a population; with one population
  for all records the order, hence every rate, is that of the ratio itself.

Which records are judged is chosen beforehand, by `vulnerable`: records that stand alone leak most (Meeus et al. 2023,
"Achilles' heels: vulnerable record identification in synthetic data publishing").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from idpgan.attacks.distances import bandwidth, check_comparable, components, log_density, nearest_neighbors, projected
from idpgan.data.images import Images
from idpgan.errors import InputError

LEAST_SHADOWS = 4  # two with and two without each record: fewer have no variance
_NEIGHBORS = 5  # whose mean distance says how alone a record stands
_OWN_VARIANCE = 64  # shadows from which on each record has variances of its own, as in LiRA


@dataclass(frozen=True)
class Density:
    """A kernel density of generated images, in whitened principal components of images that everybody may know.

    Attributes:
        space: Mean and directions of `distances.components`.
        width: Bandwidth of the Gaussian kernel, in those components.
    """

    space: tuple[Tensor, Tensor]
    width: float

    @classmethod
    def of(cls, reference: Tensor, dimensions: int = 30) -> Density:
        """Fix space and width by reference images (R, ...), R >= 3, which no generator in question was trained on."""
        if len(reference) < 3:
            raise InputError(f"{len(reference)} reference images: a density needs 3.")
        space = components(reference, dimensions, whiten=True)
        return cls(space, bandwidth(projected(reference, space)))

    def __call__(self, images: Tensor, samples: Tensor) -> Tensor:
        """Return the log density of samples (S, ...) at images (n, ...): (n,) float64 on the CPU."""
        check_comparable(images, samples)
        points, cloud = projected(images, self.space), projected(samples, self.space)
        return log_density(points, cloud, self.width).double().cpu()


@dataclass(frozen=True)
class Shadows:
    """What shadow generators say of the chosen records.

    Attributes:
        members: The chosen records that the target was trained on.
        non_members: Equally many that it was not trained on.
        included: bool (k, n): which of the n records, members first, each shadow was trained with.
        observed: float64 (k, n): the log density of each shadow at each record.
        density: How that was measured.
    """

    members: Images
    non_members: Images
    included: Tensor
    observed: Tensor
    density: Density


def vulnerable(images: Tensor, reference: Tensor, count: int) -> Tensor:
    """Return the positions (count,) of the images that stand most alone, by the distance to their nearest references.

    Images (n, ...) and reference (R, ...) are uint8 or floating point. Neither knows who is a member.

    Raises:
        InputError: If there are fewer than ``count`` images, or shapes differ.
    """
    check_comparable(images, reference)
    if not 1 <= count <= len(images):
        raise InputError(f"{count} of {len(images)} images cannot be chosen.")
    alone = nearest_neighbors(images, reference, _NEIGHBORS)[0].mean(1)
    return alone.argsort(descending=True)[:count].cpu()


def halves(shadows: int, records: int, seed: int) -> Tensor:
    """Return which records each shadow is trained with, bool (shadows, records): two shadows share out all of them.

    Every record is in exactly half of the shadows, and every shadow has half of the records.

    Raises:
        InputError: If there are fewer than 4 shadows, or either number is odd.
    """
    if shadows < LEAST_SHADOWS or shadows % 2 or records < 2 or records % 2:
        raise InputError(
            f"shadows = {shadows} must be even and at least {LEAST_SHADOWS}, and records = {records} even: half of the "
            "shadows know each record."
        )
    rng, included = torch.Generator().manual_seed(seed), torch.zeros(shadows, records, dtype=torch.bool)
    for pair in range(0, shadows, 2):
        included[pair, torch.randperm(records, generator=rng)[: records // 2]] = True
        included[pair + 1] = ~included[pair]
    return included


def lira(target: Tensor, observed: Tensor, included: Tensor) -> Tensor:
    """Score by the log-likelihood ratio of what the target shows, between shadows with and without each record: (n,).

    Args:
        target: (n,) of the target.
        observed: (k, n) of the shadows.
        included: bool (k, n); both kinds at least twice for each record.

    Raises:
        InputError: If shapes differ, or a record has fewer than 2 shadows of a kind.
    """
    _check(target, observed, included)
    logs, each_alone = [], len(observed) >= _OWN_VARIANCE
    for kind in (included, ~included):
        counts = kind.sum(0)
        mean = (observed * kind).sum(0) / counts
        squares = ((observed - mean).square() * kind).sum(0)
        variance = squares / (counts - 1) if each_alone else (squares.sum() / (counts - 1).sum()).expand(len(mean))
        variance = variance.clamp(min=1e-12)
        logs.append(-((target - mean).square()) / (2 * variance) - variance.log() / 2)
    return (logs[0] - logs[1]).float()


def rmia(target: Tensor, observed: Tensor, included: Tensor) -> Tensor:
    """Score by the target's log density minus the logarithm of the shadows' mean density: (n,); as `lira`."""
    _check(target, observed, included)
    return (target - (observed.logsumexp(0) - math.log(len(observed)))).float()


def _check(target: Tensor, observed: Tensor, included: Tensor) -> None:
    if observed.ndim != 2 or included.shape != observed.shape or target.shape != observed.shape[1:]:
        raise InputError(
            f"Shadows saw {tuple(observed.shape)} and were trained with {tuple(included.shape)}, and the target showed "
            f"{tuple(target.shape)}: these must be (k, n), (k, n) and (n,)."
        )
    counts = included.sum(0)
    if bool((torch.minimum(counts, len(included) - counts) < 2).any()):
        raise InputError("Every record needs 2 shadows that were trained with it and 2 that were not.")
