"""v(x), what photos are asked: bounded numbers of an image, fixed by portraits and by no private image.

Summary statistics as simulated moments compare them: what is summed has norm at most 1 (`SummaryStatistics`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from idpgan.data.images import to_float
from idpgan.errors import InputError
from idpgan.models.camera import LIGHT, SHARPNESS, light, sharpness
from idpgan.models.orientations import ORIENTATIONS, orientations

_EDGES = 150  # principal components
_FARTHEST = 4.0  # standard deviations
_QUANTILE = 0.9  # of the portraits' lengths: the radius
_AT_ONCE = 500
FEWEST = 2 * _EDGES  # portraits: fewer do not fix so many directions
SHARES = {"edges": 0.5, "light": 0.4, "sharpness": 0.1}  # of the squared norm that the count leaves
_NUMBERS: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {  # of an image, how many, and how many are kept
    "edges": (orientations, ORIENTATIONS, _EDGES),
    "light": (light, LIGHT, LIGHT),
    "sharpness": (sharpness, SHARPNESS, SHARPNESS),
}
BLOCKS = {"light": (8, 16, 32, 64, 128, 152), "sharpness": (9,) * 12}  # octaves of frequency; cells of a sub-band


def refuse_few(num: int) -> None:
    """Raise `InputError` where so many portraits do not fix the directions."""
    if num < FEWEST:
        raise InputError(
            f"{num:,} portraits are too few to compare photos with, and {FEWEST} the least. Draw more: idpgan people "
            "PORTRAITS --num 12000."
        )


class Statistic(nn.Module):
    """Numbers of an image by constants of portraits: ``(x - center) @ basis``, cut, and shortened to the radius.

    Attributes:
        center: (D,) float64.
        basis: (D, k).
        radius: 0-d.
    """

    def __init__(self, size: int, numbers: int) -> None:
        super().__init__()
        self.center = nn.Buffer(torch.zeros(size, dtype=torch.float64))
        self.basis = nn.Buffer(torch.zeros(size, numbers, dtype=torch.float64))
        self.radius = nn.Buffer(torch.ones((), dtype=torch.float64))

    def learn(self, of_portraits: Tensor) -> None:
        """Take the constants from the numbers of portraits, float64 (N, D): principal components where k < D."""
        self.center.copy_(of_portraits.mean(0))
        centered, numbers = of_portraits - self.center, self.basis.shape[1]
        if numbers < centered.shape[1]:
            self.basis.copy_(_components(centered, numbers))
        else:
            self.basis.copy_(torch.diag(1 / centered.std(0).clamp(min=1e-6)))
        self.radius.copy_((centered @ self.basis).clamp(-_FARTHEST, _FARTHEST).norm(dim=1).quantile(_QUANTILE))

    def forward(self, numbers: Tensor) -> Tensor:
        """Return float64 (B, k), none longer than the radius, of numbers (B, D)."""
        return self.shortened(((numbers.double() - self.center) @ self.basis).clamp(-_FARTHEST, _FARTHEST))

    def back(self, change: Tensor) -> Tensor:
        """Return what a change (k,) is of the numbers themselves, where each was taken by its own deviation."""
        return change / self.basis.diagonal().to(change.device)

    def shortened(self, vectors: Tensor) -> Tensor:
        """Return vectors (B, k) none of which is longer than the radius."""
        return vectors * (self.radius.to(vectors.device) / vectors.norm(dim=1, keepdim=True)).clamp(max=1)


def _components(centered: Tensor, numbers: int) -> Tensor:
    """Return principal components of rows (N, D), each by its standard deviation, (D, numbers)."""
    few = len(centered) < centered.shape[1]  # then the smaller of the two matrices of products
    values, vectors = torch.linalg.eigh((centered @ centered.T if few else centered.T @ centered) / len(centered))
    values, vectors = values[-numbers:].clamp(min=1e-6 * float(values[-1])), vectors[:, -numbers:]
    if few:
        vectors = centered.T @ vectors / (len(centered) * values).sqrt()
    return vectors / values.sqrt()


class Estimates(NamedTuple):
    """What sums say.

    Attributes:
        counts: How many images each row has, (rows,).
        off: Standard deviation of the noise on that.
        means: Of each statistic, (rows, k).
        noise: Standard deviation of the noise on each number of these, (rows, 1).
    """

    counts: Tensor
    off: float
    means: dict[str, Tensor]
    noise: dict[str, Tensor]


class SummaryStatistics(nn.Module):
    r"""The vector v(x) of an image x, which is summed: a function of x and of constants of portraits alone.

    v is ``(sqrt(t), sqrt((1 - t) a_i) s_i / R_i, ...)``, with a_i the share of a statistic; the shares add up to 1. Of
    "edges" s are the 150 principal components of histograms of orientations, of "light" the 400 lowest frequencies, of
    "sharpness" the logarithms of 108 energies. Each number is by the portraits' mean and standard deviation, cut at 4
    of these, and s_i is shortened to the radius R_i where it is longer.

    Proof of the norm. ``|s_i| <= R_i``, so ``|v|^2 = t + (1 - t) sum of a_i |s_i|^2 / R_i^2 <= 1`` for every image.
    Center, basis and R_i are of the portraits, which no private image has touched, and v is computed of one image at a
    time. A null record adds v = 0, count included, so that zeroing out a record moves one sum by at most 1
    (`privacy.sums` has the rest: rounding, other relations, people).

    Args:
        asked: The statistics, some of `SHARES`.

    Attributes:
        dimensions: Length of v.
    """

    COUNT_SHARE = 0.05  # t: a count that is wrong by 2 % moves a mean by less than the noise on it

    def __init__(self, asked: Sequence[str] = tuple(SHARES)) -> None:
        super().__init__()
        self.asked = tuple(asked)
        self.dimensions = 1 + sum(_NUMBERS[name][2] for name in asked)
        for name in asked:
            self.add_module(name, Statistic(*_NUMBERS[name][1:]))

    def learn(self, images: Tensor) -> Self:
        """Take all constants from portraits, uint8 (N, C, H, W).

        Raises:
            InputError: If there are too few.
        """
        refuse_few(len(images))
        for name in self.asked:
            numbers = torch.cat([_NUMBERS[name][0](to_float(part)).double() for part in images.split(_AT_ONCE)])
            self.part(name).learn(numbers)
        return self

    def forward(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return v of images (B, C, H, W) in [-1, 1], (B, `dimensions`) float64 of norm at most 1; rows: of no use."""
        parts = [self._scale(name) * self._of(name, images) for name in self.asked]
        count = parts[0].new_full((len(images), 1), math.sqrt(self.COUNT_SHARE))
        return torch.cat([count, *parts], 1)

    def of(self, name: str, images: Tensor) -> Tensor:
        """Return s of a statistic of images, uint8 (N, C, H, W), as float64 (N, k) on the CPU."""
        device = self.part(name).radius.device
        return torch.cat([self._of(name, to_float(part.to(device))).cpu() for part in images.split(_AT_ONCE)])

    def estimates(self, sums: Tensor, noise_std: float) -> Estimates:
        """Read sums of v with noise, (rows, `dimensions`) float64.

        Args:
            noise_std: Standard deviation of the noise on each number of them.
        """
        counts, *parts = sums.split([1, *(_NUMBERS[name][2] for name in self.asked)], 1)
        counts = counts / math.sqrt(self.COUNT_SHARE)
        means, noise = {}, {}
        for name, part in zip(self.asked, parts, strict=True):
            scale = 1 / (self._scale(name) * counts.clamp(min=1))
            means[name], noise[name] = self.part(name).shortened(part * scale), noise_std * scale
        return Estimates(counts[:, 0], noise_std / math.sqrt(self.COUNT_SHARE), means, noise)

    def _scale(self, name: str) -> float:
        """Return the factor of s in v."""
        share = SHARES[name] / sum(SHARES[one] for one in self.asked)
        return math.sqrt((1 - self.COUNT_SHARE) * share) / float(self.part(name).radius)

    def _of(self, name: str, images: Tensor) -> Tensor:
        return self.part(name)(_NUMBERS[name][0](images))

    def part(self, name: str) -> Statistic:
        """Return the constants of a statistic."""
        return cast(Statistic, self.get_submodule(name))
