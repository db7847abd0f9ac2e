"""What `train` refuses without reading a pixel, its dry run refuses in the same words."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idpgan import trainer
from idpgan.data.load import DataShape, Sizes
from idpgan.methods import load as load_method
from idpgan.methods import methods_of
from idpgan.training.plan import plan_run

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
AGGREGATE, DP_GAN = str(CONFIGS / "digits-aggregate.toml"), str(CONFIGS / "digits-dp-gan.toml")
WGAN_GP = str(CONFIGS / "digits-wgan-gp.toml")
PUBLISHED = str(CONFIGS / "digits-idp-gan-published.toml")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of images: of a size that no network is built for, without labels, and one that is not empty."""
    root = tmp_path_factory.mktemp("folders")
    for name, side in (("odd", 30), ("unlabeled", 28)):
        for index in range(20):
            place = root / name / (f"class{index % 2}" if name == "odd" else "")
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((side, side), index, dtype=np.uint8)).save(place / f"{index}.png")
    (root / "table").mkdir()
    for index in range(20):
        Image.fromarray(np.full((28, 28), index, dtype=np.uint8)).save(root / "table" / f"{index}.png")
    lines = [f"{index}.png,{('glad', 'sad')[index % 2]},p{index // 10}" for index in range(20)]
    (root / "table" / "metadata.csv").write_text("\n".join(["file_name,mood,person", *lines]) + "\n")
    return root


FOLDER = [WGAN_GP, "data.name=folder", "data.num_images=20", "data.channels=1"]
TABLE = [*FOLDER, "data.root=ROOT/table", "data.image_size=28", "data.num_people=2"]
MOODS = 'data.classes=["glad", "sad"]'
REFUSED = {
    "no column": ([*TABLE, "data.label=mod", MOODS], "has no column 'mod' of labels. Did you mean 'mood'?"),
    "no label": ([*TABLE, MOODS], "data.label does not say which column"),
    "people": ([*TABLE, "data.label=mood", MOODS, "data.num_people=3"], "data.num_people = 3, but"),
    "few people": ([*TABLE, "data.label=mood", MOODS, "data.split_by=identity"], "2 people of 'folder' are too few"),
    "metadata": (
        [*FOLDER, "data.root=ROOT/odd", "data.image_size=30", "data.label=mood", MOODS],
        "has no metadata.csv",
    ),
    "size": (
        [*FOLDER, "data.root=ROOT/odd", "data.image_size=30", 'data.classes=["class0", "class1"]'],
        "No network is built for images of shape 1 x 30 x 30",
    ),
    "labels": ([*FOLDER, "data.root=ROOT/unlabeled", "data.image_size=28", "data.classes=[]"], "needs labeled data"),
    "classes": ([AGGREGATE, "training.batch_size=7"], "must be a multiple of the 10 classes"),
    "out": ([WGAN_GP, "--out", "ROOT/odd"], "is not empty"),
    "file as out": ([WGAN_GP, "--out", "ROOT/odd/class0/0.png"], "is a file"),
    "device": ([WGAN_GP, "training.device=cuda"], "training.device is cuda, but torch sees no GPU"),
    "data": ([WGAN_GP, "data.name=folder", "data.root=ROOT/gone"], "is not there"),
    "unsound": ([PUBLISHED, "privacy.accept_unsound=false"], "is unsound"),
    "delta": ([DP_GAN, "privacy.delta=0.01"], "below 1/N"),
    "budget": ([DP_GAN, "privacy.noise_multiplier=0.05"], "does not cover a single step"),
    "divisor": ([DP_GAN, "training.batch_size=1000"], "must be within a factor of 2"),
    "mismatch": ([DP_GAN, "model.conditional=false", "method.mismatch=1.0"], "needs at least 2 classes"),
    "public": ([AGGREGATE, "data.public_share=0.1"], "confirm_public"),
    "features": ([AGGREGATE, "method.features=public"], "needs public images"),
    "cells": ([AGGREGATE, "method.groups=100000"], "groups = 100000 was a setting of an earlier version"),
    "person": ([AGGREGATE, "privacy.unit=person"], 'Set data.split_by = "identity"'),
    "undeclared": ([WGAN_GP, "data.name=folder", "data.root=ROOT/odd"], "data.num_images = 20, data.classes = "),
    "nobody": ([AGGREGATE, "privacy.unit=person", "data.split_by=identity"], "does not say who is on which image"),
    "batch": ([PUBLISHED, "training.batch_size=2000"], "exceeds the 1295 private images"),
    "memory": ([WGAN_GP, "training.batch_size=1000000", "model.width=1024"], "GiB are free"),
    "batch limit": ([WGAN_GP, "training.batch_size=200000000000"], "less than or equal to 1000000"),
    "images": ([WGAN_GP, "data.name=faces", "data.num_images=100000000", "data.image_size=64"], "GiB are free"),
    "images limit": ([WGAN_GP, "data.name=faces", "data.num_images=10000000000"], "less than or equal to"),
    "type": ([WGAN_GP, "training.steps=true"], "training.steps = True"),
    "privacy key": ([DP_GAN, "privacy.noise_multiplier=-1"], "privacy.noise_multiplier = -1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_dry_run_and_train_refuse_the_same_before_they_read(run, folders, tmp_path, monkeypatch, name):
    arguments, expected = REFUSED[name]
    arguments = [argument.replace("ROOT", str(folders)) for argument in arguments]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("idpgan.device.free_memory", lambda device: 8 << 30)
    monkeypatch.setattr(trainer, "load", lambda *_: pytest.fail("images were read"))
    real, dry = run("train", *arguments), run("train", *arguments, "--dry-run")
    assert real == dry
    code, out, err = dry
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", [["data.label=mood", 'data.classes=["angry"]'], ["data.label=mood"]])
def test_a_dry_run_refuses_labels_of_which_none_is_one_of_the_classes(run, folders, label):
    arguments = [argument.replace("ROOT", str(folders)) for argument in [*TABLE, *label]]
    code, out, err = run("train", *arguments, "--dry-run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no row at all of" in err


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * ("dp-gan" in path.stem))
        for path in sorted(CONFIGS.glob("digits-*.toml"))
    ],
)
def test_what_is_delivered_passes(run, tmp_path, monkeypatch, config):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("train", config, "--dry-run")
    assert (code, err) == (0, "")
    assert "# Cost:" in out
    assert list(tmp_path.iterdir()) == []


