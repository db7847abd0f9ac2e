"""Sample grids."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from idpgan.data.picture import make_grid, png_bytes
from idpgan.models.config import ModelConfig
from idpgan.models.families import build_generator
from idpgan.training.method import Tick
from idpgan.training.samples import SampleGrid

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


@pytest.mark.parametrize(("classes", "size"), [(10, (98, 48)), (0, (78, 68))])
def test_every_tick_shows_the_same_latents_and_labels(tmp_path, classes, size):
    model = MODEL.model_copy(update={"conditional": classes > 0})
    callback = SampleGrid(tmp_path, num=49, seed=3)
    first, other = (build_generator(model, (1, 8, 8), classes, seed=seed) for seed in (0, 1))
    for step, generator in [(5, first), (10, first), (1_000_000, other)]:
        callback(tick(generator, step))
    files = [tmp_path / name for name in ("step_000005.png", "step_000010.png", "step_1000000.png")]
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()
    with Image.open(files[0]) as image:
        assert image.size == size  # 5 rows of 10 classes, or 7 rows of 8


def test_a_grid_of_something_else_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"models\.Generator"):
        SampleGrid(tmp_path)(tick(torch.nn.Linear(1, 1), 1))
