"""benchmarks/cifar.py on a tar of drawn digits: trained and judged once, read back ever after."""

import json
import sys
import tarfile

import cifar
import pytest

from idpgan.data.config import DataConfig
from idpgan.data.images import png_bytes
from idpgan.data.load import load


@pytest.fixture
def tar(tmp_path):
    """60 digits of two classes as train/, 20 as test/."""
    split = load(DataConfig(name="digits"))
    for part, images, most in (("train", split.private, 30), ("test", split.test, 10)):
        for label in (0, 1):
            chosen = images.images[images.labels == label][:most]
            folder = tmp_path / part / f"class{label}"
            folder.mkdir(parents=True)
            for number, image in enumerate(chosen):
                (folder / f"{number}.png").write_bytes(png_bytes(image))
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        for part in ("train", "test"):
            archive.add(tmp_path / part, part)
    return tmp_path / "images.tar"


@pytest.mark.slow
def test_a_row_has_mean_and_best_and_is_read_back(tar, tmp_path, monkeypatch, capsys):
    options = ["--tar", str(tar), "--out", str(tmp_path / "out"), "--epsilons", "10.0", "--num", "60"]
    monkeypatch.setattr(sys, "argv", ["cifar.py", *options])
    cifar.main()
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert first["best"] == max(first["scores"].values())
    assert first["mean"] == pytest.approx(sum(first["scores"].values()) / 3)
    assert first["num_images"] == 60
    assert 9.9 < first["proven"]["epsilon"] <= 10
    monkeypatch.setattr(cifar, "evaluate_source", None)  # a second judgement would fail
    cifar.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == first


def test_a_folder_that_is_there_is_not_unpacked_again(tar, tmp_path):
    assert (cifar.unpacked(tar, tmp_path / "images") / "test" / "class1").is_dir()
    tar.unlink()
    assert cifar.unpacked(tar, tmp_path / "images") == tmp_path / "images"
