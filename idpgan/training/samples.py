"""Sample grids: generated images only, on the same latent vectors at every tick."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from idpgan.data.images import GAP_PX, make_grid, png_bytes, to_uint8
from idpgan.files import PRIVATE_FILE, write_bytes_atomic
from idpgan.models.generator import Generator
from idpgan.training.method import Tick

_READABLE_PX = 64  # pixels per side: smaller images are enlarged
_MOST_COLUMNS = 16  # most classes that get columns of their own


def write_samples(path: Path, generator: Generator, *, num: int = 64, seed: int = 0) -> None:
    """Write a PNG grid of generated images, near square: each class has columns of its own, up to 16 classes.

    Images of less than 64 pixels a side are enlarged by the largest whole factor that leaves them within 64.

    Args:
        generator: Labels, if it takes them, cycle through the classes.
        num: Number of images, rounded up to full rows.
        seed: Of the latent vectors: the same seed shows the same vectors at every call.
    """
    write_bytes_atomic(path, png_bytes(sample_grid(generator, num=num, seed=seed)))


def sample_grid(generator: Generator, *, num: int = 64, seed: int = 0) -> Tensor:
    """Return the grid of `write_samples`, uint8 (C, H, W)."""
    rows, columns = _rows_and_columns(generator, num)
    return class_grid(to_uint8(generator.sample(rows * columns, seed=seed)), generator, columns)


def sample_grids(generator: Generator, *, num: int = 64, seed: int = 0) -> Tensor:
    """Return the grids of all candidates of `sample_grid`, uint8 (candidates, C, H, W); only one without a teacher."""
    rows, columns = _rows_and_columns(generator, num)
    images = generator.sample_candidates(rows * columns, seed)
    return torch.stack([class_grid(to_uint8(each), generator, columns) for each in images.unbind(1)])


def cell_maxima(grids: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Return the largest number in each cell of grids (G, C, H', W') of images of a shape: (G, rows, columns)."""
    height, width = (side * _enlarged(image_shape) for side in image_shape[1:])
    padded = torch.nn.functional.pad(grids, (0, GAP_PX, 0, GAP_PX))
    cells = padded.unflatten(2, (-1, height + GAP_PX)).unflatten(4, (-1, width + GAP_PX))
    return cells.amax(dim=(1, 3, 5))


def sample_grid_shape(generator: Generator, *, num: int = 64) -> tuple[int, int, int]:
    """Return the shape of `sample_grid`, without drawing anything."""
    rows, columns = _rows_and_columns(generator, num)
    height, width = (side * _enlarged(generator.image_shape) for side in generator.image_shape[1:])
    return generator.image_shape[0], rows * (height + GAP_PX) - GAP_PX, columns * (width + GAP_PX) - GAP_PX


def _rows_and_columns(generator: Generator, num: int) -> tuple[int, int]:
    """Return how many rows and columns hold at least ``num`` images: as many columns for each class, near square."""
    side = math.ceil(math.sqrt(num))
    columns = side
    if 0 < generator.num_classes <= _MOST_COLUMNS:
        columns = generator.num_classes * max(1, round(side / generator.num_classes))
    return -(-num // columns), columns


def class_grid(images: Tensor, generator: Generator, columns: int) -> Tensor:
    """Lay out images whose labels cycle through the classes: the columns of a class beside each other, enlarged."""
    if 0 < generator.num_classes <= _MOST_COLUMNS:  # (rows, columns of a class, classes, C, H, W)
        images = images.unflatten(0, (-1, columns // generator.num_classes, generator.num_classes))
        images = images.transpose(1, 2).flatten(0, 2)
    factor = _enlarged(generator.image_shape)
    return make_grid(images.repeat_interleave(factor, 2).repeat_interleave(factor, 3), columns)


def _enlarged(image_shape: tuple[int, int, int]) -> int:
    return max(1, _READABLE_PX // max(image_shape[1:]))


class SampleGrid:
    """Tick callback that writes `sample_grid` as ``step_000500.png`` into the run's samples/ folder.

    Args:
        folder: It exists.
        num: Number of images, rounded up to full rows.
        seed: Of the latent vectors.
        marked: Returns a generator's picture, a PNG, with a mark that it is artificial; None = without one.

    Attributes:
        shown: The grid of the last tick, uint8 (C, H, W); None before the first.
    """

    def __init__(
        self,
        folder: Path,
        *,
        num: int = 64,
        seed: int = 0,
        marked: Callable[[Generator, bytes], bytes] | None = None,
    ) -> None:
        self.folder, self.num, self.seed, self.marked = folder, num, seed, marked
        self.shown: Tensor | None = None

    def __call__(self, tick: Tick) -> None:
        """Write the grid of one tick."""
        if not isinstance(tick.generator, Generator):
            raise TypeError(f"a sample grid needs a models.Generator, got {type(tick.generator).__name__}.")
        path = self.folder / f"step_{tick.step:06d}.png"
        self.shown = sample_grid(tick.generator, num=self.num, seed=self.seed)
        picture = png_bytes(self.shown)
        if self.marked is not None:
            picture = self.marked(tick.generator, picture)
        write_bytes_atomic(path, picture, mode=PRIVATE_FILE)
