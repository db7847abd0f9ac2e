import gzip
import os
import shutil
import struct

import pytest
import torch

from idpgan.data.config import DataConfig
from idpgan.data.load import describe, load
from idpgan.data.sources import mnist
from idpgan.errors import DataError
from tests.data.layouts import read

NUM_TRAIN, NUM_TEST = 40, 8
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def idx(tensor, magic=None, shape=None):
    shape = tensor.shape if shape is None else shape
    header = struct.pack(f">I{len(shape)}I", 0x0800 + len(shape) if magic is None else magic, *shape)
    return header + tensor.numpy().tobytes()


def contents():
    generator = torch.Generator().manual_seed(0)
    files = {}
    for part, num in ((mnist.TRAIN, NUM_TRAIN), (mnist.TEST, NUM_TEST)):
        files[part[0]] = torch.randint(0, 256, (num, 28, 28), dtype=torch.uint8, generator=generator)
        files[part[1]] = (torch.arange(num) % 10).to(torch.uint8)
    return files


def write(folder, packed=False, **replaced):
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensor in contents().items():
        content = replaced.get(name.split("-ubyte")[0].replace("-", "_"), idx(tensor))
        if content is not None:
            path = folder / (f"{name}.gz" if packed else name)
            path.write_bytes(gzip.compress(content) if packed else content)
    return DataConfig(name="mnist", root=folder)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("mnist", "."),
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "."),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
def test_files_are_found_and_read_without_writing(tmp_path, name, place, packed):
    write(tmp_path / place, packed)
    before = sorted(tmp_path.rglob("*"))
    config = DataConfig(name=name, root=tmp_path)
    images, test, _ = read(config)
    expected = contents()
    assert torch.equal(images.images, expected[IMAGES].unsqueeze(1))
    assert torch.equal(images.labels, expected[LABELS].long())
    assert torch.equal(test.images[:, 0], expected[mnist.TEST[0]])
    assert sorted(tmp_path.rglob("*")) == before
    assert describe(config).sizes == (0, 36, 4, 8)  # from the headers


def test_clothes_are_no_digits(tmp_path):
    write(tmp_path / "mnist")
    config = DataConfig(name="fashion-mnist", root=tmp_path)
    assert load(write(tmp_path).model_copy(update={"name": "fashion-mnist"})).classes[9] == "ankle boot"
    assert describe(config).classes[:2] == ("T-shirt", "trouser")
    for left in tmp_path.glob("*-ubyte"):
        left.unlink()
    assert describe(config).sizes.test == 10_000  # the published count: the files in mnist/ are others


def test_the_test_part_is_the_sets_own(tmp_path):
    split = load(write(tmp_path))
    assert torch.equal(split.test.images[:, 0], contents()[mnist.TEST[0]])
    assert split.num_private + len(split.holdout) == NUM_TRAIN


def test_grey_becomes_rgb_where_it_is_declared(tmp_path):
    config = write(tmp_path).model_copy(update={"channels": 3})
    split = load(config)
    assert split.image_shape == (3, 28, 28) == describe(config).image_shape
    assert torch.equal(split.private.images[:, 0], split.private.images[:, 2])
    assert split.test.image_shape == (3, 28, 28)


