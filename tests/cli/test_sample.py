"""`idpgan sample` writes over nothing, leaves nothing half-written and asks for no memory that is not there."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from idpgan.commands.command import Terminated, signals_raise
from idpgan.data.images import attribute_classes
from idpgan.errors import InputError
from idpgan.metrics.source import read_images
from idpgan.models import ModelConfig, build_generator, load_generator, save_generator
from idpgan.release import export
from idpgan.release.dataset import SyntheticDataset
from tests.cli.test_commands import refused
from tests.release.forging import first_class


@pytest.mark.parametrize("name", ["out.manifest.json", "out.README.md", "out.npz"])
def test_what_lies_beside_an_npz_is_not_written_over(run, finished_run, tmp_path, monkeypatch, name):
    (tmp_path / name).write_text("mine")
    monkeypatch.setattr(export, "open_generator", None)  # nothing may be loaded, let alone drawn, before
    assert refused(run("sample", finished_run, "--num", 3, "--out", tmp_path / "out.npz"), name, "exists already")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_a_dangling_link_is_something_too(run, finished_run, tmp_path):
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    assert refused(run("sample", finished_run, "--num", 3, "--out", tmp_path / "out"), "exists already")


@pytest.mark.parametrize("num", [10**12, 10**30])
def test_more_than_the_memory_holds_is_refused_with_the_limit(run, finished_run, tmp_path, num):
    result = run("sample", finished_run, "--num", num, "--out", tmp_path / "out.npz")
    assert refused(result, "GiB are free", "at most", "--seed")
    assert list(tmp_path.iterdir()) == []


def test_the_limit_is_that_of_the_memory(run, finished_run, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "free_memory", lambda: 20 * 64 * 8)
    assert refused(run("sample", finished_run, "--num", 21, "--out", tmp_path / "a.npz"), "at most 20 images")
    assert run("sample", finished_run, "--num", 20, "--out", tmp_path / "b.npz")[0] == 0  # negative control


@pytest.mark.parametrize("labels", ["²", "٣", "1,", "-1", "1e3", "10", "", "a\nb", "9" * 5000])
def test_labels_that_are_no_classes_are_one_line(run, finished_run, tmp_path, labels):
    result = run("sample", finished_run, "--num", 3, "--out", tmp_path / "out", f"--labels={labels}")
    assert refused(result, "--labels", "The classes are 0; 1; 2", "0 to 9")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("labels", "numbers"),
    [
        ("cat", [1]),
        (" black dog , cat,cat", [2, 1, 1]),
        ("1,0", [1, 3]),  # the name "0" wins over the number 0
        ("0,3", [3, 3]),
        ("2,cat", [2, 1]),
    ],
)
def test_labels_are_names_or_numbers(labels, numbers):
    assert export.parse_labels(labels, ("bird", "cat", "black dog", "0")) == numbers


def test_the_commas_of_a_name_are_no_ends():
    classes = attribute_classes(["glasses", "smiling"])
    for number, name in enumerate(classes):
        assert export.parse_labels(f"{name}, 0", classes) == [number, 0]
    assert export.parse_labels(f"{classes[2]},{classes[1]}", classes) == [2, 1]
    with pytest.raises(InputError, match="'glasses' is not a class"):
        export.parse_labels("glasses", classes)


@pytest.mark.parametrize("labels", ["Cat", "4", "black", "cat;bird", "bird,,cat"])
def test_nothing_else_is_a_label(labels):
    with pytest.raises(InputError, match="The classes are bird; cat; black dog; 0"):
        export.parse_labels(labels, ("bird", "cat", "black dog", "0"))


def test_images_are_drawn_of_the_classes_that_were_named(run, finished_run, tmp_path):
    release, generator = tmp_path / "bare", load_generator(finished_run)
    save_generator(release, generator, classes=["zero", "one", "0", *generator.classes[3:]])
    (tmp_path / "out").mkdir()
    for labels, expected in (("one,0", [1, 2, 1, 2]), ("1,9", [1, 9, 1, 9])):
        out = tmp_path / "out" / f"{labels}.npz"
        assert run("sample", release, "--num", 4, "--out", out, "--labels", labels)[0] == 0
        with np.load(out) as written:
            assert written["labels"].tolist() == expected


@pytest.mark.parametrize("name", ["x.png", "x.JPG", "x.zip", "x.npy", "x.json"])
def test_a_folder_does_not_look_like_a_file(run, finished_run, tmp_path, name):
    assert refused(run("sample", finished_run, "--num", 3, "--out", tmp_path / name), "x.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["sample", "evaluate", "verify", "train"])
def test_a_name_that_is_no_text_is_one_line(run, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    options = ["--num", 3, "--out", "x"] if command == "sample" else []
    assert refused(run(command, "a\udcff", *options), "not UTF-8")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "where"), [("out", "png_bytes"), ("out.npz", "write_bytes_atomic")])
def test_sigterm_leaves_nothing_behind(finished_run, tmp_path, monkeypatch, name, where):
    """The signal comes in the middle of writing, after the first file."""
    original, calls = getattr(export, where), []

    def stopped(*arguments):
        calls.append(sorted(path.name for path in tmp_path.iterdir()))
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*arguments)

    monkeypatch.setattr(export, where, stopped)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), signals_raise():
        export.export_samples(finished_run, 5, tmp_path / name)
    assert calls[1]  # negative control: something lay there already
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_class_that_cannot_be_a_folder_is_spelled_safely(run, finished_run, tmp_path):
    for name in ("../x", ".x", "a/b", "Manifest.json", "ä" * 200):
        release = shutil.copytree(finished_run / "release", tmp_path / "release")
        first_class(name)(release)
        assert run("sample", release, "--num", 3, "--out", tmp_path / "out")[0] == 0
        assert name in (tmp_path / "out" / "metadata.csv").read_text(encoding="utf-8")
        assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "release"]
        shutil.rmtree(release)
        shutil.rmtree(tmp_path / "out")


def test_the_privacy_of_a_damaged_release_is_not_copied(run, finished_run, tmp_path):
    release = shutil.copytree(finished_run / "release", tmp_path / "release")
    (release / "privacy.json").write_text('{"format": "idpgan release 1"}')
    assert refused(run("sample", release, "--num", 3, "--out", tmp_path / "out"), "train and release again")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "card"), [("out", "out/README.md"), ("out.npz", "out.README.md")])
def test_it_is_said_where_the_card_lies(run, finished_run, tmp_path, name, card):
    _, out, _ = run("sample", finished_run, "--num", 3, "--out", tmp_path / name)
    assert str(tmp_path / card) in out
    assert (tmp_path / card).is_file()


def test_a_card_that_was_not_written_is_not_promised(run, tmp_path):
    """Bare weights: nothing states what they protect."""
    bare = tmp_path / "bare.safetensors"
    save_generator(bare, build_generator(ModelConfig(width=4, latent_dim=4, conditional=False), (1, 8, 8), 0))
    code, out, _ = run("sample", bare, "--num", 3, "--out", tmp_path / "out")
    assert (code, "without a card" in out, "give away" in out) == (0, True, False)
    assert not (tmp_path / "out" / "README.md").exists()


def test_what_cannot_be_meant_is_refused_before_anything_is_drawn(finished_run, tmp_path):
    unlabeled = tmp_path / "unlabeled"
    save_generator(unlabeled, build_generator(ModelConfig(width=4, latent_dim=4, conditional=False), (1, 8, 8), 0))
    cases = (
        (finished_run, 0, {}, "--num 0 must be at least 1"),
        (finished_run, 3, {"labels": [11]}, "--labels: 11 is not a class"),
        (finished_run, 3, {"labels": []}, "--labels is empty"),
        (unlabeled, 3, {"labels": [0]}, "this generator is unconditional"),
        (finished_run, 3, {"soft_labels": True}, "has no teacher"),
    )
    for source, num, options, said in cases:
        with pytest.raises(InputError, match=said):
            export.export_samples(source, num, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_images_to_look_at_and_to_train_on(run, tmp_path):
    """A release with two temperatures verifies, and each of its users draws with the one that it is for."""
    settings = ["model.drawing=few-photos", "release.samples=10"]
    made, drawn = tmp_path / "run", {}
    assert run("train", "configs/digits-gaussian.toml", *settings, "--out", made)[0] == 0
    code, out, _ = run("verify", made / "release")
    assert (code, "consistent" in out) == (0, True)
    assert 'purpose="training"' in (made / "release" / "README.md").read_text()
    for purpose, words in (("looking", "--for training"), ("training", "to give away")):
        out = tmp_path / f"{purpose}.npz"
        code, told, _ = run("sample", made, "--num", 30, "--seed", 1, "--out", out, "--for", purpose)
        assert (code, words in told) == (0, True)
        assert json.loads((tmp_path / f"{purpose}.manifest.json").read_text())["purpose"] == purpose
        drawn[purpose] = np.load(out)["images"]
    default = run("sample", made, "--num", 30, "--seed", 1, "--out", tmp_path / "default.npz")
    assert default[0] == 0
    assert (np.load(tmp_path / "default.npz")["images"] == drawn["looking"]).all()
    spread = {purpose: images.astype(float).std(axis=0).mean() for purpose, images in drawn.items()}
    assert spread["looking"] < spread["training"]
    own = SyntheticDataset(made, num=30, seed=1).images.permute(0, 2, 3, 1).numpy()
    assert (own == drawn["training"]).all()
    judged = read_images(load_generator(made), (1, 8, 8), tuple("0123456789"), num=30, seed=1).images
    assert (judged.permute(0, 2, 3, 1).numpy() == drawn["training"]).all()
    assert refused(run("sample", made, "--num", 3, "--out", tmp_path / "x", "--for", "sale"), "looking, training")
