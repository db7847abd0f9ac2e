"""A generator in closed form: a normal distribution of low DCT coefficients for each class, and no network at all."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from idpgan.models.config import ModelConfig
from idpgan.models.generator import Generator
from idpgan.numerics.dct import cosines

_BRIGHTNESS_SHARE = 2 / 3  # of the functions of a color image; color differences are smooth,
_CHROMA_VARIANCE = 0.1  # and have so much less variance


class Spectrum(NamedTuple):
    """A cosine basis and the variance of photographs along it, known before any is seen.

    Attributes:
        basis: Orthonormal functions of the pixels, (C H W, q) float64: low DCT frequencies of the brightness, then of
            two color differences where there are colors.
        variance: Of each coefficient, (q,); over all coefficients of an image variances add up to 1.
    """

    basis: Tensor
    variance: Tensor


def count_coefficients(image_shape: Sequence[int], latent_dim: int) -> int:
    """Return q, the coefficients of an image: `ModelConfig.latent_dim`, or fewer for fewer pixels."""
    channels, height, width = image_shape
    return sum(_counts(channels, height * width, latent_dim))


def low_spectrum(image_shape: Sequence[int], latent_dim: int) -> Spectrum:
    """Return the functions of lowest frequency, and how variance falls with frequency.

    The variance of frequency (u, v) is proportional to ``1 / (1 + u^2 + v^2)``: photographs have a power spectrum of
    ``1 / f^2`` (Field, Relations between the statistics of natural images and the response properties of cortical
    cells, 1987), and 1 keeps the mean brightness finite.

    Of a color image two thirds of the ``latent_dim`` functions are of the brightness.
    """
    channels, height, width = (int(side) for side in image_shape)
    ordered = sorted((u * u + v * v, u, v) for u in range(height) for v in range(width))
    falling = torch.tensor([1 / (1 + square) for square, _, _ in ordered], dtype=torch.float64)
    counts = _counts(channels, height * width, latent_dim)
    functions = cosines(height, width, [(u, v) for _, u, v in ordered[: max(counts)]])
    parts, variances = [], []
    planes = zip(_color_axes(channels), counts, strict=True)
    for number, (axis, count) in enumerate(planes):
        parts.append((axis[:, None, None] * functions[:, :count]).flatten(0, 1))
        variances.append(falling[:count] * (_CHROMA_VARIANCE if number else 1.0))
    whole = falling.sum() * (1 + _CHROMA_VARIANCE * (channels - 1))
    return Spectrum(torch.cat(parts, dim=1), torch.cat(variances) / whole)


def _counts(channels: int, pixels: int, latent_dim: int) -> list[int]:
    if channels == 1:
        return [min(latent_dim, pixels)]
    first = math.ceil(latent_dim * _BRIGHTNESS_SHARE)
    second = (latent_dim - first + 1) // 2
    return [min(count, pixels) for count in (first, second, latent_dim - first - second)]


def _color_axes(channels: int) -> Tensor:
    """Return orthonormal rows: brightness, and red-blue and green-magenta differences where there are colors."""
    if channels == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    axes = torch.tensor([[1, 1, 1], [1, 0, -1], [-1, 2, -1]], dtype=torch.float64)
    return axes / axes.norm(dim=1, keepdim=True)


class GaussianGenerator(Generator):
    """Draw coefficients ``mean + factor z`` of the image's class, transform them back, clamp to [-1, 1].

    Args:
        config: The [model] section: ``latent_dim`` coefficients.
        image_shape: (C, H, W) in px of any size, C in {1, 3}.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Not used: before `set_moments` the images are grey.

    Attributes:
        mean: (max(num_classes, 1), q).
        factor: F of the covariance F F^T, (max(num_classes, 1), q, q); missing ranks are columns of zeros.
    """

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        size = count_coefficients(image_shape, config.latent_dim)
        super().__init__(config, image_shape, num_classes, latent_dim=size)
        rows = max(self.num_classes, 1)
        self.mean = nn.Parameter(torch.zeros(rows, size))
        self.factor = nn.Parameter(torch.zeros(rows, size, size))

    def set_moments(self, mean: Tensor, factor: Tensor) -> None:
        """Set means (rows, q) and factors (rows, q, r), r <= q."""
        with torch.no_grad():
            self.mean.copy_(mean)
            self.factor.zero_()
            self.factor[:, :, : factor.shape[2]] = factor

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """See `Generator.forward`."""
        return self.unclamped(z, labels).clamp(-1.0, 1.0)

    def unclamped(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Draw images of coefficients ``z``, (B, q) standard normal; they are not within [-1, 1] yet."""
        rows = torch.zeros(len(z), dtype=torch.int64, device=z.device) if labels is None else labels
        of_all = torch.einsum("kqr,br->bkq", self.factor, z)
        drawn = self.mean[rows] + of_all[torch.arange(len(z), device=z.device), rows]
        basis = _basis(self.image_shape, self.config.latent_dim).to(drawn)
        return (drawn @ basis.T).view(-1, *self.image_shape)


@functools.lru_cache(maxsize=2)  # every batch needs it
def _basis(image_shape: tuple[int, int, int], latent_dim: int) -> Tensor:
    return low_spectrum(image_shape, latent_dim).basis
