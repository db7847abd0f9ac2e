"""Sample grids: generated images only, on the same latent vectors at every tick."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from idpgan.data.images import to_uint8
from idpgan.data.picture import GAP_PX, make_grid, png_bytes
from idpgan.files import PRIVATE_FILE, write_bytes_atomic
from idpgan.models.generator import Generator
from idpgan.training.method import Tick


def write_samples(path: Path, generator: Generator, *, num: int = 64, seed: int = 0, mode: int = 0o666) -> None:
    """Write a PNG grid of generated images: one column per class (at most 16), or eight columns.

    Args:
        generator: Labels, if it takes them, cycle through the classes.
        num: Number of images, rounded up to full rows.
        seed: Of the latent vectors: the same seed shows the same vectors at every call.
        mode: Permissions before the umask.
    """
    write_bytes_atomic(path, png_bytes(sample_grid(generator, num=num, seed=seed)), mode=mode)


def sample_grid(generator: Generator, *, num: int = 64, seed: int = 0) -> Tensor:
    """Return the grid of `write_samples`, uint8 (C, H, W)."""
    columns = _columns(generator)
    images = generator.sample(-(-num // columns) * columns, seed=seed)
    return make_grid(to_uint8(images), columns)


def sample_grids(generator: Generator, *, num: int = 64, seed: int = 0) -> Tensor:
    """Return the grids of all candidates of `sample_grid`, uint8 (candidates, C, H, W); one without a teacher."""
    columns = _columns(generator)
    images = generator.sample_candidates(-(-num // columns) * columns, seed)
    return torch.stack([make_grid(to_uint8(each), columns) for each in images.unbind(1)])


def cell_maxima(grids: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """Return the largest number in each cell of grids (G, C, H', W') laid out by `make_grid`: (G, rows, columns)."""
    _, height, width = image_shape
    padded = torch.nn.functional.pad(grids, (0, GAP_PX, 0, GAP_PX))
    cells = padded.unflatten(2, (-1, height + GAP_PX)).unflatten(4, (-1, width + GAP_PX))
    return cells.amax(dim=(1, 3, 5))


def sample_grid_shape(generator: Generator, *, num: int = 64) -> tuple[int, int, int]:
    """Return the shape of `sample_grid`, without drawing anything."""
    columns, (channels, height, width) = _columns(generator), generator.image_shape
    return channels, -(-num // columns) * (height + GAP_PX) - GAP_PX, columns * (width + GAP_PX) - GAP_PX


def _columns(generator: Generator) -> int:
    return min(generator.num_classes, 16) or 8


class SampleGrid:
    """Tick callback that writes ``step_000500.png`` into the run's samples/ folder; see `write_samples`."""

    def __init__(self, folder: Path, *, num: int = 64, seed: int = 0) -> None:
        self.folder = folder
        self.num = num
        self.seed = seed

    def __call__(self, tick: Tick) -> None:
        """Write the grid of one tick."""
        if not isinstance(tick.generator, Generator):
            raise TypeError(f"a sample grid needs a models.Generator, got {type(tick.generator).__name__}.")
        path = self.folder / f"step_{tick.step:06d}.png"
        write_samples(path, tick.generator, num=self.num, seed=self.seed, mode=PRIVATE_FILE)
