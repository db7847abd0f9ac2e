"""How light lies on pictures, and how sharp they are place by place: numbers of an image, and pictures that get others.

Both are of the brightness alone: colors stay as they are. `light` is the lowest frequencies of an image, `sharpness`
the logarithms of the energies of its sub-bands in 3 x 3 cells. Sub-bands add up to the image, so that a gain for each
makes a picture again (Heeger and Bergen, "Pyramid-based texture analysis/synthesis", 1995; the filter is the cubic
spline of Starck, Fadili and Murtagh, "The undecimated wavelet decomposition and its reconstruction", 2007).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from idpgan.models.gaussian import low_spectrum

LIGHT = 400  # numbers
_SCALES, _CELLS = 4, 3  # of the sub-bands, each in three directions; cells a side
SHARPNESS = 3 * _SCALES * _CELLS**2  # numbers
_TAPS = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
_LEAST_ENERGY = 1e-5  # mean square of a sub-band on [-1, 1]
_MOST = math.log(4.0)  # of a gain


def light(images: Tensor) -> Tensor:
    """Return the lowest frequencies of the brightness of images (B, C, H, W), float64 (B, LIGHT)."""
    return images.mean(1).flatten(1).double() @ _frequencies(*images.shape[2:]).to(images.device)


def lit(images: Tensor, change: Tensor) -> Tensor:
    """Return images (B, C, H, W) whose frequencies have changed by (LIGHT,), in all channels alike."""
    added = _frequencies(*images.shape[2:]).to(images.device) @ change.double()
    return images + added.view(images.shape[2:]).to(images)


def sharpness(images: Tensor) -> Tensor:
    """Return the logarithms of mean squares of sub-bands of brightness (B, C, H, W), float64 (B, SHARPNESS)."""
    *bands, _ = _bands(images.double().mean(1, keepdim=True))
    energies = functional.adaptive_avg_pool2d(torch.cat(bands, 1).square(), _CELLS)
    return (energies + _LEAST_ENERGY).log().flatten(1)


def sharpened(images: Tensor, change: Tensor) -> Tensor:
    """Return images whose sub-bands have changed by (SHARPNESS,), logarithms of energies, between cells smoothly."""
    gains = (change.view(-1, 1, _CELLS, _CELLS) / 2).clamp(-_MOST, _MOST).exp().to(images)
    smooth = functional.interpolate(gains, images.shape[2:], mode="bilinear")
    *bands, rest = _bands(images)
    return sum((gain * band for gain, band in zip(smooth, bands, strict=True)), rest)


def _bands(images: Tensor) -> Iterator[Tensor]:
    """Yield sub-bands (B, C, H, W), the finest first and what is left last; they add up to the images."""
    for scale in range(_SCALES):
        across = _smooth(images, 2**scale, 3)
        both = _smooth(across, 2**scale, 2)
        rest = images - across
        along = _smooth(rest, 2**scale, 2)
        yield from (across - both, along, rest - along)
        images = both
    yield images


def _smooth(images: Tensor, step: int, axis: int) -> Tensor:
    """Smooth along an axis with taps ``step`` px apart, mirrored at the edge."""
    size = images.shape[axis]
    place = torch.arange(size, device=images.device)[:, None] + step * torch.arange(-2, 3, device=images.device)
    place = place.abs()
    place = torch.where(place >= size, 2 * (size - 1) - place, place)
    matrix = torch.zeros(size, size).to(images)
    matrix.scatter_add_(1, place, torch.tensor(_TAPS).to(images).expand(size, -1))
    return images @ matrix.T if axis == 3 else matrix @ images


@functools.lru_cache(maxsize=1)
def _frequencies(height: int, width: int) -> Tensor:
    return low_spectrum((1, height, width), LIGHT).basis
