import numpy as np
import pytest
import torch
from scipy.io import savemat

from idpgan.data.config import DataConfig
from idpgan.data.load import describe, load
from idpgan.data.sources import svhn
from idpgan.errors import DataError
from tests.data.layouts import read

RNG = np.random.default_rng(0)
NUMS = {svhn.TRAIN: 30, svhn.TEST: 7}
PIXELS = {name: RNG.integers(0, 256, (num, 32, 32, 3), dtype=np.uint8) for name, num in NUMS.items()}
LABELS = {name: (1 + np.arange(num) % 10).astype(np.uint8) for name, num in NUMS.items()}


def write(folder, **replaced):
    folder.mkdir(parents=True, exist_ok=True)
    for name in NUMS:
        content = {"X": PIXELS[name].transpose(1, 2, 3, 0), "y": LABELS[name][:, None]} | replaced
        savemat(folder / name, content, do_compression=True)
    return DataConfig(name="svhn", root=folder)


@pytest.mark.parametrize("place", [".", "svhn"])
def test_images_and_labels_are_those_of_the_files(tmp_path, place):
    write(tmp_path / place)
    config = DataConfig(name="svhn", root=tmp_path)
    images, test, _ = read(config)
    assert torch.equal(images.images.permute(0, 2, 3, 1), torch.from_numpy(PIXELS[svhn.TRAIN]))
    assert images.labels.tolist() == [number % 10 for number in LABELS[svhn.TRAIN].tolist()]  # 10 is the digit 0
    assert torch.equal(test.images.permute(0, 2, 3, 1), torch.from_numpy(PIXELS[svhn.TEST]))
    assert describe(config).sizes == load(config).shape.sizes == (0, 27, 3, 7)


def test_a_label_out_of_range_is_a_null_record(tmp_path, caplog):
    config = write(tmp_path)
    wrong = LABELS[svhn.TRAIN].copy()
    wrong[[3, 5]] = 0, 11
    savemat(tmp_path / svhn.TRAIN, {"X": PIXELS[svhn.TRAIN].transpose(1, 2, 3, 0), "y": wrong[:, None]})
    images, _, refused = read(config)
    assert images.null.nonzero()[:, 0].tolist() == [3, 5]
    assert len(refused) == 2
    assert "2 of 37 files cannot be used" in caplog.text


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"X": np.zeros((32, 32, 3, 4))}, "must hold X, uint8"),
        ({"X": np.zeros((28, 28, 3, 4), np.uint8)}, "must hold X, uint8"),
        ({"y": np.ones((3, 1))}, "not as many labels"),
    ],
)
def test_a_file_of_another_shape_is_named(tmp_path, replaced, message):
    with pytest.raises(DataError, match=f"{svhn.TRAIN} .*{message}"):
        load(write(tmp_path, **replaced))


def test_damaged_and_missing_files_are_named(tmp_path):
    config = write(tmp_path)
    good = (tmp_path / svhn.TRAIN).read_bytes()
    for bad in (b"", b"<html>not found</html>", good[:400], good[: len(good) // 2], good[:-20]):
        (tmp_path / svhn.TRAIN).write_bytes(bad)
        with pytest.raises(DataError, match=svhn.TRAIN):
            load(config)
    (tmp_path / svhn.TRAIN).unlink()
    with pytest.raises(DataError, match=f"but not {svhn.TRAIN}"):
        load(config)
    with pytest.raises(DataError, match="not downloaded"):
        load(DataConfig(name="svhn", root=tmp_path / "nowhere"))
