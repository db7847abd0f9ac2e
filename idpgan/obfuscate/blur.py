"""Gaussian blur, everyone's default.

It hides nothing from a network that is trained on blurred faces: McPherson, Shokri, Shmatikov, "Defeating image
obfuscation with deep learning" (2016), arXiv:1609.00408.
"""

from __future__ import annotations

import math

import pydantic
import torch
from torch import Tensor
from torch.nn import functional

from idpgan.config import Section
from idpgan.obfuscate.base import Obfuscator

_REACH = 4  # standard deviations to either side: what lies beyond weighs less than 1e-4


class BlurConfig(Section):
    """Options of `blur`.

    Attributes:
        sigma: Standard deviation of the filter, px.
    """

    sigma: float = pydantic.Field(3.0, gt=0, le=1000)


class Blur(Obfuscator):
    """Convolve with a normal density cut off at 4 sigma; pixels from outside repeat the border."""

    Config = BlurConfig
    name = "blur"

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        blurred = images
        for dim in (2, 3):
            blurred = self._along(blurred, dim)
        return blurred.clamp(0, 1)

    def _along(self, images: Tensor, dim: int) -> Tensor:
        """Filter along one side: a matrix (n, n), in which the weights beyond the border fall on the border."""
        size, reach = images.shape[dim], math.ceil(_REACH * self.config.sigma)
        offsets = torch.arange(-reach, reach + 1, device=images.device)
        weights = torch.exp(-0.5 * (offsets / self.config.sigma).square())
        weights = weights / weights.sum()
        taken = (torch.arange(size, device=images.device)[:, None] + offsets).clamp(0, size - 1)
        matrix = functional.one_hot(taken, size).to(images) * weights[None, :, None]  # (n, offsets, n)
        return torch.matmul(images.transpose(dim, 3), matrix.sum(1).T).transpose(dim, 3)
