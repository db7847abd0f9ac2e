"""Pictures of dead leaves: opaque shapes of all sizes that fall on one another, with the edges that photographs have.

Photographs show things in front of things, which explains the spectrum of 1 / f^2 and the sharp edges that they have in
common (Lee, Mumford and Huang, "Occlusion models for natural images", 2001); networks learn from such pictures much of
what they learn from photographs (Baradad, Wulff, Wang, Isola and Torralba, "Learning to see by looking at noise",
2021). They stand for photographs of everything, where no public ones are at hand, and show nobody.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idpgan.data.images import to_uint8
from idpgan.progress import Progress, silent

_SMALLEST = 1 / 16  # radius as a share of the shorter side, and at least a pixel and a half, but in tiny pictures
_LARGEST = 0.5
_LAYERS = 5.0  # leaves on one another at a place, mean: less than a hundredth of the ground is seen
_CHROMA = 0.2  # standard deviation of each color difference, the brightness being even on [-1, 1]
_SHADING = 0.3  # most change of brightness from the middle of a leaf to its edge
_CONTRAST = 0.6  # of the picture
_SQUARES = 1.13  # shrinks a rectangle to the area of the ellipse in its place
_MARGIN = 0.1  # around the picture, where middles of leaves lie too
_DIFFERENCES = torch.tensor([[1.0, 0.0, -1.0], [-0.5, 1.0, -0.5]])  # red against blue, green against magenta
_AT_ONCE = 250  # pictures
_NUMBERS = 9  # uniform ones that a leaf is made of


def draw(num: int, size: tuple[int, int], channels: int, *, seed: int, progress: Progress = silent) -> Tensor:
    """Draw pictures, uint8 (num, channels, H, W): ellipses and rectangles with radii of density r^-3.

    Args:
        size: Height and width in px.
        channels: 1 or 3.
        seed: The same pictures for the same number, size and channels.
    """
    rng, parts = torch.Generator().manual_seed(seed), []
    for start in range(0, num, _AT_ONCE):
        parts.append(to_uint8(_fallen(min(_AT_ONCE, num - start), size, channels, rng)))
        progress("dead leaves drawn", start + len(parts[-1]), num)
    return torch.cat(parts)


def _fallen(num: int, size: tuple[int, int], channels: int, rng: torch.Generator) -> Tensor:
    """Let leaves fall on grey ground, float (num, channels, H, W)."""
    height, width = size
    side, smallest = min(size), min(max(_SMALLEST, 1.5 / min(size)), _LARGEST / 2)
    y, x = (torch.arange(length) + 0.5 for length in size)
    y, x = y[:, None] / side, x / side
    span_y, span_x = height / side + 2 * _MARGIN, width / side + 2 * _MARGIN
    area = 2 * math.pi * smallest**2 * math.log(_LARGEST / smallest) / (1 - (smallest / _LARGEST) ** 2)
    picture = torch.zeros(num, channels, height, width)
    for _ in range(math.ceil(_LAYERS * span_y * span_x / area)):
        numbers = torch.rand(num, _NUMBERS, 1, 1, generator=rng).unbind(1)
        radius = smallest / (1 - numbers[0] * (1 - (smallest / _LARGEST) ** 2)).sqrt()
        longer, turn = (0.5 + numbers[1]).sqrt(), math.pi * numbers[2]
        down, right = y - span_y * numbers[3] + _MARGIN, x - span_x * numbers[4] + _MARGIN
        along = (turn.cos() * right + turn.sin() * down) / (radius * longer)
        across = (turn.cos() * down - turn.sin() * right) / radius * longer
        square = _SQUARES * torch.maximum(along.abs(), across.abs())
        distance = torch.where(numbers[5] < 0.5, square, (along.square() + across.square()).sqrt())
        covered = ((1 - distance) * radius * side + 0.5).clamp(0, 1)[:, None]
        slope = _SHADING * ((2 * numbers[6] - 1) * along + (2 * numbers[7] - 1) * across)
        leaf = (2 * numbers[8] - 1)[:, None] + slope.clamp(-1, 1)[:, None]
        if channels == 3:
            leaf = leaf + (_CHROMA * torch.randn(num, 2, generator=rng) @ _DIFFERENCES)[:, :, None, None]
        picture += covered * (leaf - picture)
    return _CONTRAST * picture
