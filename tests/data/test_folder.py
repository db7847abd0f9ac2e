import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from idpgan.data import folder
from idpgan.data.config import DataConfig
from idpgan.data.load import describe, load
from idpgan.errors import ConfigError, DataError


def picture(seed, mode="L", size=(5, 4)):
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    return Image.fromarray(pixels)


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def fill(root, classes=("b", "a"), num=6, mode="L", **keys):
    """Write class folders (or, without classes, a flat folder) of lossless images."""
    for label, name in enumerate(classes or (".",)):
        for index in range(num):
            save(root / name / f"{index:02}.png", picture(100 * label + index, mode))
    return DataConfig(name="folder", root=root, **keys)


def test_order_labels_and_pixels_are_those_of_image_folder(tmp_path):
    config = fill(tmp_path)
    for index, name in enumerate(
        ("a/sub/x.pgm", "a/sub-1/y.PNG", "a/sub/deep/z.bmp", "b/0.tif", "c-1/w.png", "c/v.png")
    ):
        save(tmp_path / name, picture(1000 + index))
    expected = ImageFolder(tmp_path, loader=lambda path: np.asarray(Image.open(path)))
    images, test = folder.read(config)
    assert test is None
    assert images.classes == tuple(expected.classes)
    assert images.labels.tolist() == expected.targets
    assert np.array_equal(images.images[:, 0].numpy(), np.stack([pixels for pixels, _ in expected]))


def test_rgb_keeps_its_channels(tmp_path):
    images, _ = folder.read(fill(tmp_path, mode="RGB"))
    assert images.image_shape == (3, 4, 5)
    assert torch.equal(images.images[0].permute(1, 2, 0), torch.from_numpy(np.array(picture(100, "RGB"))))


def test_flat_folder_is_unlabelled(tmp_path):
    split = load(fill(tmp_path, classes=(), num=20))
    assert split.private.labels is None
    assert split.classes == ()


def test_train_and_test_folders(tmp_path):
    fill(tmp_path / "train", num=10)
    fill(tmp_path / "test", num=3, mode="L")
    config = DataConfig(name="folder", root=tmp_path)
    split = load(config)
    assert describe(config).sizes == (0, 18, 2, 6)
    assert len(split.test) == 6
    assert split.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert torch.equal(split.test.images[0, 0], torch.from_numpy(np.array(picture(100))))
    assert split.test.images.untyped_storage().nbytes() == split.test.num_bytes  # does not keep the rest alive


