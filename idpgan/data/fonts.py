"""`fonts`: digits written by a simulated pen, in any number and size, without files and without real handwriting.

Every digit has several skeletons. Each image varies its skeleton: displaced points, slant, size, pen and ink, as in a
font that is a program (Knuth, "The concept of a meta-font", 1982). Labels: the digit. The numbers of an image are
uniform in their ranges; nothing about them was learned from handwriting.

A skeleton is a list of points and of strokes; a stroke is a smooth curve (Catmull and Rom, "A class of local
interpolating splines", 1974) through points that it names by number, so that strokes that meet still meet when a point
moves. x points right and y down; the digit lies between 0 and 1.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from idpgan.data.images import Images, to_uint8
from idpgan.device import check_room, zeros
from idpgan.errors import DataError
from idpgan.progress import Progress, silent

CLASSES = tuple("0123456789")
SIDE = 28  # where nothing else is asked for
LEAST_SIDE = 8  # px
CHOICES = 2  # the first numbers of an image choose digit and style
_RANGES: Mapping[str, tuple[float, float]] = {
    "slant": (-0.25, 0.65),  # of the stems, in widths per height; to the right
    "turn": (-0.20, 0.20),  # radians
    "width": (0.45, 0.95),  # of the digit, in heights
    "size": (0.55, 0.85),  # longest side, in image sides
    "thickness": (0.035, 0.15),  # of the pen, in image sides
    "softness": (0.03, 0.09),  # of its edge, in image sides
    "ink": (0.75, 1.0),  # brightness of the stroke
    "shift_x": (-0.06, 0.06),  # in image sides
    "shift_y": (-0.06, 0.06),
}
_JITTER = 0.16  # largest displacement of a point, in digit heights
MOST_POINTS = 14  # most points of a skeleton
STYLES = 4  # skeletons of each digit; if it has fewer, they repeat
_PIECES = 4  # straight pieces between two points of a stroke
NUMBERS = CHOICES + len(_RANGES) + 2 * MOST_POINTS
_PIXELS = 1 << 14  # pixels of a batch, so that their distances to a curve's pieces stay in the cache


def draw(
    num: int,
    size: int | tuple[int, int] = SIDE,
    channels: int = 1,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Images:
    """Write digits, 0, 1, ..., 9, 0, 1, ...: uint8 (num, C, H, W) with labels.

    Args:
        size: (H, W) in px, or one number for both; each at least 8.
        channels: 1, or 3 for three equal channels.

    Raises:
        DataError: If a number is out of range.
    """
    height, width = (size, size) if isinstance(size, int) else size
    check(num, height, width, channels, seed)
    labels = torch.arange(num) % 10
    uniform = torch.rand(num, NUMBERS, generator=torch.Generator().manual_seed(seed))
    uniform[:, 0] = (labels + 0.5) / 10
    images = zeros((num, channels, height, width), torch.uint8)
    batch = max(1, _PIXELS // (height * width))
    for start in range(0, num, batch):
        part = slice(start, start + batch)
        images[part] = to_uint8(render(uniform[part], height, width).mul_(2).sub_(1))
        progress("draw digits", min(start + batch, num), num)
    return Images(images, labels, CLASSES)


def digits_of(uniform: Tensor) -> Tensor:
    """Return the digits that numbers (B, `NUMBERS`) choose, (B,) int64."""
    return (uniform[:, 0] * 10).long().clamp(max=9)


def hand_of(uniform: Tensor) -> dict[str, Tensor]:
    """Return slant, thickness and so on of numbers (B, `NUMBERS`), (B,) each, in the units of `_RANGES`."""
    columns = zip(_RANGES.items(), uniform[:, CHOICES : CHOICES + len(_RANGES)].unbind(1), strict=True)
    return {name: low + (high - low) * column for (name, (low, high)), column in columns}


def render(uniform: Tensor, height: int, width: int) -> Tensor:
    """Draw the digits of numbers (B, `NUMBERS`) on [0, 1]: float32 (B, 1, H, W) in [0, 1]."""
    parts = [_write(part, height, width) for part in uniform.split(max(1, _PIXELS // (height * width)))]
    return torch.cat(parts) if len(uniform) else uniform.new_zeros(0, 1, height, width)


def check(num: int, height: int, width: int, channels: int, seed: int) -> None:
    """Refuse what `draw` cannot draw."""
    if num < 1 or seed < 0:
        raise DataError(f"Write at least one digit, with a seed of at least 0, not {num} with {seed}.")
    if min(height, width) < LEAST_SIDE:
        raise DataError(f"Digits of {width} x {height} pixels are too small: each side must be {LEAST_SIDE} or more.")
    if channels not in (1, 3):
        raise DataError(f"Digits have 1 channel (grey) or 3 (RGB), not {channels}.")
    check_room(num * channels * math.prod((height, width)), 2, f"{num:,} digits", "Lower data.num_images.")


# The pen ----------------------------------------------------------------------------------------------------------


@functools.cache
def _skeletons() -> tuple[Tensor, Tensor, Tensor]:
    """Return all skeletons, padded.

    Returns:
        The points, (10, STYLES, MOST_POINTS, 2); the weights of the points in each vertex of the curves, (10, STYLES,
        S + 1, MOST_POINTS); and whether a piece between two vertices is drawn, bool (10, STYLES, S).
    """
    digits = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    skeletons = [digits[name] for name in CLASSES]
    made = [[_curve(style["strokes"]) for style in styles] for styles in skeletons]
    most = max(len(weights) for styles in made for weights, _ in styles)
    points = torch.zeros(10, STYLES, MOST_POINTS, 2)
    curves, pen = torch.zeros(10, STYLES, most, MOST_POINTS), torch.zeros(10, STYLES, most - 1, dtype=torch.bool)
    for digit, styles in enumerate(skeletons):
        for style in range(STYLES):
            variant = style % len(styles)
            places, (weights, drawn) = torch.tensor(styles[variant]["points"]), made[digit][variant]
            points[digit, style, : len(places)] = places
            curves[digit, style, : len(weights)] = weights
            curves[digit, style, len(weights) :] = weights[-1]
            pen[digit, style, : len(drawn)] = drawn
    return points, curves, pen


def _curve(strokes: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the vertices of all strokes one after the other, as weights of the points, and which pieces are drawn."""
    steps = torch.arange(_PIECES) / _PIECES
    weights, drawn = [], []
    for names in strokes:
        for at in range(len(names) - 1):
            around = [names[max(at - 1, 0)], names[at], names[at + 1], names[min(at + 2, len(names) - 1)]]
            for t in steps.tolist():
                basis = (-t + 2 * t**2 - t**3, 2 - 5 * t**2 + 3 * t**3, t + 4 * t**2 - 3 * t**3, -(t**2) + t**3)
                row = torch.zeros(MOST_POINTS)
                for name, weight in zip(around, basis, strict=True):
                    row[name] += weight / 2
                weights.append(row)
                drawn.append(True)
        end = torch.zeros(MOST_POINTS)
        end[names[-1]] = 1
        weights.append(end)
        drawn.append(False)  # the pen is lifted
    return torch.stack(weights), torch.tensor(drawn[:-1])


