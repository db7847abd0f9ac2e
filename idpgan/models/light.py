"""Light: the contrasts of an image, taken out of its coefficients and kept beside them as numbers of their own.

The same thing in half the light has half of every coefficient but the brightness, and photographs differ in how much
detail and color they have. A normal distribution cannot say that: it takes the lights of a class for differences of
its shapes. At one contrast, beside its logarithm, the coefficients are close to normal (Wainwright and Simoncelli,
"Scale mixtures of Gaussians and the statistics of natural images", 1999). A drawn image gets its contrasts back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_COARSE = 4  # one of so many coefficients of the brightness is coarse
_MOST = math.log(16)  # of the logarithm of a contrast, and of its negative
VARIANCE = 0.25  # of the logarithm in photographs


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
