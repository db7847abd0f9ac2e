"""Rasterise triangles: for each pixel the nearest triangle that covers its center, all images of a batch at once.

A z-buffer (Catmull 1974): each triangle proposes the pixels of its box, those inside keep the largest depth. Depth and
number of a triangle are one whole number, so that the nearest is found by one maximum, in any order of the pixels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_DEPTHS = (-16.0, 16.0)  # lengths in front of the origin that are told apart
_STEPS = 1 << 32  # between them
_MOST_TRIANGLES = 1 << 24  # float weights and the whole numbers of the buffer have room for these
_EDGE = -1e-5  # weights from here on are inside: no crack between neighbors


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
        rows = corners.flatten(1)[self.triangle.flatten()].view(*self.triangle.shape, 3, -1)
        return self._mixed(rows)

    def interpolate_moving(self, values: Tensor, triangles: Tensor) -> Tensor:
        """Mix values (B, V, A) of vertices, of each image its own: (B, A, H, W)."""
        batch, num, _ = values.shape
        vertices = triangles[self.triangle.flatten()].view(batch, -1)
        vertices = vertices + num * torch.arange(batch, device=vertices.device)[:, None]
        return self._mixed(values.flatten(0, 1)[vertices.flatten()].view(*self.triangle.shape, 3, -1))

    def _mixed(self, rows: Tensor) -> Tensor:
        """Mix (B, H, W, 3, A) by the weights: (B, A, H, W)."""
        first, second, third = (rows[..., corner, :] * self.weights[..., corner, None] for corner in range(3))
        return (first + second).add_(third).permute(0, 3, 1, 2).contiguous()


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
    left, top, wide, high = box.unbind(1)
    each = wide * high
    number = torch.repeat_interleave(torch.arange(len(each), device=each.device), each)
    place = torch.arange(len(number), device=each.device) - (each.cumsum(0) - each)[number]
    down, right = place // wide[number], place % wide[number]
    plane = planes[number]
    second = plane[:, 0] * right + plane[:, 1] * down + plane[:, 2]
    third = plane[:, 3] * right + plane[:, 4] * down + plane[:, 5]
    inside = torch.nonzero((second >= _EDGE) & (third >= _EDGE) & (second + third <= 1 - _EDGE))[:, 0]
    plane, second, third, number = plane[inside], second[inside], third[inside], number[inside]
    depth = plane[:, 6] + second * plane[:, 7] + third * plane[:, 8]
    first = (image * height + top) * width + left
    pixel = first[number] + down[inside] * width + right[inside]
    return _nearest(pixel, depth, which[number], second, third, (len(points), height, width))


def _in_sight(
    points: Tensor, triangles: Tensor, height: int, width: int, shown: Tensor | None, two_sided: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find the triangles whose boxes hold the center of a pixel.

    Returns:
        Of each its image and its number, int64 (K,); its box, int64 (K, 4): left, top, width, height in px; and
        (K, 9): the weights of corners 1 and 2 as planes over the pixels from the left upper one of the box on, the
        depth of corner 0, and what corners 1 and 2 add to it.
    """
    batch = len(points)
    rows = points.transpose(0, 1).reshape(points.shape[1], -1)  # a row of memory for each vertex
    first, last, other = (rows[triangles[:, corner]].view(-1, batch, 3) for corner in range(3))  # (T, B, 3)
    along, across = last - first, other - first
    area = along[..., 0] * across[..., 1] - along[..., 1] * across[..., 0]
    low = torch.minimum(torch.minimum(first, last), other)[..., :2].sub_(0.5).ceil_().clamp_min_(0)
    high = torch.maximum(torch.maximum(first, last), other)[..., :2].sub_(0.5).floor_()
    limit = torch.tensor([width - 1.0, height - 1.0], device=points.device)
    sides = (torch.minimum(high, limit) - low + 1).clamp_min_(0)
    there = sides.prod(2).bool() & ((area != 0) if two_sided else (area < 0))
    which, image = torch.nonzero(there if shown is None else there & shown.T, as_tuple=True)
    a, b, size, corner, start = (values[which, image] for values in (along, across, area, first, low))
    box = torch.cat([start, sides[which, image]], 1).long()
    start = start + 0.5 - corner[:, :2]
    one = torch.stack([b[:, 1], -b[:, 0], start[:, 0] * b[:, 1] - start[:, 1] * b[:, 0]], 1) / size[:, None]
    two = torch.stack([-a[:, 1], a[:, 0], start[:, 1] * a[:, 0] - start[:, 0] * a[:, 1]], 1) / size[:, None]
    return image, which, box, torch.cat([one, two, corner[:, 2:], a[:, 2:], b[:, 2:]], 1)


def _nearest(
    pixel: Tensor, depth: Tensor, triangle: Tensor, second: Tensor, third: Tensor, shape: tuple[int, int, int]
) -> Hits:
    """Keep of the proposals (N,) the nearest of each pixel."""
    low, high = _DEPTHS
    scaled = ((depth.clamp(low, high).double() - low) * ((_STEPS - 1) / (high - low))).long()
    key = scaled * _MOST_TRIANGLES + triangle
    best = torch.full((shape[0] * shape[1] * shape[2],), -1, dtype=torch.int64, device=pixel.device)
    best.scatter_reduce_(0, pixel, key, "amax")
    won = torch.nonzero(key == best[pixel])[:, 0]
    weights = torch.zeros(len(best), 3, device=pixel.device)
    weights[pixel[won]] = torch.stack([1 - second[won] - third[won], second[won], third[won]], 1)
    nearest = torch.full((len(best),), low, device=pixel.device)
    nearest[pixel[won]] = depth[won]
    covered = best >= 0
    number = torch.where(covered, best % _MOST_TRIANGLES, 0)
    return Hits(number.view(shape), weights.view(*shape, 3), nearest.view(shape), covered.view(shape))
