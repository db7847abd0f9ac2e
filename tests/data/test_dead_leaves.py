"""Dead leaves: what photographs have in common, edges and a falling spectrum, of any size and number of channels."""

import pytest
import torch

from idpgan.data import drawn
from idpgan.data.config import DataConfig
from idpgan.data.drawn import draw_public
from idpgan.data.images import to_float
from idpgan.errors import ConfigError


def slope(images):
    """Exponent of the power spectrum of brightness over spatial frequencies of 2 to 8 periods."""
    planes = to_float(images).mean(1)
    power = torch.fft.fft2(planes).abs().square().mean(0)
    along = (power[2:9, 0] + power[0, 2:9]).log()
    frequency = torch.arange(2, 9).log()
    return float(((frequency - frequency.mean()) * (along - along.mean())).sum() / frequency.var() / 6)


def kurtosis(images):
    """Of differences of neighboring pixels: 3 for any normal distribution, more where there are edges."""
    steps = to_float(images).mean(1).diff(dim=2)
    return float(steps.pow(4).mean() / steps.square().mean().square())


def test_they_have_edges_and_the_spectrum_of_photographs():
    images = drawn.draw_leaves(200, (32, 32), 3, seed=0)
    assert images.shape == (200, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert -3 < slope(images) < -1.5
    assert kurtosis(images) > 6
    noise = torch.randint(0, 256, images.shape, generator=torch.Generator().manual_seed(0)).byte()
    assert abs(slope(noise)) < 0.5  # a flat spectrum is told apart, and so is one without edges
    assert kurtosis(torch.nn.functional.avg_pool2d(noise.float(), 5, 1).byte()) < 4


def test_a_seed_fixes_them_and_pictures_have_the_size_that_was_asked_for():
    first, again, other = (drawn.draw_leaves(3, (20, 28), 1, seed=seed) for seed in (1, 1, 2))
    assert first.shape == (3, 1, 20, 28)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("size", [(1, 1), (2, 5), (3, 3)])
def test_tiny_pictures_are_drawn_too(size):
    images = drawn.draw_leaves(20, size, 3, seed=0)
    assert images.shape == (20, 3, *size)
    assert images.float().std() > 10


def test_they_serve_every_class_and_look_like_none():
    config = DataConfig(name="faces", num_images=40, image_size=24, public="dead-leaves", public_images=7)
    found = draw_public(config, (3, 24, 24), ("neutral", "happiness"))
    assert found.image_shape == (3, 24, 24)
    assert found.labels is None
    asked = config.model_copy(update={"public_labels": {"neutral": "round", "happiness": "not round"}})
    with pytest.raises(ConfigError, match=r"'round' .* is not a look of drawn dead-leaves"):
        draw_public(asked, (3, 24, 24), ("neutral", "happiness"))
