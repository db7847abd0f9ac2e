r"""Linear queries ``A X B^T`` of an image X (m, n) whose sensitivity is a constant: block sums, low cosines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from idpgan.errors import InputError
from idpgan.numerics.dct import cosines
from idpgan.privacy.guarantee import Unit
from idpgan.publish.sound.numbers import Sensitivity

PIXEL_RANGE = 1.0  # R: images are clamped to [0, 1] before anything else
ROUNDING = 1 + 2.0**-20  # float64 sums of up to 2^20 pixels err by far less than this part of a sensitivity


def touched_pixels(shape: Sequence[int], unit: Unit) -> int:
    """Return how many pixels of an (m, n) image one unit holds: 1, m or m n.

    Raises:
        InputError: For another unit.
    """
    rows, columns = shape
    sizes = {Unit.PIXEL: 1, Unit.COLUMN: rows, Unit.IMAGE: rows * columns}
    if unit not in sizes:
        raise InputError(f"unit = {unit} is no part of an image; known: {', '.join(sizes)}.")
    return sizes[unit]


def pixel_sensitivity(shape: Sequence[int], unit: Unit) -> Sensitivity:
    r"""Return the sensitivity of the pixels themselves.

    Clamping acts pixel by pixel, so the d pixels of a unit differ by at most R = 1 each afterwards: by d R in L1 and
    sqrt(d) R in L2.
    """
    d = touched_pixels(shape, unit)
    return Sensitivity(d * PIXEL_RANGE, math.sqrt(d) * PIXEL_RANGE, PIXEL_RANGE, d)


@dataclass(frozen=True, eq=False)
class Query:
    r"""``A X B^T`` with public matrices.

    Attributes:
        A: (p, m) float64, acts on columns.
        B: (q, n) float64, acts on rows.
    """

    A: Tensor
    B: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        """Answer for images (N, m, n): (N, p, q) float64."""
        return self.A.to(images.device) @ images.double() @ self.B.to(images.device).mT

    def sensitivity(self, unit: Unit) -> Sensitivity:
        r"""Return how far neighbors are apart.

        Let D = X - X', entries in [-R, R], zero outside of the unit; a_i and b_j are the columns of A and B, ||.|| is
        the largest singular value, r(A) the vector of the sums of |A| along its rows.

        * Pixel (i, j): ``A D B^T = D_ij a_i b_j^T``. Every norm of an outer product used here is the product of the
          norms, and the bound is the largest product, which is reached.
        * Column j: ``(A d) b_j^T`` with |d_i| <= R. Entry by entry ``|A d| <= R r(A)``, which bounds every norm; and
          ``|A d|_2 <= ||A|| sqrt(m) R``, hence ``|A d|_1 <= sqrt(p) ||A|| sqrt(m) R``. The smaller is taken.
        * Image: entry by entry ``|A D B^T| <= R r(A) r(B)^T``; and ``|A D B^T|_2 <= ||A|| ||B|| sqrt(m n) R``, hence
          sqrt(p q) times that in L1. The smaller is taken.

        A number moves only if its row of A and its row of B meet the unit, which bounds how many move. Everything is
        widened by `ROUNDING`: the answers are computed in floating point.
        """
        (p, m), (q, n) = self.A.shape, self.B.shape
        touched_pixels((m, n), unit)
        A, B = self.A.abs(), self.B.abs()
        if unit is Unit.PIXEL:
            wide, high = _norms(A), _norms(B)
            l1, l2 = wide.l1 * high.l1, wide.l2 * high.l2
        elif unit is Unit.COLUMN:
            wide, high = _norms(A, whole=True), _norms(B)
            spectral = float(torch.linalg.matrix_norm(self.A, 2)) * math.sqrt(m)
            l1 = min(wide.l1, math.sqrt(p) * spectral) * high.l1
            l2 = min(wide.l2, spectral) * high.l2
        else:
            wide, high = _norms(A, whole=True), _norms(B, whole=True)
            spectral = math.prod(float(torch.linalg.matrix_norm(M, 2)) for M in (self.A, self.B)) * math.sqrt(m * n)
            l1 = min(wide.l1 * high.l1, math.sqrt(p * q) * spectral)
            l2 = min(wide.l2 * high.l2, spectral)
        R = PIXEL_RANGE * ROUNDING
        return Sensitivity(l1 * R, l2 * R, wide.most * high.most * R, wide.numbers * high.numbers)


def _norms(absolute: Tensor, *, whole: bool = False) -> Sensitivity:
    """Return the largest norms of the columns of |A|, or those of the sums along its rows, and how many are not 0."""
    columns = absolute.sum(1, keepdim=True) if whole else absolute
    return Sensitivity(
        float(columns.sum(0).amax()),
        float(columns.square().sum(0).amax().sqrt()),
        float(columns.amax()),
        int((columns > 0).sum(0).amax()),
    )


def block_sums(shape: Sequence[int], side: int) -> Query:
    """Return the sums over blocks of ``side`` x ``side`` pixels; those at the lower and right edge may be smaller."""

    def lines(size: int) -> Tensor:
        return torch.nn.functional.one_hot(torch.arange(size) // side).double().T

    return Query(lines(shape[0]), lines(shape[1]))


def low_cosines(shape: Sequence[int], count: int) -> Query:
    """Return the ``count`` x ``count`` lowest frequencies of the orthonormal 2-D DCT, or as many as the image has."""

    def lines(size: int) -> Tensor:
        return cosines(size, 1, [(u, 0) for u in range(min(count, size))]).T

    return Query(lines(shape[0]), lines(shape[1]))
