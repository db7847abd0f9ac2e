"""Neighbouring images that mechanisms find hardest to hide: constructed from constants, never from private data.

Images are (m, n) or (C, H, W) tensors of float64; black and white are the ends of the public pixel range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from idpgan.errors import InputError
from idpgan.privacy.guarantee import Unit


@dataclass(frozen=True)
class Pair:
    """Two neighbours.

    Attributes:
        name: What they are, in words.
        data: One of them.
        neighbour: The other; same shape.
    """

    name: str
    data: Tensor
    neighbour: Tensor


def _changed(image: Tensor, unit: Unit, value: float) -> Tensor:
    """Return a copy of an image with one unit set to ``value``."""
    changed = image.clone()
    if unit is Unit.PIXEL:
        changed.flatten()[0] = value
    elif unit is Unit.COLUMN:
        changed[..., 0] = value
    elif unit is Unit.IMAGE:
        changed.fill_(value)
    else:
        raise InputError(f"no neighbouring images are known for unit {unit}; known: pixel, column, image.")
    return changed


def extremes(shape: Sequence[int], unit: Unit, low: float = 0.0, high: float = 1.0) -> Pair:
    """Return a black image, and the same with one unit white: the largest move in every norm.

    Raises:
        InputError: For a unit that is no part of an image.
    """
    black = torch.full(tuple(shape), low, dtype=torch.float64)
    return Pair(f"black against white {unit}", black, _changed(black, unit, high))


def nearly_equal(shape: Sequence[int], unit: Unit, step: float = 1 / 255, low: float = 0.0) -> Pair:
    """Return a black image, and the same with one unit a step lighter: catches noise whose scale is the image's own.

    Raises:
        InputError: For a unit that is no part of an image.
    """
    black = torch.full(tuple(shape), low, dtype=torch.float64)
    return Pair(f"black against a {unit} lighter by {step:.3g}", black, _changed(black, unit, low + step))


def low_rank(shape: Sequence[int], unit: Unit, low: float = 0.0, high: float = 1.0) -> Pair:
    """Return two images of rank one or two with different column spaces: catches singular vectors without noise.

    The upper half of the first row(s) is white; in the neighbour one unit is the negative.

    Raises:
        InputError: For a unit that is no part of an image, or an image of fewer than two rows.
    """
    if len(shape) < 2 or shape[-2] < 2:
        raise InputError(f"a low-rank pair needs at least two rows, got shape {tuple(shape)}.")
    striped = torch.full(tuple(shape), low, dtype=torch.float64)
    striped[..., : shape[-2] // 2, :] = high
    negative = low + high - striped
    neighbour = striped.clone()
    if unit is Unit.PIXEL:
        neighbour[..., 0, 0] = low
    elif unit is Unit.COLUMN:
        neighbour[..., 0] = negative[..., 0]
    elif unit is Unit.IMAGE:
        neighbour = negative
    else:
        raise InputError(f"no neighbouring images are known for unit {unit}; known: pixel, column, image.")
    return Pair(f"striped image of rank one against its negative in one {unit}", striped, neighbour)


PAIRS: dict[str, Callable[[Sequence[int], Unit], Pair]] = {
    "extremes": extremes,
    "nearly-equal": nearly_equal,
    "low-rank": low_rank,
}
