"""Drawn public images: their number and size are known before, their labels mean what the config says."""

import re

import numpy as np
import pytest
import torch

from idpgan.data import fonts
from idpgan.data.config import DataConfig
from idpgan.data.drawn import PUBLIC_SEED, draw_public
from idpgan.data.faces import ATTRIBUTES, draw
from idpgan.data.images import png_bytes
from idpgan.data.load import describe, load
from idpgan.errors import ConfigError, DataError
from idpgan.removed import gone

SMILES = {"happiness": "smiling", "neutral": "not smiling"}
CLASSES = ("neutral", "happiness")


def config_of(**keys):
    return DataConfig(name="faces", num_images=40, image_size=24, channels=1, public="faces", **keys)


def test_they_are_as_many_as_described_and_none_is_taken_out_of_the_private_ones():
    config = config_of(public_images=30)
    shape, split = describe(config), load(config)
    assert shape.sizes.public == len(split.public) == 30
    assert split.shape.sizes == shape.sizes
    assert split.public.image_shape == split.image_shape == (1, 24, 24)
    assert split.public.labels is None
    without = load(config.model_copy(update={"public": None, "public_images": None}))
    assert torch.equal(without.private.images, split.private.images)


def test_a_seed_fixes_them():
    first, again = (draw_public(config_of(public_images=20), (1, 24, 24), ()) for _ in range(2))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.images, draw(20, 24, 1, seed=PUBLIC_SEED).images)


def test_labels_follow_what_the_faces_look_like():
    config = config_of(public_images=60, public_labels=SMILES)
    found = draw_public(config, (1, 24, 24), CLASSES)
    assert found.labels.bincount().tolist() == [30, 30]
    drawn = draw(60, 24, 1, seed=PUBLIC_SEED)
    smiling = drawn.attributes[:, ATTRIBUTES.index("smiling")].bool()
    for number, holds in enumerate((~smiling, smiling)):
        own = found.images[found.labels == number].flatten(1)
        assert (own[:, None] == drawn.images[holds].flatten(1)).all(2).any(1).all()
        assert not (own[:, None] == drawn.images[~holds].flatten(1)).all(2).any(1).any()


def test_a_crop_is_the_middle_of_a_larger_picture():
    found = draw_public(config_of(public_images=3, public_crop=0.5), (3, 24, 20), ())
    whole = draw(3, (48, 40), 3, seed=PUBLIC_SEED).images
    assert found.image_shape == (3, 24, 20)
    assert any(torch.equal(found.images, whole[:, :, top : top + 24, 10:30]) for top in range(8, 14))


@pytest.fixture
def portraits(tmp_path):
    """A folder of public pictures, whose table says who smiles."""
    drawn = draw(20, 24, 1, seed=PUBLIC_SEED)
    smiling = drawn.attributes[:, ATTRIBUTES.index("smiling")].tolist()
    for number, image in enumerate(drawn.images):
        (tmp_path / f"{number}.png").write_bytes(png_bytes(image))
    lines = [f"{number}.png,{smiles},{number}" for number, smiles in enumerate(smiling)]
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,smiling,age", *lines]) + "\n")
    return tmp_path


def of_folder(root, **keys):
    keys = {"num_images": 40, "image_size": 24, "channels": 1, "label": ("smiling",), "public_root": root} | keys
    return DataConfig(name="faces", **keys)


LOOKS = {"no smiling": "not smiling", "smiling": "smiling"}


def test_pictures_of_a_folder_are_labeled_by_what_its_table_says(portraits):
    """In turn, and as many of each class, as of pictures that are drawn; nobody is in both."""
    config = of_folder(portraits, public_labels=LOOKS)
    found = load(config).public
    assert describe(config).sizes.public == len(found) == 20
    assert found.labels.tolist() == [0, 1] * 10
    assert torch.equal(found.images, draw_public(config_of(public_images=20, public_labels={
        "neutral": "not smiling", "happiness": "smiling"}), (1, 24, 24), CLASSES).images)  # fmt: skip
    everybody = load(of_folder(portraits, public_labels={})).public
    assert (everybody.labels, len(everybody)) == (None, 20)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"smiling": "smiling"}, "do not meet"),
        (LOOKS | {"smiling": "smilin"}, "has no column 'smilin'.*Did you mean 'smiling'"),
    ],
)
def test_looks_that_a_folder_does_not_have_are_one_line(portraits, labels, words):
    with pytest.raises((ConfigError, DataError), match=words):
        load(of_folder(portraits, public_labels=labels))


