"""Rasterise triangles: for each pixel the nearest triangle that covers its center, all images of a batch at once.

A z-buffer (Catmull 1974): each triangle proposes the pixels of its box, those inside keep the largest depth. Depth and
number of a triangle are one whole number, so that the nearest is found by one maximum, in any order of the pixels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

_DEPTHS = (-16.0, 16.0)  # lengths in front of the origin that are told apart
_STEPS = 1 << 32  # between them
_MOST_TRIANGLES = 1 << 24  # float weights and the whole numbers of the buffer have room for these
_EDGE = -1e-5  # weights from here on are inside: no crack between neighbors
_LEVEL = 1e-9  # a weight that changes less from pixel to pixel is the same on the whole row


class Hits(NamedTuple):
    """What each pixel shows.

    Attributes:
        triangle: int64 (B, H, W), the number of the nearest triangle; 0 where there is none.
        weights: float32 (B, H, W, 3) of its corners, sum 1; 0 where there is none.
        depth: float32 (B, H, W), larger is nearer; -16 where there is none.
        covered: bool (B, H, W).
    """

    triangle: Tensor
    weights: Tensor
    depth: Tensor
    covered: Tensor

    def interpolate(self, corners: Tensor) -> Tensor:
        """Mix values (T, 3, A) of the triangles' corners: (B, A, H, W)."""
        first = 3 * self.triangle.view(-1, 1)
        return self._mixed(corners.flatten(0, 1), first + torch.arange(3, device=first.device))

    def interpolate_moving(self, values: Tensor, triangles: Tensor) -> Tensor:
        """Mix values (B, V, A) of vertices, of each image its own: (B, A, H, W)."""
        batch, num, _ = values.shape
        vertices = triangles.index_select(0, self.triangle.flatten()).view(batch, -1, 3)
        vertices = vertices + num * torch.arange(batch, device=vertices.device)[:, None, None]
        return self._mixed(values.reshape(batch * num, -1), vertices.view(-1, 3))

    def _mixed(self, values: Tensor, rows: Tensor) -> Tensor:
        """Mix rows (B H W, 3) of values (R, A) by the weights: (B, A, H, W)."""
        weights = self.weights.view(-1, 3)
        mixed = embedding_bag(rows, values.contiguous(), per_sample_weights=weights, mode="sum")
        return mixed.view(*self.triangle.shape, -1).permute(0, 3, 1, 2).contiguous()


def rasterize(
    points: Tensor, triangles: Tensor, height: int, width: int, shown: Tensor | None = None, *, two_sided: bool = False
) -> Hits:
    """Find the nearest triangle of every pixel.

    Args:
        points: float32 (B, V, 3): x to the right and y down in px, pixel (0, 0) has its center at (0.5, 0.5); depth in
            [-16, 16], larger is nearer.
        triangles: int64 (T, 3), the corners, counterclockwise where the front is seen with y up.
        shown: bool (B, T); triangles to leave out are False. None shows all.
        two_sided: Whether triangles are seen from behind too.

    Raises:
        ValueError: If there are too many triangles for the buffer.
    """
    if len(triangles) >= _MOST_TRIANGLES:
        raise ValueError(f"{len(triangles)} triangles are too many: fewer than {_MOST_TRIANGLES}.")
    image, which, box, planes = _in_sight(points, triangles, height, width, shown, two_sided)
    number, down = _counted(box[:, 3])
    row = _rows(planes.index_select(0, number), down.float(), box[:, 2].float().index_select(0, number))
    first = ((image * height + box[:, 1]) * width + box[:, 0]).index_select(0, number) + down * width
    of_row, right = _counted(row.num)
    right += row.left.index_select(0, of_row)
    at_left, per_pixel = row.values.index_select(0, of_row).split(3, 1)
    second, third, depth = torch.addcmul(at_left, per_pixel, right[:, None].float()).unbind(1)
    pixel, triangle = first.index_select(0, of_row) + right, which.index_select(0, number).index_select(0, of_row)
    return _nearest(pixel, depth, triangle, second, third, (len(points), height, width))


