import os
import re

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from idpgan.data.config import DataConfig
from idpgan.data.load import describe, load
from idpgan.data.sources import face_folder, folder
from idpgan.errors import ConfigError, DataError
from tests.data.layouts import declared, read


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
    return declared(root, **keys)


def test_order_labels_and_pixels_are_those_of_image_folder(tmp_path):
    fill(tmp_path)
    for index, name in enumerate(
        ("a/sub/x.pgm", "a/sub-1/y.PNG", "a/sub/deep/z.bmp", "b/0.tif", "c-1/w.png", "c/v.png")
    ):
        save(tmp_path / name, picture(1000 + index))
    config = declared(tmp_path)
    expected = ImageFolder(tmp_path, loader=lambda path: np.asarray(Image.open(path)))
    images, test, _ = read(config)
    assert test is None
    assert images.classes == tuple(expected.classes)
    assert images.labels.tolist() == expected.targets
    assert np.array_equal(images.images[:, 0].numpy(), np.stack([pixels for pixels, _ in expected]))


def test_rgb_keeps_its_channels(tmp_path):
    images, *_ = read(fill(tmp_path, mode="RGB"))
    assert images.image_shape == (3, 4, 5)
    assert torch.equal(images.images[0].permute(1, 2, 0), torch.from_numpy(np.array(picture(100, "RGB"))))


def test_flat_folder_is_unlabeled(tmp_path):
    split = load(fill(tmp_path, classes=(), num=20))
    assert split.private.labels is None
    assert split.classes == ()


def test_train_and_test_folders(tmp_path):
    fill(tmp_path / "train", num=10)
    fill(tmp_path / "test", num=3, mode="L")
    config = declared(tmp_path)
    assert config.num_images == 20  # those of test/ are not dealt out
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
        (root / path).write_bytes(content[: len(content) - cut] if cut else b"this is not an image")

    return write


def animated(root):
    picture(0, size=(5, 4)).save(root / "a" / "x.tif", save_all=True, append_images=[picture(1)])


REFUSED_FILES = {
    "text named png": (damaged("a/x.png"), r"a/x\.png"),
    "first file damaged": (damaged("a/-.png"), r"a/-\.png"),
    "truncated png": (damaged("a/x.png", cut=30), r"a/x\.png.*truncated"),
    "truncated jpg": (damaged("a/x.jpg", picture(0), cut=40), r"a/x\.jpg.*[Tt]runcated"),
    "truncated pgm": (damaged("a/x.pgm", cut=3), r"a/x\.pgm.*truncated"),
    "empty file": (lambda root: (root / "a/x.png").write_bytes(b""), r"a/x\.png"),
    "other size": (lambda root: save(root / "b/x.png", picture(0, size=(4, 5))), r"b/x\.png is 4 x 5, expected 5 x 4"),
    "no known range": (
        lambda root: save(root / "b/x.tif", Image.new("F", (5, 4))),
        r"b/x.tif has pixels of mode F, whose range nothing says",
    ),
    "several images": (animated, r"a/x\.tif holds 2 pictures"),
    "dangling link": (lambda root: (root / "a/x.png").symlink_to("nowhere"), r"a/x\.png"),
    "unwanted class": (lambda root: save(root / "c/x.png", picture(0)), r"c/x\.png lies in a folder that is none of"),
}


@pytest.mark.parametrize("case", REFUSED_FILES)
def test_a_file_that_cannot_be_used_keeps_its_position_as_a_null_record(tmp_path, caplog, case):
    spoil, reason = REFUSED_FILES[case]
    fill(tmp_path)
    spoil(tmp_path)
    config = declared(tmp_path, classes=("a", "b"))
    images, _, refused = read(config)
    assert (len(images), len(refused)) == (13, 1)
    assert re.search(reason, refused[0].reason)
    place = sorted(path for path in tmp_path.rglob("*.*")).index(refused[0].path)
    assert images.null.nonzero().tolist() == [[place]]
    assert not images.images[place].any()
    assert images.labels[place] == 0
    assert images.existing().labels.tolist() == [0] * 6 + [1] * 6
    caplog.clear()
    split = load(config)
    assert split.refused == refused
    assert [record.getMessage().count("stand as null records") for record in caplog.records] == [1]
    assert "away" not in caplog.text  # a private file that is moved away moves the positions of others
    assert (
        sum(int(part.null.sum()) for part in (split.private, split.holdout, split.test) if part.null is not None) == 1
    )


