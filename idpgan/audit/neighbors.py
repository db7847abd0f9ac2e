"""Neighboring images that are hardest for mechanisms to hide, constructed from constants, never from private data.

Images are (m, n) or (C, H, W) tensors of float64; black and white are the ends of the public pixel range. A unit that
is not part of an image raises an `InputError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from idpgan.errors import InputError
from idpgan.lazy import torch
from idpgan.privacy.guarantee import Unit

if TYPE_CHECKING:
    from torch import Tensor

# Names of the neighbors that runs are audited with: a release may say these, and `verify` refuses others.
ABSENT = "one record absent against present"
MOVED = "one record moved to another cell"
OPPOSITE = "one record against its opposite"
NEGATIVE = "an image against its negative"
NEGATIVE_AND_LABEL = "an image against its negative, label 0 against 1"
BLACK = "a black against a white image"
BLACK_IN_BATCH = "a black against a white image, beside a black one in the batch"
CANARY = "one record absent (a null record) against present, its gradient above the clip norm"
SILENT = "a participant whose images change nothing against one whose changes are all at the bound"
FEATURES = "an image whose features are all at the negative bound against one whose are all at the bound"
FEATURES_AND_LABEL = f"{FEATURES}, label 0 against 1"
OF_RUNS = (
    ABSENT, MOVED, OPPOSITE, NEGATIVE, NEGATIVE_AND_LABEL, BLACK, BLACK_IN_BATCH, CANARY, SILENT, FEATURES,
    FEATURES_AND_LABEL,
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Two neighbors of one shape; ``name`` says in words what they are."""

    name: str
    data: Tensor
    neighbor: Tensor


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
        raise InputError(f"no neighboring images are known for unit {unit}; known: pixel, column, image.")
    return changed


def _negative(image: Tensor, unit: Unit, low: float, high: float) -> Tensor:
    """Return a copy of an image with one unit negative; a pixel is black in all channels."""
    changed = image.clone()
    if unit is Unit.PIXEL:
        changed[..., 0, 0] = low
    elif unit is Unit.COLUMN:
        changed[..., 0] = low + high - image[..., 0]
    elif unit is Unit.IMAGE:
        changed = low + high - image
    else:
        raise InputError(f"no neighboring images are known for unit {unit}; known: pixel, column, image.")
    return changed


def extremes(shape: Sequence[int], unit: Unit, low: float = 0.0, high: float = 1.0) -> Pair:
    """Return a black image, and the same with one unit white: the largest move in every norm."""
    black = torch.full(tuple(shape), low, dtype=torch.float64)
    return Pair(f"black against white {unit}", black, _changed(black, unit, high))


def nearly_equal(shape: Sequence[int], unit: Unit, step: float = 1 / 255, low: float = 0.0) -> Pair:
    """Return a black image, and the same with one unit a step lighter: detects noise scaled by the image."""
    black = torch.full(tuple(shape), low, dtype=torch.float64)
    return Pair(f"black against a {unit} lighter by {step:.3g}", black, _changed(black, unit, low + step))


def low_rank(shape: Sequence[int], unit: Unit, low: float = 0.0, high: float = 1.0) -> Pair:
    """Return two images of rank one or two with different column spaces: detects singular vectors without noise.

    The upper half of the first row(s) is white; in the neighbor one unit is inverted. At least two rows are needed.
    """
    if len(shape) < 2 or shape[-2] < 2:
        raise InputError(f"a low-rank pair needs at least two rows, got shape {tuple(shape)}.")
    striped = torch.full(tuple(shape), low, dtype=torch.float64)
    striped[..., : shape[-2] // 2, :] = high
    neighbor = _negative(striped, unit, low, high)
    return Pair(f"striped image of rank one against its negative in one {unit}", striped, neighbor)


def brighter(shape: Sequence[int], unit: Unit, low: float = 0.0, high: float = 1.0) -> Pair:
    """Return a grey image, and the same with one unit white: detects noise whose scale depends on the image.

    Unlike `nearly_equal` neither image is black, so both get noise.
    """
    grey = torch.full(tuple(shape), (low + high) / 2, dtype=torch.float64)
    return Pair(f"grey against one white {unit}", grey, _changed(grey, unit, high))


def full_rank(shape: Sequence[int], unit: Unit, low: float = 0.0, high: float = 1.0) -> Pair:
    """Return an image of full rank, cosine waves, and the same with one unit negative.

    With more rows than columns the column spaces differ: detects singular vectors without noise, and a choice of rank.
    """
    rows, columns = shape[-2:]
    row, column = torch.arange(rows, dtype=torch.float64)[:, None], torch.arange(columns, dtype=torch.float64)
    waves = torch.cos(torch.pi * (2 * row + 1) * (column + 1) / (2 * rows))  # cosines of the DCT, without its constant
    image = (low + (high - low) * (0.5 + 0.5 * waves)).expand(tuple(shape)).clone()
    neighbor = _negative(image, unit, low, high)
    return Pair(f"image of full rank against its negative in one {unit}", image, neighbor)


PAIRS: dict[str, Callable[[Sequence[int], Unit], Pair]] = {
    "extremes": extremes,
    "nearly-equal": nearly_equal,
    "low-rank": low_rank,
    "brighter": brighter,
    "full-rank": full_rank,
}
