"""Pixelation (mosaic): each block becomes its mean, everyone's other default.

Broken as blur is: McPherson, Shokri, Shmatikov, "Defeating image obfuscation with deep learning" (2016),
arXiv:1609.00408. With noise sized for it, it is the publisher `pix` (Fan 2018), which has a price.
"""

from __future__ import annotations

import pydantic
import torch
from torch import Tensor
from torch.nn import functional

from idpgan.config import Section
from idpgan.obfuscate.base import Obfuscator


class PixelateConfig(Section):
    """Options of `pixelate`.

    Attributes:
        block: Side of a block, px; those at the right and lower edge may be smaller.
    """

    block: int = pydantic.Field(8, ge=1, le=1 << 16)


class Pixelate(Obfuscator):
    """Replace every pixel by the mean of its block."""

    Config = PixelateConfig
    name = "pixelate"

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        (height, width), block = images.shape[2:], self.config.block
        means = functional.avg_pool2d(images, block, ceil_mode=True, count_include_pad=False)
        return means.repeat_interleave(block, 2).repeat_interleave(block, 3)[:, :, :height, :width]
