r"""The real Fourier basis of a periodic axis, and filters as small blocks in it.

A filter followed by sampling every f-th point couples frequencies that the coarser grid cannot tell apart, and a real
signal couples k with -k. So the h frequencies of an axis fall into h / (2 f) groups of 2 f: all k with the same
``min(k mod h', -k mod h')``, h' = h / f, where 0 and h' / 2, each its own mirror image, share a group. In the basis of
cosines and sines every group has 2 f numbers before the filter and 2 after it, and a filter of an image is one matrix
of (2 f)^2 columns and 4 rows for each pair of groups. Sums over short axes are matrix products: for sides up to
some hundred they take less time than fast transforms of the same numbers, whose results have to be sorted.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Axis:
    """One axis, its frequencies sorted by groups: those of any factor lie together.

    Args:
        side: h.
        coarsest: h' of the coarsest grid; h is a power of two times it, and it is even.

    Attributes:
        basis: R, float64 (h, h): orthonormal rows, cosines and sines of all frequencies in their groups.
        frequencies: k in 0 .. h - 1, int64 (h,), in the same groups.
    """

    def __init__(self, side: int, coarsest: int) -> None:
        self.side = side
        known, place = torch.arange(side // 2 + 1), torch.arange(side, dtype=torch.float64)
        angles = 2 * math.pi / side * torch.outer(known.double(), place)
        waves = torch.cat([angles.cos(), angles[1 : (side + 1) // 2].sin()])  # the sine of 0 and of h / 2 is zero
        of_wave = torch.cat([known, known[1 : (side + 1) // 2]])
        self.basis = (waves / waves.norm(dim=1, keepdim=True))[_by_group(of_wave, side, coarsest)]
        self.frequencies = _by_group(torch.arange(side), side, coarsest)

    def spectra(self, size: int) -> Tensor:
        """Return what each basis function has at each frequency of its group, complex128 (h / size, size, size)."""
        waves = torch.exp(-2j * math.pi / self.side * torch.outer(self.frequencies, torch.arange(self.side)).double())
        coefficients = waves @ self.basis.T.to(waves.dtype)  # (frequencies, basis functions)
        return torch.stack(_diagonal(coefficients, size))


def blocks_of(filters: Tensor, coarsest: tuple[int, int], factor: int) -> Tensor:
    """Return filters and the sampling that follows as blocks in the real Fourier basis; see the module.

    Args:
        filters: Fourier transforms of L complex filters, real, (L, h, w), in the usual order.
        coarsest: Sides of the coarsest grid, for `Axis`.
        factor: f.

    Returns:
        float64 (2, groups, 4 L, (2 f)^2), groups row by row: first the even rows (of each row group's two numbers, the
        first), then the odd ones. A block's rows are a column group's two numbers, of each the real part of L filters,
        then the imaginary part; its columns are the numbers of both groups before the filter.
    """
    size, ends = 2 * factor, []  # of each axis: (groups, frequencies, 2 after, size before)
    for side, coarse in zip(filters.shape[1:], coarsest, strict=True):
        fine, sampled = Axis(side, coarse), Axis(side // factor, coarse)
        aliases = fine.frequencies.view(-1, size, 1) % sampled.side == sampled.frequencies.view(-1, 1, 2)
        after = aliases.to(torch.complex128) @ sampled.spectra(2).conj() / side  # 1 / side is the mean over aliases
        ends.append((fine.frequencies, after[..., None] * fine.spectra(size)[:, :, None]))
    (of_rows, rows), (of_columns, columns) = ends
    parts = []
    for each in filters:  # one at a time: of large images all together would take gigabytes
        grouped = each[of_rows][:, of_columns].view(len(rows), size, len(columns), size).to(torch.complex128)
        along = torch.einsum("gphq,hqxb->gphxb", grouped, columns)
        parts.append(torch.einsum("gphxb,gpya->yghxab", along, rows))
    found = torch.stack(parts, 4)  # (2 after of rows, row groups, column groups, 2 after of columns, L, a, b)
    both = torch.stack([found.real, found.imag], 4)
    return both.reshape(2, len(rows) * len(columns), 4 * len(filters), size**2)


def _by_group(frequencies: Tensor, side: int, coarsest: int) -> Tensor:
    """Return the order that sorts frequencies by their groups, nested: coarsest grid first."""
    keys, grid = torch.zeros_like(frequencies), coarsest
    while grid <= side:
        alias = torch.minimum(frequencies % grid, -frequencies % grid)
        keys = keys * side + torch.where(2 * alias == grid, 0, alias)
        grid *= 2
    return torch.argsort(keys, stable=True)


def _diagonal(matrix: Tensor, size: int) -> list[Tensor]:
    """Return the square blocks of a size on a matrix's diagonal."""
    return [matrix[start : start + size, start : start + size] for start in range(0, len(matrix), size)]
