"""Detail: what lies above the low coefficients of an image, taken from pictures of dead leaves.

A normal distribution of low frequencies draws images without an edge, and a network that learned from them meets edges
in photographs for the first time. What is above these frequencies costs too much noise to be released, but photographs
have it in common: so it is that of a picture of dead leaves (`idpgan.data.dead_leaves`), as strong as the fine detail
that was drawn. No private image is read for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.data import dead_leaves
from idpgan.data.images import to_float
from idpgan.models.light import Light

_SEED = 7_103  # a constant of the package: the same pictures in every generator
_NUMBERS, _FEWEST, _MOST = 3 << 20, 16, 1024  # of all pictures together, and pictures: 1,024 of 32 x 32 in color
_MOST_GAIN = 3.0
FLIPS = 4


class Detail:
    """Pictures of dead leaves without their low coefficients.

    Args:
        image_shape: (C, H, W).
        basis: Orthonormal functions of the low coefficients, (C H W, q).
        light: Contrasts of these coefficients.
    """

    def __init__(self, image_shape: tuple[int, int, int], basis: Tensor, light: Light) -> None:
        channels, height, width = image_shape
        num = min(max(_NUMBERS // len(basis), _FEWEST), _MOST)
        pictures = to_float(dead_leaves.draw(num, (height, width), channels, seed=_SEED))
        low = pictures.flatten(1).double() @ basis
        self._high = pictures - (low @ basis.T).view(pictures.shape).float()
        self._light, self._fine = light, light.fine(low)

    def added(self, images: Tensor, coefficients: Tensor, place: Tensor) -> Tensor:
        """Return images (B, C, H, W) with detail of their own contrast.

        Args:
            coefficients: Their low ones, (B, q).
            place: Uniform numbers in (0, 1) that choose picture and flip, (B,).
        """
        chosen = (place.double() * FLIPS * len(self._high)).long().clamp(0, FLIPS * len(self._high) - 1).cpu()
        picture, flip = chosen // FLIPS, chosen % FLIPS
        high = self._high[picture]
        high = torch.where((flip % 2 == 1)[:, None, None, None], high.flip(3), high)
        high = torch.where((flip > 1)[:, None, None, None], high.flip(2), high)
        fine = self._light.fine(coefficients) - self._fine[picture].to(coefficients)
        return images + fine.exp().clamp(max=_MOST_GAIN)[:, None, None, None] * high.to(images)
