"""Histograms of orientations, and s(x), a short bounded vector of them: fixed by portraits, and by no private image.

How edges lie in each part of a face says who smiles, where somebody looks and where the light is, whatever the camera
(Dalal and Triggs, "Histograms of oriented gradients for human detection", 2005). All of it is in closed form.
"""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from idpgan.data.images import to_float
from idpgan.errors import InputError

_SIDE, _STRIDE, _CELL, _BINS = 48, 3, 6, 9  # px that images are brought to; of cells; orientations without sign
_CUT, _LEAST_ENERGY = 0.6, 1e-3  # of a normalized cell; squared gradient of an even ground, on [-1, 1]
_NUMBERS = 150  # principal components
_FARTHEST = 4.0  # standard deviations
_QUANTILE = 0.9  # of the portraits' lengths: the radius
_AT_ONCE = 500
FEWEST = 2 * _NUMBERS  # portraits: fewer do not fix so many directions


def orientations(images: Tensor) -> Tensor:
    """Return the histograms of images (B, C, H, W) in [-1, 1], (B, D) float32: of their brightness, at 48 x 48 px."""
    grey = images.mean(1, keepdim=True)
    if grey.shape[2:] != (_SIDE, _SIDE):
        grey = functional.interpolate(grey, (_SIDE, _SIDE), mode="area" if min(grey.shape[2:]) > _SIDE else "bilinear")
    padded = functional.pad(grey, (1, 1, 1, 1), mode="replicate")
    across, down = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2], padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    place = torch.atan2(down, across) % math.pi * (_BINS / math.pi)
    low, length = place.floor(), (across.square() + down.square()).sqrt()
    votes = torch.zeros(len(grey), _BINS, _SIDE, _SIDE, device=grey.device)
    for side, weight in ((low, 1 - (place - low)), (low + 1, place - low)):
        votes.scatter_add_(1, side.long() % _BINS, length * weight)
    rise = torch.cat([torch.arange(1, _CELL + 1), torch.arange(_CELL - 1, 0, -1)]).to(grey)
    window = rise[:, None] * rise / rise.sum().square()
    cells = functional.conv2d(votes.flatten(0, 1)[:, None], window[None, None], stride=_STRIDE, padding=_STRIDE)
    cells = cells.view(len(grey), _BINS, *cells.shape[2:])
    energy = functional.pad(cells.square().sum(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    return (cells / (functional.avg_pool2d(energy, 3, 1) + _LEAST_ENERGY).sqrt()).clamp(max=_CUT).flatten(1)


def refuse_few(num: int) -> None:
    """Raise `InputError` where so many portraits do not fix the directions."""
    if num < FEWEST:
        raise InputError(
            f"{num:,} portraits are too few to compare photos with, and {FEWEST} the least. Draw more: idpgan people "
            "PORTRAITS --num 12000."
        )


class OrientationStatistics(nn.Module):
    r"""The vector s(x) of an image x, and v(x), which is summed: functions of x and of constants of portraits alone.

    s holds the 150 principal components of the portraits' histograms, by the portraits' mean and standard deviation,
    cut at 4 of these, and shortened to the radius R where s is longer. v is ``(sqrt(t), sqrt(1 - t) s / R)``.

    Proof of the norm. ``|s| <= R``, so ``|v|^2 = t + (1 - t) |s|^2 / R^2 <= 1`` for every image. Center, basis, scale
    and R are of the portraits, which no private image has touched, and v is computed of one image at a time. A null
    record adds v = 0, count included, so that zeroing out a record moves one sum by at most 1 (`privacy.sums` has the
    rest: rounding, other relations, people).

    Attributes:
        center: Of the histograms, (D,).
        basis: (D, 150), each principal component by its standard deviation.
        radius: R, 0-d.
    """

    COUNT_SHARE = 0.05  # t: a count that is wrong by 2 % moves a mean by less than the noise on it
    dimensions = 1 + _NUMBERS

    def __init__(self) -> None:
        super().__init__()
        size = _BINS * ((_SIDE + 1 - 2 * _CELL + 2 * _STRIDE) // _STRIDE + 1) ** 2
        self.center = nn.Buffer(torch.zeros(size, dtype=torch.float64))
        self.basis = nn.Buffer(torch.zeros(size, _NUMBERS, dtype=torch.float64))
        self.radius = nn.Buffer(torch.ones((), dtype=torch.float64))

    @classmethod
    def learn(cls, images: Tensor) -> Self:
        """Take all constants from portraits, uint8 (N, C, H, W).

        Raises:
            InputError: If there are too few.
        """
        refuse_few(len(images))
        made = cls()
        histograms = torch.cat([orientations(to_float(part)).double() for part in images.split(_AT_ONCE)])
        made.center.copy_(histograms.mean(0))
        centered = histograms - made.center
        few = len(centered) < centered.shape[1]  # then the smaller of the two matrices of products
        values, vectors = torch.linalg.eigh((centered @ centered.T if few else centered.T @ centered) / len(centered))
        values, vectors = values[-_NUMBERS:].clamp(min=1e-6 * float(values[-1])), vectors[:, -_NUMBERS:]
        if few:
            vectors = centered.T @ vectors / (len(centered) * values).sqrt()
        made.basis.copy_(vectors / values.sqrt())
        made.radius.copy_((centered @ made.basis).clamp(-_FARTHEST, _FARTHEST).norm(dim=1).quantile(_QUANTILE))
        return made

    def forward(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return v of images (B, C, H, W) in [-1, 1], (B, `dimensions`) float64 of norm at most 1; rows: of no use."""
        s, share = self._of(images) / self.radius, self.COUNT_SHARE
        return torch.cat([s.new_full((len(s), 1), math.sqrt(share)), math.sqrt(1 - share) * s], 1)

    def statistics(self, images: Tensor) -> Tensor:
        """Return s of images, uint8 (N, C, H, W), as float64 (N, 150) on the CPU."""
        device = self.radius.device
        return torch.cat([self._of(to_float(part.to(device))).cpu() for part in images.split(_AT_ONCE)])

    def means(self, sums: Tensor, noise_std: float) -> tuple[Tensor, Tensor]:
        """Return the mean of s of each row, (rows, 150), and the noise on each of its numbers, (rows, 1).

        Args:
            sums: Of v, with noise, (rows, `dimensions`) float64.
            noise_std: Of the noise on each number of them.
        """
        counts = self.counts(sums, noise_std)[0].clamp(min=1)[:, None]
        scale = self.radius.cpu() / (math.sqrt(1 - self.COUNT_SHARE) * counts)
        return self._shortened(sums[:, 1:] * scale), noise_std * scale

    def counts(self, sums: Tensor, noise_std: float) -> tuple[Tensor, float]:
        """Return how many images the sums say that each row has, (rows,), and the noise on that."""
        share = math.sqrt(self.COUNT_SHARE)
        return sums[:, 0] / share, noise_std / share

    def _of(self, images: Tensor) -> Tensor:
        """Return s of images (B, C, H, W) in [-1, 1], float64."""
        numbers = (orientations(images).double() - self.center) @ self.basis
        return self._shortened(numbers.clamp(-_FARTHEST, _FARTHEST))

    def _shortened(self, vectors: Tensor) -> Tensor:
        return vectors * (self.radius.to(vectors.device) / vectors.norm(dim=1, keepdim=True)).clamp(max=1)