def test_looks_of_files_without_a_table_are_refused(portraits):
    (portraits / "metadata.csv").unlink()
    with pytest.raises(DataError, match="there is no such file"):
        describe(of_folder(portraits, public_labels=LOOKS))
    np.savez(portraits / "public.npz", images=np.zeros((10, 24, 24), np.uint8))
    with pytest.raises(ConfigError, match="says looks, and"):
        load(of_folder(portraits / "public.npz", public_labels=LOOKS))
    assert load(of_folder(portraits / "public.npz", public_labels={})).public.labels is None


def test_portraits_are_no_longer_drawn_while_a_run_begins():
    with pytest.raises(ConfigError, match=re.escape(gone('data.public = "people"'))):
        describe(DataConfig(name="faces", public="people"))


def test_digits_of_a_pen_belong_to_the_classes_that_are_called_as_they_are():
    digits = tuple("0123456789")
    config = DataConfig(name="mnist", public="fonts", public_images=40)
    found, written = draw_public(config, (1, 28, 28), digits), fonts.draw(40, seed=PUBLIC_SEED)
    assert torch.equal(found.images, written.images)
    assert torch.equal(found.labels, written.labels)
    few = draw_public(config, (1, 28, 28), ("7", "3"))
    assert (few.images[0] == written.images[written.labels == 7]).all((1, 2, 3)).any()
    assert draw_public(config, (1, 28, 28), ("cat", "dog")).labels is None
    named = config.model_copy(update={"public_labels": {"three": "3", "other": "not 3"}})
    assert draw_public(named, (1, 28, 28), ("three", "other")).labels.bincount().tolist() == [20, 20]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"public_labels": {"happiness": "smiling"}}, "'neutral' is only in one of them"),
        ({"public_labels": SMILES | {"neutral": "no smile"}}, "not a look of drawn faces"),
        ({"public_labels": SMILES, "public_images": 1}, "Set data.public_images higher"),
    ],
)
def test_labels_that_do_not_fit_are_one_line(keys, words):
    with pytest.raises(ConfigError, match=words):
        draw_public(config_of(**keys), (1, 24, 24), CLASSES)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"public_images": 5}, "public_images is for drawn images"),
        ({"public": "fonts", "public_crop": 0.5}, "are cut already"),
        ({"public": "faces", "public_root": "x"}, "exclude each other"),
        ({"public": "faces", "public_share": 0.1, "confirm_public": True}, "exclude each other"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(keys, words):
    with pytest.raises((ConfigError, ValueError), match=words):
        DataConfig(**keys)


def test_wrong_labels_are_refused_before_an_image_is_read():
    with pytest.raises(ConfigError, match="do not meet"):
        describe(config_of(label=("glasses",), public_labels=SMILES))


def test_an_npz_of_public_images_is_as_good_as_a_folder(tmp_path):
    pixels = np.random.default_rng(0).integers(256, size=(10, 24, 24), dtype=np.uint8)
    np.savez(
        tmp_path / "public.npz", images=pixels, labels=np.arange(10) % 2, classes=np.array(["no glasses", "glasses"])
    )
    keys = {"name": "faces", "num_images": 40, "image_size": 24, "channels": 1, "label": ("glasses",)}
    config = DataConfig(**keys, public_root=tmp_path / "public.npz")
    assert describe(config).sizes.public == 10
    found = load(config).public
    assert np.array_equal(found.images[:, 0].numpy(), pixels)
    assert found.labels.tolist() == [0, 1] * 5