def _in_sight(
    points: Tensor, triangles: Tensor, height: int, width: int, shown: Tensor | None, two_sided: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find the triangles whose boxes hold the center of a pixel.

    Returns:
        Of each its image and its number, int64 (K,); its box, int64 (K, 4): left, top, width, height in px; and
        (K, 9): the weights of corners 1 and 2, and the depth, as planes over the pixels from the left upper one of the
        box on: three values there, three changes for each pixel to the right, three for each one down.
    """
    batch = len(points)
    rows = points.transpose(0, 1).reshape(points.shape[1], -1)  # a row of memory for each vertex
    first, last, other = (rows.index_select(0, corners).view(-1, 3) for corners in triangles.unbind(1))  # (T B, 3)
    along, across = last - first, other - first
    area = along[:, 0] * across[:, 1] - along[:, 1] * across[:, 0]
    low = torch.minimum(torch.minimum(first, last), other)[:, :2].sub_(0.5).ceil_().clamp_min_(0)
    high = torch.maximum(torch.maximum(first, last), other)[:, :2].sub_(0.5).floor_()
    limit = torch.tensor([width - 1.0, height - 1.0], device=points.device)
    sides = (torch.minimum(high, limit) - low + 1).clamp_min_(0)
    there = sides.prod(1).bool() & ((area != 0) if two_sided else (area < 0))
    touched = torch.nonzero(there if shown is None else there & shown.T.flatten())[:, 0]
    a, b, size, corner, start, side = (
        values.index_select(0, touched) for values in (along, across, area, first, low, sides)
    )
    x, y = (start + 0.5 - corner[:, :2]).unbind(1)
    right = torch.stack([b[:, 1], -a[:, 1]], 1) / size[:, None]
    down = torch.stack([-b[:, 0], a[:, 0]], 1) / size[:, None]
    weights = x[:, None] * right + y[:, None] * down
    planes = [
        part
        for plane, depth in ((weights, corner[:, 2]), (right, 0.0), (down, 0.0))
        for part in (plane, (depth + plane[:, 0] * a[:, 2] + plane[:, 1] * b[:, 2])[:, None])
    ]
    box = torch.cat([start, side], 1).long()
    return touched % batch, touched.div(batch, rounding_mode="floor"), box, torch.cat(planes, 1)


def _counted(nums: Tensor) -> tuple[Tensor, Tensor]:
    """Number things 0, 1, ... within groups of sizes (K,): of each thing its group, and its number."""
    group = torch.repeat_interleave(nums)
    return group, torch.arange(len(group), device=nums.device) - (nums.cumsum(0) - nums).index_select(0, group)


class _Rows(NamedTuple):
    """What triangles cover of rows of pixels.

    Attributes:
        left: First pixel of the box that is covered, int64 (R,).
        num: Pixels that are covered, int64 (R,).
        values: (R, 6): two weights and the depth at the left side of the box, and their changes for each pixel.
    """

    left: Tensor
    num: Tensor
    values: Tensor


def _rows(planes: Tensor, down: Tensor, wide: Tensor) -> _Rows:
    """Find what lies inside of triangles: on each row all three weights are at least 0 from one pixel to another."""
    start, right, each_down = planes.split(3, 1)
    start = torch.addcmul(start, each_down, down[:, None])
    low, high = torch.zeros_like(wide), wide - 1
    weights = [(start[:, place], right[:, place]) for place in (0, 1)]
    weights.append((1 - start[:, 0] - start[:, 1], -right[:, 0] - right[:, 1]))
    for value, change in weights:
        change = torch.where(change.abs() < _LEVEL, _LEVEL, change)
        end = (_EDGE - value) / change
        low = torch.where(change > 0, torch.maximum(low, end), low)
        high = torch.where(change < 0, torch.minimum(high, end), high)
    left = low.ceil_()
    num = (high.floor_() - left + 1).clamp_min_(0)
    return _Rows(left.long(), num.long(), torch.cat([start, right], 1))


def _nearest(
    pixel: Tensor, depth: Tensor, triangle: Tensor, second: Tensor, third: Tensor, shape: tuple[int, int, int]
) -> Hits:
    """Keep of the proposals (N,) the nearest of each pixel."""
    low, high = _DEPTHS
    scaled = ((depth.clamp(low, high).double() - low) * ((_STEPS - 1) / (high - low))).long()
    key = scaled * _MOST_TRIANGLES + triangle
    best = torch.full((shape[0] * shape[1] * shape[2],), -1, dtype=torch.int64, device=pixel.device)
    best.scatter_reduce_(0, pixel, key, "amax")
    won = torch.nonzero(key == best.index_select(0, pixel))[:, 0]
    pixel, second, third, depth = (values.index_select(0, won) for values in (pixel, second, third, depth))
    weights = torch.zeros(len(best), 3, device=pixel.device)
    weights.index_copy_(0, pixel, torch.stack([1 - second - third, second, third], 1))
    nearest = torch.full((len(best),), low, device=pixel.device).index_copy_(0, pixel, depth)
    covered = best >= 0
    number = (best & (_MOST_TRIANGLES - 1)).mul_(covered)
    return Hits(number.view(shape), weights.view(*shape, 3), nearest.view(shape), covered.view(shape))
