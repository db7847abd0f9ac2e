"""`fonts`: digits written by a pen that the program moves, in any number and size: no files, and nobody's privacy.

Every digit has some skeletons, and each image its own hand: points out of place, slant, size, pen and ink, as in a font
that is a program (Knuth, "The concept of a meta-font", 1982). Labels: the digit. The numbers of an image are uniform in
their ranges; nothing about them was learned from handwriting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from idpgan.data.config import DataConfig
from idpgan.data.images import Images, to_uint8
from idpgan.data.pen_digits import MOST_POINTS, STYLES, Hand, write
from idpgan.data.source import Found, Read
from idpgan.errors import DataError
from idpgan.memory import check_memory
from idpgan.progress import Progress, silent

CLASSES = tuple("0123456789")
NUM_IMAGES, SIDE = 10_000, 28  # what the config's None stands for
SEED = 7_003  # of the data source: a constant of the package
LEAST_SIDE = 8  # px
CHOICES = 2  # the first numbers of an image choose digit and style
_RANGES: Mapping[str, tuple[float, float]] = {  # in the units of `pen_digits.Hand`
    "slant": (-0.25, 0.65),
    "turn": (-0.20, 0.20),
    "width": (0.45, 0.95),
    "size": (0.55, 0.85),
    "thickness": (0.035, 0.15),
    "softness": (0.03, 0.09),
    "ink": (0.75, 1.0),
    "shift_x": (-0.06, 0.06),
    "shift_y": (-0.06, 0.06),
}
_JITTER = 0.16  # largest displacement of a point
NUMBERS = CHOICES + len(_RANGES) + 2 * MOST_POINTS
_PIXELS = 1 << 14  # a batch's pixels: their distances to a curve's pieces stay near a core


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
        channels: 1, or 3 for the same in three channels.

    Raises:
        DataError: If a number is out of range.
    """
    height, width = (size, size) if isinstance(size, int) else size
    _check(num, height, width, channels, seed)
    labels = torch.arange(num) % 10
    uniform = torch.rand(num, NUMBERS, generator=torch.Generator().manual_seed(seed))
    uniform[:, 0] = (labels + 0.5) / 10
    images = torch.empty(num, channels, height, width, dtype=torch.uint8)
    batch = max(1, _PIXELS // (height * width))
    for start in range(0, num, batch):
        part = slice(start, start + batch)
        images[part] = to_uint8(render(uniform[part], height, width).mul_(2).sub_(1))
        progress("draw digits", min(start + batch, num), num)
    return Images(images, labels, CLASSES)


def digits_of(uniform: Tensor) -> Tensor:
    """Return the digits that numbers (B, `NUMBERS`) choose, (B,) int64."""
    return (uniform[:, 0] * 10).long().clamp(max=9)


def render(uniform: Tensor, height: int, width: int) -> Tensor:
    """Draw the digits of numbers (B, `NUMBERS`) on [0, 1]: float32 (B, 1, H, W) in [0, 1]."""
    low, high = torch.tensor(list(_RANGES.values()), device=uniform.device).unbind(1)
    numbers = low + (high - low) * uniform[:, CHOICES : CHOICES + len(_RANGES)]
    named = dict(zip(_RANGES, numbers.unbind(1), strict=True))
    # Two uniform numbers between them make a point's place: small displacements are the rule.
    jitter = (2 * uniform[:, CHOICES + len(_RANGES) :] - 1).view(-1, MOST_POINTS, 2)
    hand = Hand(
        digit=digits_of(uniform),
        style=(uniform[:, 1] * STYLES).long().clamp(max=STYLES - 1),
        jitter=_JITTER * jitter * jitter.abs(),
        shift=torch.stack([named.pop("shift_x"), named.pop("shift_y")], 1),
        **named,
    )
    batch = max(1, _PIXELS // (height * width))
    parts = [write(Hand(*part), height, width) for part in zip(*(column.split(batch) for column in hand), strict=True)]
    return torch.cat(parts) if parts else uniform.new_zeros(0, 1, height, width)


def describe(config: DataConfig) -> Found:
    """Return the numbers of the config; the set has no test images of its own."""
    num, height, width, channels = _configured(config)
    return Found(num, None, (channels, height, width), CLASSES)


def read(config: DataConfig, progress: Progress = silent) -> Read:
    """Write the digits that the config asks for; raises `DataError` if a number is out of range."""
    num, height, width, channels = _configured(config)
    return Read(draw(num, (height, width), channels, seed=SEED, progress=progress))


def _configured(config: DataConfig) -> tuple[int, int, int, int]:
    num, (height, width), channels = config.num_images or NUM_IMAGES, config.sides or (SIDE, SIDE), config.channels or 1
    _check(num, height, width, channels, SEED)
    return num, height, width, channels


def _check(num: int, height: int, width: int, channels: int, seed: int) -> None:
    if num < 1 or seed < 0:
        raise DataError(f"Write at least one digit, with a seed of at least 0, not {num} with {seed}.")
    if min(height, width) < LEAST_SIDE:
        raise DataError(f"Digits of {width} x {height} pixels are too small: each side must be {LEAST_SIDE} or more.")
    if channels not in (1, 3):
        raise DataError(f"Digits have 1 channel (grey) or 3 (RGB), not {channels}.")
    check_memory(2 * num * channels * math.prod((height, width)), f"{num:,} digits", "Lower data.num_images.")
