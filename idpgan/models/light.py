"""Light: how strong an image's contrast is, taken out of its coefficients and kept beside them as a number of its own.

The same thing in half the light has half of every coefficient but the brightness. A normal distribution cannot say
that: it takes the lights of a class for differences of its shapes. So all coefficients but the first, which is the
brightness, are divided by the image's contrast, and the logarithm of the contrast is one coefficient more. A drawn
image gets its contrast back.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TYPICAL, _LEAST = 0.35, 1 / 32  # standard deviations of pixels on [-1, 1], where none is above 1
VARIANCE = 0.25  # of the logarithm in photographs


def without_light(coefficients: Tensor, images: Tensor) -> Tensor:
    """Return the coefficients (B, q) of images (B, C, H, W) in [-1, 1] at one contrast, and its logarithm, (B, q + 1).

    It is a bounded function of each image by itself.
    """
    contrast = images.flatten(1).to(coefficients).std(1, correction=0, keepdim=True).clamp(min=_LEAST) / _TYPICAL
    return torch.cat([coefficients[:, :1], coefficients[:, 1:] / contrast, contrast.log()], 1)


def with_light(numbers: Tensor) -> Tensor:
    """Return the coefficients (B, q) that `without_light` gave such numbers (B, q + 1)."""
    contrast = numbers[:, -1:].clamp(math.log(_LEAST / _TYPICAL), math.log(1 / _TYPICAL)).exp()
    return torch.cat([numbers[:, :1], contrast * numbers[:, 1:-1]], 1)
