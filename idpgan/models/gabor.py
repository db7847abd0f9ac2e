"""Gabor filters, and the mean modulus of their responses in each cell of an image: one call, forward and backward.

Neighboring positions share most of the pixels that they see. Each block of 2 x 2 positions becomes one row of a matrix,
which is multiplied by the filters at their four offsets. On the CPU that takes half the time of a strided convolution
of one channel, whose backward pass has only that channel to work on. Of a small image, up to 10 x 10 px, all positions
are one block: with its padding left out, one row of the matrix is one image, and nothing is copied.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from idpgan.device import by_device

_BLOCK = 2  # positions of a side that are one row of the matrix
_FLOOR = 1e-4  # under the root, so that its slope is finite
_WORKING = 3 << 20, 1 << 30  # `by_device`: bytes at a time; on the CPU they stay in the cache of a core


def gabor_filters(side: int = 9) -> Tensor:
    """Return 8 orientations x 2 scales, real and imaginary parts in turn, of unit energy: (32, 1, side, side)."""
    line = torch.arange(side).float() - side // 2
    y, x = torch.meshgrid(line, line, indexing="ij")
    filters = []
    for width, frequency in ((1.2, 2.0), (2.2, 1.1)):
        envelope = torch.exp(-(x**2 + y**2) / (2 * width**2))
        for step in range(8):
            along = x * math.cos(math.pi * step / 8) + y * math.sin(math.pi * step / 8)
            real, imaginary = envelope * torch.cos(frequency * along), envelope * torch.sin(frequency * along)
            real = real - envelope * real.sum() / envelope.sum()
            energy = (real.square() + imaginary.square()).sum().sqrt()
            filters += [real / energy, imaginary / energy]
    return torch.stack(filters)[:, None]


def pooled_moduli(planes: Tensor, filters: Tensor, *, stride: int, grid: int, padding: int = 0) -> Tensor:
    """Average the moduli ``sqrt(real^2 + imaginary^2 + 1e-4)`` of filtered planes over cells.

    The result equals, up to rounding, that of ``conv2d(planes, filters, stride=stride, padding=padding)``, the modulus
    and ``adaptive_avg_pool2d(., grid)``, for stride 1 or 2. The second derivative is not supported.

    Args:
        planes: (P, 1, H, W), with their padding not smaller than the filters.
        filters: (2 F, 1, side, side), real and imaginary parts in turn.
        grid: Rows and columns of cells.
        padding: Zeros around the planes, of each side.

    Returns:
        (P, F grid grid), filter by filter, differentiable in the planes.
    """
    found: Tensor = _PooledModuli.apply(planes, filters, stride, padding, grid, torch.is_grad_enabled())
    return found


class _Layout:
    """Sizes of the matrices for planes and filters of one kind, and the two matrices that all planes share."""

    def __init__(self, planes: Tensor, filters: Tensor, stride: int, padding: int, grid: int) -> None:
        side = filters.shape[-1]
        self.given, self.padding = tuple(planes.shape[2:]), padding
        positions = [(given + 2 * padding - side) // stride + 1 for given in self.given]
        self.block = _BLOCK, _BLOCK
        products = math.prod(-(-count // _BLOCK) for count in positions) * (_BLOCK * (side + stride)) ** 2
        self.whole = math.prod(self.given) * math.prod(positions) <= products
        if self.whole:
            self.block = positions[0], positions[1]
        self.blocks = tuple(-(-count // of) for count, of in zip(positions, self.block, strict=True))
        self.step = tuple(stride * of for of in self.block)
        self.patch = tuple(side + stride * (of - 1) for of in self.block)
        self.seen = tuple(
            step * (count - 1) + of for step, count, of in zip(self.step, self.blocks, self.patch, strict=True)
        )
        self.positions = math.prod(self.blocks) * math.prod(self.block)
        self.filters = len(filters) // 2
        # The filters at each offset in a block's patch: (pixels of a patch, 2 offsets F).
        pixels, border = (self.given, padding) if self.whole else (self.patch, 0)
        parts = functional.pad(filters.view(self.filters, 2, side, side), (0, 1, 0, 1))  # the last ones are 0
        down, across = (
            _places(count, stride, border, size, side) for count, size in zip(self.block, pixels, strict=True)
        )
        placed = parts[:, :, down[:, :, None, None].to(parts.device), across.to(parts.device)]  # (F, 2, i, y, j, x)
        self.kernel = placed.permute(3, 5, 1, 2, 4, 0).reshape(math.prod(pixels), -1)
        self.pool = _cell_means(*positions, grid, *self.block).to(planes)
        numbers = math.prod(self.blocks) * len(self.kernel) + 3 * self.positions * self.filters
        self.chunk = max(1, by_device(planes.device, *_WORKING) // (planes.element_size() * numbers))

    def _borders(self, sign: int) -> tuple[int, int, int, int]:
        """Return what planes lack around them of what the patches see; with sign -1 what these see around planes."""
        below, right = (seen - given - self.padding for seen, given in zip(self.seen, self.given, strict=True))
        return sign * self.padding, sign * right, sign * self.padding, sign * below

    def patches(self, planes: Tensor) -> Tensor:
        """Return the pixels that each block of positions sees, (P blocks, pixels of a patch)."""
        if self.whole:
            return planes.flatten(1)
        planes = functional.pad(planes, self._borders(1)).contiguous()  # a negative pad crops
        height, width = self.seen
        view = planes.as_strided(
            (len(planes), *self.blocks, *self.patch),
            (height * width, self.step[0] * width, self.step[1], width, 1),
            planes.storage_offset(),
        )
        return view.reshape(-1, len(self.kernel))

    def planes(self, patches: Tensor, count: int) -> Tensor:
        """Return the sum of what patches give to each pixel, (count, 1, H, W): `patches` transposed."""
        if self.whole:
            return patches.view(count, 1, *self.given)
        columns = patches.view(count, -1, len(self.kernel)).mT
        folded = functional.fold(columns, self.seen, self.patch, stride=self.step)
        return functional.pad(folded, self._borders(-1))


class _PooledModuli(torch.autograd.Function):
    """The differentiable call. Columns of a row of waves: real and imaginary part, then offsets, then filters."""

    @staticmethod
    def forward(ctx: Any, planes: Tensor, filters: Tensor, stride: int, padding: int, grid: int, keeps: bool) -> Tensor:
        layout = _Layout(planes, filters, stride, padding, grid)
        half = layout.kernel.shape[1] // 2
        keeps = keeps and ctx.needs_input_grad[0]
        count = len(planes) if keeps else min(len(planes), layout.chunk)
        blocks = math.prod(layout.blocks)
        waves, moduli = planes.new_empty(count, blocks, 2 * half), planes.new_empty(count, blocks, half)
        found = planes.new_empty(len(planes), layout.filters, grid**2)
        for start in range(0, len(planes), layout.chunk):
            part = planes[start : start + layout.chunk]
            kept = slice(start, start + len(part)) if keeps else slice(0, len(part))
            wave, modulus = waves[kept].view(-1, 2, half), moduli[kept].view(-1, half)
            torch.mm(layout.patches(part), layout.kernel, out=wave.view(-1, 2 * half))
            torch.mul(wave[:, 0], wave[:, 0], out=modulus)
            modulus.addcmul_(wave[:, 1], wave[:, 1]).add_(_FLOOR).sqrt_()
            by_position = modulus.view(len(part), layout.positions, layout.filters)
            torch.matmul(by_position.mT, layout.pool.T, out=found[start : start + len(part)])
        if keeps:
            ctx.layout = layout
            ctx.save_for_backward(waves, moduli)
        return found.flatten(1)

    @staticmethod
    @once_differentiable  # type: ignore[no-untyped-call, untyped-decorator, unused-ignore]
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        layout, (waves, moduli) = ctx.layout, ctx.saved_tensors
        half = moduli.shape[2]
        slope = slope.view(len(slope), layout.filters, -1)
        found = slope.new_empty(len(slope), 1, *layout.given)
        for start in range(0, len(slope), layout.chunk):
            part = slice(start, start + layout.chunk)
            per_wave = torch.matmul(layout.pool.T, slope[part].mT).view(-1, half).div_(moduli[part].view(-1, half))
            of_waves = waves[part].view(-1, 2, half) * per_wave[:, None]
            found[part] = layout.planes(of_waves.view(-1, 2 * half) @ layout.kernel.T, len(slope[part]))
        return found, None, None, None, None, None


def _places(count: int, stride: int, padding: int, size: int, side: int) -> Tensor:
    """Return which row of a filter lies on which row of pixels, at each position; ``side`` where none does.

    Returns:
        (count, size), int64.
    """
    places = torch.arange(size) + padding - stride * torch.arange(count)[:, None]
    return places.where((places >= 0) & (places < side), side)


@functools.lru_cache(maxsize=16)
@torch.inference_mode(False)
def _cell_means(rows: int, columns: int, grid: int, height: int, width: int) -> Tensor:
    """Return the matrix that averages positions over cells, for blocks of some height and width.

    Returns:
        (grid^2, positions in the order of the blocks).
    """
    sides = []
    for size, block in ((rows, height), (columns, width)):
        means = functional.adaptive_avg_pool1d(torch.eye(size)[None], grid)[0].T  # (grid, size)
        sides.append(functional.pad(means, (0, -size % block)).view(grid, -1, block))  # padding has weight 0
    return torch.einsum("ari,bcj->abrcij", *sides).reshape(grid**2, -1)
