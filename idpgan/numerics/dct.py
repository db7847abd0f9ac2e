"""The two-dimensional discrete cosine transform, as an orthonormal basis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from idpgan.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def cosines(height: int, width: int, frequencies: Sequence[tuple[int, int]]) -> Tensor:
    """Return functions of the orthonormal 2-D DCT-II basis (Ahmed, Natarajan and Rao, 1974), row by row.

    Args:
        frequencies: q pairs (u, v), vertical in 0 .. height - 1 and horizontal in 0 .. width - 1.

    Returns:
        (height * width, q) float64, contiguous, with orthonormal columns for different pairs.
    """
    rows = _line(height)[:, [u for u, _ in frequencies]]
    columns = _line(width)[:, [v for _, v in frequencies]]
    return (rows[:, None] * columns).flatten(0, 1).contiguous()


def _line(size: int) -> Tensor:
    """Return the orthonormal 1-D DCT-II basis, (position, frequency) float64."""
    index = torch.arange(size, dtype=torch.float64)
    basis = torch.cos(math.pi / size * (index[:, None] + 0.5) * index) * math.sqrt(2 / size)
    basis[:, 0] /= math.sqrt(2)
    return basis
