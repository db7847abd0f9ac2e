"""Digits of a pen: any size, reproducible, labeled, and legible."""

import pytest
import torch

from idpgan.data import fonts
from idpgan.data.config import DataConfig
from idpgan.data.load import describe, load
from idpgan.errors import DataError


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (28, 1), ((20, 32), 3), (64, 1)])
def test_any_size(size, channels):
    images = fonts.draw(20, size, channels, seed=1)
    height, width = (size, size) if isinstance(size, int) else size
    assert images.images.shape == (20, channels, height, width)
    assert images.labels.tolist() == [*range(10)] * 2
    assert (images.images.flatten(1).max(1).values > 60).all()  # there is ink in each
    edge, middle = images.images[:, :, [0, -1]].float().mean(), images.images.float().mean()
    assert edge < 0.7 * middle  # and less at the edge


def test_a_seed_fixes_them_and_another_changes_them():
    assert torch.equal(fonts.draw(15, 12, seed=3).images, fonts.draw(15, 12, seed=3).images)
    assert not torch.equal(fonts.draw(15, 12, seed=3).images, fonts.draw(15, 12, seed=4).images)
    assert len(fonts.draw(300, 16, seed=0).images.unique(dim=0)) == 300


def test_it_is_a_source(tmp_path):
    config = DataConfig(name="fonts", num_images=50, image_size=16)
    shape = describe(config)
    assert shape is not None
    assert shape.classes == fonts.CLASSES
    assert load(config).shape == shape
    assert describe(DataConfig(name="fonts")).image_shape == (1, 28, 28)


def test_the_real_digits_look_like_the_drawn_ones_of_their_label():
    """The nearest of a thousand drawn digits has the label of many digits of scikit-learn, which fill their image."""
    real, drawn = load(DataConfig(name="digits")).test, fonts.draw(1000, 8, seed=2)

    def rows(images):
        flat = images.images.flatten(1).double()
        flat = flat - flat.mean(1, keepdim=True)
        return flat / flat.norm(dim=1, keepdim=True)

    found = drawn.labels[(rows(real) @ rows(drawn).T).argmax(1)]
    assert (found == real.labels).double().mean() > 0.35  # chance: 0.1


@pytest.mark.parametrize(
    ("arguments", "words"), [((0,), "at least one"), ((5, 7), "too small"), ((5, 28, 2), "channel")]
)
def test_what_cannot_be_drawn_is_refused(arguments, words):
    with pytest.raises(DataError, match=words):
        fonts.draw(*arguments)