def test_epsilons_are_compared_from_public_facts_alone(run, monkeypatch):
    monkeypatch.setattr("idpgan.trainer.load", lambda *_: pytest.fail("read"))
    code, out, err = run("train", "digits-gaussian", "--dry-run", "--epsilon", 1, 3, 10)
    assert (code, err) == (0, "")
    assert re.findall(r"^ (\d+) .* (\d+) of 100", out, re.MULTILINE) == [("1", "56"), ("3", "65"), ("10", "85")]
    assert "unit image, zero-out-one, 1,295 private images" in out
    assert "Measured on other images (docs/results/measured.md): a small network 83.8 % at epsilon 1" in out
    told = json.loads(run("train", "digits-gaussian", "--dry-run", "--epsilon", 10, "--epsilon", 1, "--json")[1])
    least = [row["noise_below"] for row in told["epsilons"]]
    assert [row["epsilon"] for row in told["epsilons"]] == [10, 1]
    assert least[0] < least[1]
    for row in told["epsilons"]:  # what is said to be noise is warned of, one image more is not
        for num, warned in ((row["noise_below"] - 20, True), (row["noise_below"] + 20, False)):
            shape = DataShape(Sizes(0, num, 0, 10), (1, 8, 8), tuple("0123456789"))
            config = trainer.load_config(Path("digits-gaussian"), [f"privacy.epsilon={row['epsilon']}"])
            assert bool(plan_run(config, shape).signal.warning) is warned


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("digits-gaussian", "--epsilon", 1), "--epsilon belongs to --dry-run"),
        (("digits-gaussian", "--dry-run", "--epsilon", 1, 0), "--epsilon 0 must be positive"),
        (("digits-wgan-gp", "--dry-run", "--epsilon", 1), "has no privacy.epsilon"),
        (("digits-gaussian", "--dry-run", 3), "one config file at most"),
    ],
)
def test_epsilons_that_cannot_be_compared_are_one_line(run, arguments, said):
    code, out, err = run("train", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_where_nothing_is_known_of_the_signal_the_risk_is_told(run):
    out = run("train", "digits-scattering-linear", "--dry-run", "--epsilon", 1)[1]
    assert re.search(r"1 +not known +not known +5\d of 100", out)


def test_what_methods_taught_stands_in_the_docs():
    pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    for name in methods_of("generator"):
        for percent in re.findall(r"[\d.]+(?= %)", getattr(load_method(name).Method, "taught", "")):
            assert re.search(rf"(?<![\d.]){re.escape(percent)}(?![\d])", pages), (name, percent)