BAD_FOLDERS = {
    "not an image": (lambda root: (root / "a/notes.txt").write_text("x"), r"a/notes\.txt is not an image"),
    "file beside classes": (lambda root: save(root / "x.png", picture(0)), r"x\.png lies beside"),
    "train without test": (
        lambda root: (root / "train" / "a").mkdir(parents=True),
        r"holds a, b, train: the parts of a set are train/ and test/, both of them",
    ),
    "one file more": (
        lambda root: save(root / "a/x.png", picture(0)),
        r"data.num_images = 12, but .* holds 13\. If files were added, take",
    ),
    "one file less": (
        lambda root: (root / "a/00.png").unlink(),
        r"data.num_images = 12, but .* holds 11\. .* or empty files of their names.* moves all files behind it",
    ),
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


def test_all_that_must_be_declared_is_asked_for_in_one_line_to_copy(tmp_path):
    fill(tmp_path, mode="RGB")
    for ask in (load, describe):
        with pytest.raises(DataError) as caught:
            ask(DataConfig(name="folder", root=tmp_path))
        lines = 'data.num_images = 12, data.classes = ["a", "b"], data.image_size = [4, 5], data.channels = 3'
        assert f"Found in {tmp_path}: {lines}. Set these" in str(caught.value)
        with pytest.raises(DataError, match=r"^data\.channels must be declared .*: data\.channels = 3\."):
            ask(DataConfig(name="folder", root=tmp_path, num_images=12, classes=("a", "b"), image_size=(4, 5)))


def test_what_contradicts_the_folder_is_refused_before_a_pixel_is_read(tmp_path):
    right = fill(tmp_path)
    for keys, message in (
        ({"num_images": 11}, r"data.num_images = 11, but .* holds 12"),
        ({"classes": ("x", "y")}, r'holds no such class folder. Set data.classes = \["a", "b"\]'),
    ):
        wrong = DataConfig(**{**right.model_dump(), **keys})
        for ask in (load, describe):
            with pytest.raises(DataError, match=message):
                ask(wrong)


@pytest.mark.parametrize("share", [6, 7, 12])
def test_no_share_of_files_that_cannot_be_used_ends_a_run(tmp_path, caplog, share):
    right = fill(tmp_path)
    shape = describe(right)
    for path in sorted(tmp_path.rglob("*.*"))[:share]:
        path.write_bytes(b"")
    assert describe(right) == shape
    split = load(right)
    assert split.shape == shape
    assert sum(int(part.is_null.sum()) for part in (split.private, split.holdout, split.test)) == share
    assert f"{share} of 12 images looked at in {tmp_path} are of another size or cannot be read" in caplog.text
    assert f"{share} of 12 files cannot be used as declared and stand as null records" in caplog.text
    assert ("Is it the right folder?" in caplog.text) == (share > 6)
    assert "or declare" not in caplog.text  # the size that is declared already


def test_a_size_that_is_declared_wrong_is_a_warning_with_the_way_out(tmp_path, caplog):
    wrong = fill(tmp_path).model_copy(update={"image_size": (5, 4)})
    assert describe(wrong).image_shape == (1, 5, 4)
    assert "The image size is [5, 4], but 12 of 12" in caplog.text
    assert "or declare [4, 5], as most of them are" in caplog.text
    assert load(wrong).private.is_null.all()


def test_copies_are_remarked_on_the_terminal(tmp_path, caplog):
    config = fill(tmp_path)
    load(config)
    for path in ("a/03.png", "b/05.png"):
        (tmp_path / path).write_bytes((tmp_path / "a" / "01.png").read_bytes())
    (tmp_path / "a" / "04.png").write_bytes(b"")
    (tmp_path / "a" / "05.png").write_bytes(b"")  # two null records are not copies
    assert "Exact copies" not in caplog.text
    load(config)
    assert f"Exact copies of other pictures: 2, as {tmp_path}/a/01.png = {tmp_path}/a/03.png." in caplog.text


def test_classes_are_the_declared_ones_and_may_have_no_folder(tmp_path):
    fill(tmp_path)
    images, *_ = read(declared(tmp_path, classes=("b", "c", "a")))
    assert images.classes == ("b", "c", "a")
    assert images.labels.tolist() == [2] * 6 + [0] * 6
    assert read(declared(tmp_path, classes=()))[0].labels is None
    fill(tmp_path / "flat", classes=())
    with pytest.raises(DataError, match=r'data.classes = \["a"\], but .* holds no class folders'):
        declared(tmp_path / "flat", classes=("a",))


def test_a_misspelled_class_is_said_before_anything_is_read(tmp_path, caplog):
    right = fill(tmp_path, num=20)
    describe(right)
    assert caplog.text == ""
    describe(right.model_copy(update={"classes": ("a", "B")}))
    assert (
        "Declared, but not there: B. There, but not declared, so that all images of it stand as null records: b"
        in caplog.text
    )


def test_positions_are_a_function_of_the_names_alone(tmp_path):
    """Other contents, dates and an order of writing change nothing; an emptied file keeps everybody's position."""
    config = fill(tmp_path, num=5)
    before, *_ = read(config)
    (tmp_path / "a" / "02.png").write_bytes(b"")
    after, *_ = read(config)
    kept = torch.arange(10) != 2
    assert torch.equal(after.images[kept], before.images[kept])
    assert torch.equal(after.labels[kept], before.labels[kept])
    assert after.null.tolist() == [not keep for keep in kept]


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


def test_train_and_test_must_agree_where_nothing_is_declared(tmp_path):
    fill(tmp_path / "train")
    fill(tmp_path / "test", classes=("a", "c"))
    with pytest.raises(DataError, match="only one of them has b, c"):
        folder.read_all(tmp_path, None)


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_declared_conversion(tmp_path, channels, mode):
    fill(tmp_path, mode="RGBA")
    save(tmp_path / "a/palette.png", picture(7, "RGB").convert("P"))
    save(tmp_path / "a/grey.png", picture(8))
    config = declared(tmp_path, channels=channels)
    images, *_ = read(config)
    assert images.image_shape == (channels, 4, 5) == describe(config).image_shape
    white = Image.new("RGBA", (5, 4), "white")
    expected = np.asarray(Image.alpha_composite(white, picture(100, "RGBA")).convert(mode)).reshape(4, 5, channels)
    assert np.array_equal(images.images[0].permute(1, 2, 0).numpy(), expected)


PROTECTING_NOBODY = {
    "damaged": (damaged("a/x.png"), r"a/x\.png"),
    "other size": (
        lambda root: save(root / "b/x.png", picture(0, size=(4, 5))),
        r"b/x.png is 4 x 5 L.*a/00.png is 5 x 4 L",
    ),
    "other colors": (
        lambda root: save(root / "b/x.png", picture(0, "RGB")),
        r"b/x.png is 5 x 4 RGB.*all be grey or all in color",
    ),
    "class without images": (lambda root: (root / "empty").mkdir(), "empty holds no images"),
}


@pytest.mark.parametrize("case", PROTECTING_NOBODY)
def test_images_that_nobody_protects_have_no_null_records(tmp_path, case):
    """Public and generated images: every fault is an error."""
    spoil, message = PROTECTING_NOBODY[case]
    fill(tmp_path)
    assert len(folder.read_all(tmp_path, None)) == 12
    spoil(tmp_path)
    with pytest.raises(DataError, match=message):
        folder.read_all(tmp_path, None)


def test_progress_reaches_the_end(tmp_path):
    config, calls = fill(tmp_path, num=100), []
    load(config, progress=lambda what, done, total: calls.append((done, total)))
    assert calls == [(64, 200), (128, 200), (192, 200), (200, 200)]


def test_describe_reads_no_pixels(tmp_path):
    config = fill(tmp_path, num=20)
    damaged("a/00.png", cut=30)(tmp_path)  # the header is whole
    shape = describe(config)
    assert shape.sizes == (0, 29, 3, 8)
    assert shape.num_private == 29
    assert shape.image_shape == (1, 4, 5)
    assert shape.classes == ("a", "b")


def test_a_class_may_be_called_train(tmp_path):
    """Only train and test together are the parts of a set."""
    config = fill(tmp_path, classes=("bus", "train"))
    assert read(config).images.classes == ("bus", "train")
    assert folder.read_all(tmp_path, None).classes == ("bus", "train")
    fill(tmp_path, classes=("bus", "train", "test"))
    assert folder.read_all(tmp_path, None).classes == ("bus", "test", "train")


@pytest.mark.parametrize("names", [("train",), ("test",), ("train", "val"), ("test", "validation")])
def test_a_part_of_a_set_is_no_class(tmp_path, names):
    for name in names:
        save(tmp_path / name / "1.png", picture(1))
    with pytest.raises(DataError, match="the parts of a set are train/ and test/"):
        folder.read_all(tmp_path, None)


LEFT = ("@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found", "__MACOSX", ".thumbnails")


@pytest.mark.parametrize("name", LEFT)
def test_what_systems_leave_behind_is_no_class_and_no_record(tmp_path, name, caplog):
    config = fill(tmp_path)
    for place in (tmp_path / name / "a", tmp_path / "a" / name, tmp_path / "b" / "deep" / name):
        save(place / "x.png", picture(7))
    images = read(config).images
    assert (len(images), images.classes) == (12, ("a", "b"))
    assert f"Left out of {tmp_path}, in hidden folders and what systems leave behind: {name} (3) image" in caplog.text
    assert len(folder.read_all(tmp_path, None)) == len(face_folder.tree(tmp_path)) == 12
    assert list(face_folder.scan(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("root", ["photos", "linked"])
@pytest.mark.parametrize(("link", "real"), [("0link", "real"), ("zlink", "real"), ("a/b/back", ""), ("a/0/b", "real")])
def test_a_link_is_named_and_not_the_folder_that_it_leads_to(tmp_path, root, link, real):
    """Whichever is met first, and also where the folder itself is reached by a link, which is none of its own."""
    save(tmp_path / "photos" / "real" / "1.png", picture(1))
    (tmp_path / "photos" / link).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "photos" / link).symlink_to(tmp_path / "photos" / real)
    (tmp_path / "linked").symlink_to("photos")
    expected = f"{tmp_path / root / link} leads to {tmp_path / root / real}, which is read as well: remove the link."
    with pytest.raises(DataError, match=re.escape(expected)):
        face_folder.tree(tmp_path / root)
