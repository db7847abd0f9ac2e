"""The public grid on which one-shot releases live, so that noise can be drawn in exact integer arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch

from idpgan.errors import InputError

_MAX_STEPS = 1 << 53  # beyond this float64 skips integers


@dataclass(frozen=True)
class Grid:
    """Multiples of a public ``step``, a power of two, so that scaling to and from steps is exact in float64.

    Rounding a real query moves each of its d coordinates by at most half a step. The difference of two neighbors moves
    by at most one step per coordinate, so the rounded query's sensitivity is ``sensitivity / step + d`` steps in L1 and
    ``sensitivity / step + sqrt(d)`` in L2 (triangle inequality). A sum of records that were rounded *before* summation
    is whole already: pass the norm bound of one rounded record and d = 0.
    """

    step: float

    def __post_init__(self) -> None:
        if not (0 < self.step < math.inf and math.frexp(self.step)[0] == 0.5):
            raise InputError(f"grid step = {self.step} must be a power of two, such as {2**-10}.")

    @classmethod
    def fine(cls, sensitivity: float, dimensions: int, *, norm: int, resolution: int = 1000) -> Self:
        """Return the coarsest grid on which rounding adds about 1/resolution to the sensitivity (at most 2/resolution).

        Args:
            sensitivity: Sensitivity of the unrounded query, a declared constant, > 0.
            dimensions: Number d of coordinates that one neighbor can change, >= 1.
            norm: 1 or 2.
            resolution: 1000 means that rounding costs 0.1 to 0.2 % of epsilon.
        """
        if not 0 < sensitivity < math.inf or dimensions < 1 or norm not in (1, 2):
            raise InputError(f"no grid for sensitivity {sensitivity}, {dimensions} dimensions, norm L{norm}.")
        widest = sensitivity / (resolution * (dimensions if norm == 1 else math.sqrt(dimensions)))
        return cls(2.0 ** math.floor(math.log2(widest)))

    def l1(self, sensitivity: float, dimensions: int) -> int:
        """Return the L1 sensitivity of the rounded query in whole steps (rounded up)."""
        return math.ceil(sensitivity / self.step) + dimensions

    def l2(self, sensitivity: float, dimensions: int) -> float:
        """Return the L2 sensitivity of the rounded query in steps."""
        return sensitivity / self.step + math.sqrt(dimensions)

    def round(self, values: torch.Tensor) -> torch.Tensor:
        """Return the nearest number of steps, int64; raises `ValueError` if it is not finite or beyond 2^53."""
        steps = values.double() / self.step
        if not bool((steps.abs() < _MAX_STEPS).all()):  # NaN and infinity fail the comparison too
            raise ValueError(f"values must be finite and below 2^53 grid steps of {self.step:g}.")
        return steps.round().long()

    def value(self, steps: torch.Tensor) -> torch.Tensor:
        """Return the real value of whole steps, float64: exact."""
        return steps.double() * self.step