def _write(uniform: Tensor, height: int, width: int) -> Tensor:
    """Draw one digit per row of numbers (B, `NUMBERS`), white on black: float32 (B, 1, H, W) in [0, 1]."""
    device = uniform.device
    hand = {name: column[:, None] for name, column in hand_of(uniform).items()}  # (B, 1)
    # Two uniform numbers together place a point, so that most displacements are small.
    jitter = (2 * uniform[:, CHOICES + len(_RANGES) :] - 1).view(-1, MOST_POINTS, 2)
    chosen = digits_of(uniform).cpu(), (uniform[:, 1] * STYLES).long().clamp(max=STYLES - 1).cpu()
    points, curves, pen = (table[chosen].to(device) for table in _skeletons())
    wide = torch.stack([hand["width"], torch.ones_like(hand["width"])], 2)
    bent = (points - 0.5) * wide + _JITTER * jitter * jitter.abs()
    path = _normalized(curves @ bent, pen, hand)  # (B, S + 1, 2), image sides
    side = min(height, width)
    x = (torch.arange(width, device=device) + 0.5 - width / 2) / side
    y = (torch.arange(height, device=device) + 0.5 - height / 2) / side
    start, along = path[:, :-1], path[:, 1:] - path[:, :-1]
    square = along.square().sum(2).clamp(min=1e-12)
    to_x, to_y = x[:, None] - start[:, None, :, 0], y[:, None] - start[:, None, :, 1]  # (B, W, S), (B, H, S)
    share_x, share_y = (part / square[:, None] for part in (to_x * along[:, None, :, 0], to_y * along[:, None, :, 1]))
    share = (share_x[:, None] + share_y[:, :, None]).clamp(0, 1)  # (B, H, W, S)
    away_x = torch.addcmul(to_x[:, None], share, along[:, None, None, :, 0], value=-1)
    away_y = torch.addcmul(to_y[:, :, None], share, along[:, None, None, :, 1], value=-1)
    squares = (away_x.square() + away_y.square()).masked_fill(~pen[:, None, None], 4.0)
    distance = squares.amin(3).clamp(min=1e-12).sqrt()  # an attack differentiates this distance
    thickness, softness, ink = (hand[name][:, None] for name in ("thickness", "softness", "ink"))
    inside = 0.5 - (distance - thickness / 2) / softness
    return (inside.clamp(0, 1) * ink)[:, None]


def _normalized(path: Tensor, pen: Tensor, hand: Mapping[str, Tensor]) -> Tensor:
    """Slant, rotate and scale the paths (B, S + 1, 2), and center their ink."""
    cos, sin = hand["turn"].cos(), hand["turn"].sin()
    x, y = path.unbind(2)
    x = x - hand["slant"] * y
    path = torch.stack([x * cos - y * sin, x * sin + y * cos], 2)
    low, high = path.amin(1), path.amax(1)
    path = path * (hand["size"] / (high - low).amax(1, keepdim=True).clamp(min=1e-3))[:, :, None]
    middle, length = (path[:, 1:] + path[:, :-1]) / 2, (path[:, 1:] - path[:, :-1]).norm(dim=2) * pen
    center = (middle * length[:, :, None]).sum(1) / length.sum(1).clamp(min=1e-6)[:, None]
    return path - center[:, None] + torch.stack([hand["shift_x"], hand["shift_y"]], 2)