def test_hidden_files_are_the_only_ones_left_out(tmp_path):
    config = fill(tmp_path)
    digest = load(config).digest
    for name in (".DS_Store", "Thumbs.db", "a/.hidden.png", "b/desktop.ini", ".git/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert load(config).digest == digest


def damaged(path, image=None, cut=0):
    """Return a function that writes a damaged file at `path` under the root."""

    def write(root):
        save(root / path, image or picture(0))
        content = (root / path).read_bytes()
        (root / path).write_bytes(content[: len(content) - cut] if cut else b"this is no image")

    return write


def png_of_16_bits(root):
    """Write an RGB image of 16 bits a channel, which Pillow would read as 8 without a word."""
    chunks = b""
    pixels = zlib.compress(b"".join(b"\0" + bytes(5 * 6) for _ in range(4)))
    for kind, data in ((b"IHDR", struct.pack(">IIBBBBB", 5, 4, 16, 2, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b"")):
        chunks += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    (root / "a" / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


def animated(root):
    picture(0, size=(5, 4)).save(root / "a" / "x.tif", save_all=True, append_images=[picture(1)])


BAD_FOLDERS = {
    "text named png": (damaged("a/x.png"), r"a/x\.png"),
    "first file damaged": (damaged("a/-.png"), r"a/-\.png"),
    "truncated png": (damaged("a/x.png", cut=30), r"a/x\.png.*truncated"),
    "truncated jpg": (damaged("a/x.jpg", picture(0, size=(50, 40)), cut=200), r"a/x\.jpg.*truncated"),
    "truncated pgm": (damaged("a/x.pgm", cut=3), r"a/x\.pgm.*truncated"),
    "empty file": (lambda root: (root / "a/x.png").write_bytes(b""), r"a/x\.png"),
    "not an image": (lambda root: (root / "a/notes.txt").write_text("x"), r"a/notes\.txt is no image"),
    "file beside classes": (lambda root: save(root / "x.png", picture(0)), r"x\.png lies beside"),
    "class without images": (lambda root: (root / "empty").mkdir(), "empty holds no images"),
    "other size": (
        lambda root: save(root / "b/x.png", picture(0, size=(4, 5))),
        r"b/x.png is 4 x 5 L.*a/00.png is 5 x 4 L",
    ),
    "other colours": (lambda root: save(root / "b/x.png", picture(0, "RGB")), r"b/x.png is 5 x 4 RGB.*data\.channels"),
    "alpha": (lambda root: save(root / "b/x.png", picture(0, "RGBA")), r"b/x.png has the mode RGBA.*data\.channels"),
    "16 bits": (
        lambda root: save(root / "b/x.png", Image.new("I;16", (5, 4))),
        r"b/x.png has the mode I;16.*Convert it",
    ),
    "16 bits RGB": (png_of_16_bits, r"a/x\.png has the mode RGB;16B"),
    "several images": (animated, r"a/x\.tif holds 2 images"),
    "dangling link": (lambda root: (root / "a/x.png").symlink_to("nowhere"), r"a/x\.png"),
    "train without test": (lambda root: (root / "train").mkdir(), "train"),
}


@pytest.mark.parametrize("case", BAD_FOLDERS)
def test_what_is_wrong_is_named(tmp_path, case):
    spoil, message = BAD_FOLDERS[case]
    config = fill(tmp_path)
    load(config)  # fine so far
    spoil(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        load(config)
    assert "\n" not in str(caught.value)


def test_no_folder_no_images_no_root(tmp_path):
    with pytest.raises(DataError, match=r"no folder .*nowhere"):
        load(DataConfig(name="folder", root=tmp_path / "nowhere"))
    with pytest.raises(DataError, match="holds no images"):
        load(DataConfig(name="folder", root=tmp_path))
    for ask in (load, describe):
        with pytest.raises(ConfigError, match=r"data\.root is missing"):
            ask(DataConfig(name="folder"))
    assert describe(DataConfig(name="folder", root=tmp_path / "nowhere")) is None


def test_unreadable_folder_is_named(tmp_path, monkeypatch):
    config = fill(tmp_path)
    save(tmp_path / "a" / "locked" / "x.png", picture(0))
    scandir = os.scandir

    def refuse(path):  # chmod would not stop root
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"Cannot list the folder .*/a/locked: Permission denied"):
        load(config)


def test_train_and_test_must_agree(tmp_path):
    fill(tmp_path / "train")
    fill(tmp_path / "test", classes=("a", "c"))
    with pytest.raises(DataError, match="only one of them has b, c"):
        load(DataConfig(name="folder", root=tmp_path))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_declared_conversion(tmp_path, channels, mode):
    fill(tmp_path, mode="RGBA")
    save(tmp_path / "a/palette.png", picture(7, "RGB").convert("P"))
    save(tmp_path / "a/grey.png", picture(8))
    config = DataConfig(name="folder", root=tmp_path, channels=channels)
    images, _ = folder.read(config)
    assert images.image_shape == (channels, 4, 5) == describe(config).image_shape
    expected = np.asarray(picture(100, "RGBA").convert(mode)).reshape(4, 5, channels)
    assert np.array_equal(images.images[0].permute(1, 2, 0).numpy(), expected)
    save(tmp_path / "a/x.png", Image.new("I;16", (5, 4)))
    with pytest.raises(DataError, match=r"a/x\.png has the mode I;16"):
        folder.read(config)


def test_image_size_is_checked_not_made(tmp_path):
    config = fill(tmp_path, image_size=5)
    for ask in (load, describe):
        with pytest.raises(DataError, match=r"image_size = 5, but .* are 5 x 4"):
            ask(config)


def test_progress_reaches_the_end(tmp_path):
    config, calls = fill(tmp_path, num=100), []
    load(config, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(64, 200), (128, 200), (192, 200), (200, 200)]


def test_describe_reads_no_pixels(tmp_path):
    config = fill(tmp_path, num=20)
    damaged("a/00.png", cut=30)(tmp_path)  # the header is whole
    shape = describe(config)
    assert shape.sizes == (0, 29, 3, 8)
    assert shape.num_private == 29
    assert shape.image_shape == (1, 4, 5)
    assert shape.classes == ("a", "b")
