"""Sample grids."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from idpgan.data.images import make_grid, png_bytes
from idpgan.models.checkpoint import build_generator
from idpgan.models.config import ModelConfig
from idpgan.training.method import Tick
from idpgan.training.stats import SampleGrid, cell_maxima, sample_grid, sample_grid_shape

MODEL = ModelConfig(latent_dim=4, width=4)


def tick(generator, step):
    return Tick(step, 0.0, 1e-5, 0.0, 0.0, 0.0, {}, generator)


def test_a_grid_has_each_image_in_its_place():
    images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 3, 4, 6)
    grid = make_grid(images, columns=3)
    assert grid.shape == (3, 2 * 6 - 2, 3 * 8 - 2)
    for i in range(5):
        row, column = divmod(i, 3)
        assert (grid[:, row * 6 : row * 6 + 4, column * 8 : column * 8 + 6] == i).all()
    assert (grid[:, 4:6] == 255).all()  # the gap
    assert (grid[:, 6:, 16:] == 255).all()  # the place that is not filled


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_a_png_holds_the_pixels(channels, mode):
    image = torch.arange(channels * 20, dtype=torch.uint8).view(channels, 4, 5)
    with Image.open(io.BytesIO(png_bytes(image))) as read:
        assert read.mode == mode
        assert np.array_equal(np.asarray(read).reshape(4, 5, channels), image.permute(1, 2, 0).numpy())


@pytest.mark.parametrize(("classes", "size"), [(10, (658, 328)), (0, (460, 460)), (2, (526, 460))])
def test_every_tick_shows_the_same_latents_and_labels(tmp_path, classes, size):
    model = MODEL.model_copy(update={"conditional": classes > 0})
    callback = SampleGrid(tmp_path, num=49, seed=3)
    first, other = (build_generator(model, (1, 8, 8), classes, seed=seed) for seed in (0, 1))
    for step, generator in [(5, first), (10, first), (1_000_000, other)]:
        callback(tick(generator, step))
    files = [tmp_path / name for name in ("step_000005.png", "step_000010.png", "step_1000000.png")]
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()
    with Image.open(files[0]) as image:
        assert image.size == size  # of 64 px and gaps: 5 rows of 10 classes, 7 of 7, 7 of 2 times 4 columns


class Numbered(torch.nn.Module):
    """Draws its labels, as grey values."""

    image_shape, num_classes = (1, 20, 20), 3

    def sample(self, num, seed):
        del seed
        return (torch.arange(num) % 3 / 127.5 - 1).view(-1, 1, 1, 1).expand(-1, 1, 20, 20)


def test_every_class_has_columns_of_its_own_and_small_images_are_enlarged():
    grid = sample_grid(Numbered(), num=64)
    assert grid.shape == sample_grid_shape(Numbered(), num=64) == (1, 8 * 62 - 2, 9 * 62 - 2)  # 20 px three times
    cells = grid[0, 30::62, 30::62]
    assert cells.tolist() == [[0, 0, 0, 1, 1, 1, 2, 2, 2]] * 8
    assert cell_maxima(255 - grid[None], (1, 20, 20))[0].tolist() == (255 - cells).tolist()


def test_a_grid_of_something_else_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"models\.Generator"):
        SampleGrid(tmp_path)(tick(torch.nn.Linear(1, 1), 1))
