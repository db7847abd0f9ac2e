"""Light: the contrasts of an image, taken out of its coefficients and kept beside them as numbers of their own.

The same thing in half the light has half of every coefficient but the brightness, and photographs differ in how much
detail and color they have. A normal distribution cannot say that: it takes the lights of a class for differences of
its shapes. At one contrast, beside its logarithm, the coefficients are close to normal (Wainwright and Simoncelli,
"Scale mixtures of Gaussians and the statistics of natural images", 1999). A drawn image gets its contrasts back.

Detail is what lies above the low coefficients. A normal distribution of low frequencies draws images without an edge,
and a network that learned from them meets edges in photographs for the first time. It costs too much noise to be
released, but photographs have it in common: so it is that of a picture of dead leaves (`idpgan.data.dead_leaves`), as
strong as the fine detail that was drawn. No private image is read for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from idpgan.data import dead_leaves
from idpgan.data.images import to_float

_COARSE = 4  # one of so many coefficients of the brightness is coarse
_MOST = math.log(16)  # of the logarithm of a contrast, and of its negative
VARIANCE = 0.25  # of the logarithm in photographs
_SEED = 7_103  # a constant of the package: the same pictures in every generator
_NUMBERS = 3 << 20  # of all pictures together
_FEWEST, _MOST_PICTURES = 16, 1024  # of 32 x 32 in color: the most
_MOST_GAIN = 3.0
FLIPS = 4


class Light:
    """Contrasts of coefficients: of coarse and of fine brightness, and of color differences where there are colors.

    A contrast is the root of the mean square of its coefficients in units of what photographs have of each, within
    1/16 and 16: a bounded function of the image alone. The first coefficient, the mean brightness, is in none.

    Args:
        std: Standard deviations of the coefficients in photographs, (q,) float64.
        counts: Coefficients of the brightness, and of each color difference.
    """

    def __init__(self, std: Tensor, counts: Sequence[int]) -> None:
        sizes = torch.tensor([1, *band_sizes(counts)])
        of = torch.eye(len(sizes), dtype=torch.float64).repeat_interleave(sizes, 0)[:, 1:]
        self._std, self._of = std, of  # (q, bands), 1 where a coefficient is in a band
        self._at = int(counts[0] > _COARSE)  # the band of fine brightness: the first where nothing is coarse

    def taken_out(self, coefficients: Tensor) -> Tensor:
        """Return coefficients (B, q) at contrast 1, and the logarithms of the contrasts, (B, q + bands)."""
        std, of = self._std.to(coefficients), self._of.to(coefficients)
        power = (coefficients / std).square() @ (of / of.sum(0))
        logs = (power.clamp(min=1e-30).log() / 2).clamp(-_MOST, _MOST)
        return torch.cat([coefficients / (logs @ of.T).exp(), logs], 1)

    def fine(self, coefficients: Tensor) -> Tensor:
        """Return the logarithm of the contrast of fine brightness of coefficients (B, q), (B,)."""
        return self.taken_out(coefficients)[:, len(self._std) + self._at]

    def given_back(self, numbers: Tensor) -> Tensor:
        """Return the coefficients (B, q) that `taken_out` gave such numbers (B, q + bands)."""
        of = self._of.to(numbers)
        coefficients, logs = numbers.split(list(of.shape), 1)
        return coefficients * (logs.clamp(-_MOST, _MOST) @ of.T).exp()


def band_sizes(counts: Sequence[int]) -> list[int]:
    """Return how many coefficients each contrast is of; no band is empty."""
    coarse = max(counts[0] // _COARSE, 1)
    return [size for size in (coarse - 1, counts[0] - coarse, sum(counts[1:])) if size]


class Detail:
    """Pictures of dead leaves without their low coefficients.

    Args:
        image_shape: (C, H, W).
        basis: Orthonormal functions of the low coefficients, (C H W, q).
        light: Contrasts of these coefficients.
    """

    def __init__(self, image_shape: tuple[int, int, int], basis: Tensor, light: Light) -> None:
        channels, height, width = image_shape
        num = min(max(_NUMBERS // len(basis), _FEWEST), _MOST_PICTURES)
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