GOOD = contents()
BAD_FILES = {
    "magic of labels": ({"train_images_idx3": idx(GOOD[IMAGES], magic=0x801)}, IMAGES, "00000803"),
    "float data": ({"train_images_idx3": idx(GOOD[IMAGES], magic=0xD03)}, IMAGES, "begins with 00000d03"),
    "not idx": ({"train_images_idx3": b"<html>not found</html>"}, IMAGES, "begins with 3c68746d"),
    "empty": ({"train_labels_idx1": b""}, LABELS, "begins with nothing"),
    "no images": ({"train_images_idx3": idx(GOOD[IMAGES], shape=(0, 28, 28))}, IMAGES, "N > 0"),
    "other size": ({"train_images_idx3": idx(GOOD[IMAGES], shape=(10, 56, 56))}, IMAGES, r"\(10, 56, 56\)"),
    "truncated": ({"train_images_idx3": idx(GOOD[IMAGES])[:-1]}, IMAGES, "truncated"),
    "too long": ({"train_labels_idx1": idx(GOOD[LABELS]) + b"x"}, LABELS, "too long"),
    "counts differ": ({"train_labels_idx1": idx(GOOD[LABELS][:-1])}, LABELS, "40 images, but .* 39 labels"),
    "missing": ({"train_labels_idx1": None}, LABELS, "but not train-labels"),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_named(tmp_path, case, packed):
    replaced, name, message = BAD_FILES[case]
    with pytest.raises(DataError, match=message) as caught:
        load(write(tmp_path, packed, **replaced))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_images_whose_labels_are_out_of_range_are_null_records_however_many(tmp_path, caplog):
    before, *_ = read(write(tmp_path, packed=False))
    for wrong in ([7], range(40)):
        labels = GOOD[LABELS].clone()
        labels[list(wrong)] = 10
        images, _, refused = read(write(tmp_path, packed=False, train_labels_idx1=idx(labels)))
        assert images.null.nonzero()[:, 0].tolist() == list(wrong)
        assert "label 10 at position 7 is out of range" in "".join(file.reason for file in refused)
        assert torch.equal(images.images[~images.null], before.images[~images.null])
        assert int(images.labels.max()) < 10
        assert f"{len(wrong)} of 48 files cannot be used" in caplog.text


def test_broken_gzip_is_named(tmp_path):
    config = write(tmp_path, packed=True)
    path = tmp_path / f"{IMAGES}.gz"
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-6] ^= 1  # the checksum
    for bad in (good[:-100], good[:-1], b"plain", bytes(flipped)):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz"):
            load(config)


def test_failed_download_says_the_way_out_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("torchvision.datasets.MNIST.mirrors", ["http://127.0.0.1:9/"])
    for root in (tmp_path / "new", tmp_path):
        with pytest.raises(DataError, match=r"downloading them failed .*train-images-idx3-ubyte\.gz.*--data-root"):
            load(DataConfig(name="mnist", root=root))
    assert list(tmp_path.iterdir()) == []


def test_download_puts_whole_files_where_torchvision_looks(tmp_path, monkeypatch):
    from torchvision.datasets import MNIST

    source = tmp_path / "source"
    write(source)
    monkeypatch.setattr(MNIST, "download", lambda self: shutil.copytree(source, self.raw_folder))
    config = DataConfig(name="mnist", root=tmp_path / "root")
    assert describe(config).sizes == (0, 54_000, 6000, 10_000)  # the published counts, before there is any file
    split = load(config)
    assert split.num_private == 36
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["MNIST"]
    assert load(config).digest == split.digest  # found again, not downloaded again
    assert len(MNIST(tmp_path / "root")) == NUM_TRAIN


@pytest.mark.data
def test_real_mnist():
    config = DataConfig(name="mnist", root=os.environ["IDPGAN_DATA"], public_share=0.02, confirm_public=True)
    split = load(config)
    assert describe(config).sizes == (1200, 52_800, 6000, 10_000)
    assert split.num_private == 52_800
    assert split.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    train = torch.cat([split.public.images, split.private.images, split.holdout.images]).double() / 255
    assert train.mean().item() == pytest.approx(0.1307, abs=5e-5)  # the constants of torchvision's examples
    assert train.std().item() == pytest.approx(0.3081, abs=5e-5)


def test_images_are_padded_with_black_to_32_where_the_config_says_so(tmp_path):
    config = write(tmp_path).model_copy(update={"image_size": 32})
    assert describe(config).image_shape == (1, 32, 32)
    images, test, _ = read(config)
    plain, plain_test, _ = read(DataConfig(name="mnist", root=tmp_path, image_size=28))
    for padded, unpadded in ((images.images, plain.images), (test.images, plain_test.images)):
        assert torch.equal(padded[..., 2:30, 2:30], unpadded)
        assert int(padded.long().sum()) == int(unpadded.long().sum())
    with pytest.raises(DataError, match="image_size = 30, but the images of 'mnist' are 28 x 28") as e:
        describe(config.model_copy(update={"image_size": 30}))
    assert "\n" not in str(e.value)
