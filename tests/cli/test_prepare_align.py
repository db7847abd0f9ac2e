"""`idpgan prepare --align eyes`: every photo keeps its row, and what becomes of it depends on that photo alone."""

import json
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

from idpgan.commands.prepare import PrepareOptions, prepare_photos
from idpgan.data.eyes import Face
from idpgan.data.faces import draw

SIZE = 28


def prepare(source, out, **keys):
    return prepare_photos(source, out, PrepareOptions(str(SIZE), align="eyes", folders="none", **keys))


@contextmanager
def by_brightness():
    """Stands for the cascades: a bright photo shows two eyes, one of middle brightness a face, a dark one nothing."""

    def find(grey, most):
        height, width = grey.shape
        eyes = (0.4 * width, 0.4 * height), (0.6 * width, 0.45 * height)
        mean = grey.mean()
        return [] if mean < 60 else [Face(*eyes, bool(mean > 120))]

    yield find


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Three bright photos, two of middle brightness, one dark, and one that is damaged."""
    monkeypatch.setattr("idpgan.data.eyes.face_finder", by_brightness)
    rng, root = np.random.default_rng(1), tmp_path / "photos"
    root.mkdir()
    for number, least in enumerate((150, 80, 150, 0, 80, 150)):
        pixels = np.kron(rng.integers(least, least + 50, (8, 6 + number, 3)), np.ones((9, 9, 1)))
        Image.fromarray(pixels.astype(np.uint8)).save(root / f"{number}.png")
    (root / "6.png").write_bytes(b"damaged")
    return root


def images(folder):
    return {path.name: path.read_bytes() for path in folder.glob("[0-9].png")}


def test_every_photo_keeps_its_row_and_the_curator_sees_the_counts(run, tmp_path, photos):
    (photos / "metadata.csv").write_text("file_name,mood\n" + "".join(f"{i}.png,glad\n" for i in range(7)))
    code, out, err = run("prepare", photos, tmp_path / "out", "--size", SIZE, "--align", "eyes")
    assert (code, err) == (0, "")
    assert "5 of 7 photos are in" in out
    assert "Put in place: 3 by their eyes, 2 by the box of the face, whose eyes were not found." in out
    assert "No face was found in 1: null records. Look at" in out
    assert "3.png shows no face, or no further one, that is found" in out
    rows = (tmp_path / "out" / "metadata.csv").read_text().splitlines()
    assert rows == ["file_name,mood", *(f"{i}.png,{'' if i in (3, 6) else 'glad'}" for i in range(7))]
    told = json.loads((tmp_path / "out" / "prepared.json").read_text())
    assert told["aligned"] == {"eyes": 3, "face": 2, "middle": 0, "none": 1}
    with Image.open(tmp_path / "out" / "prepared.png") as sheet:
        assert sheet.size == (8 * (SIZE + 2) - 2, SIZE)


def test_a_public_flag_cuts_the_middle_instead(tmp_path, photos):
    done = prepare(photos, tmp_path / "out", not_found="center")
    assert done.aligned == {"eyes": 3, "face": 2, "middle": 1, "none": 0}
    assert [name for name, _ in done.refused] == ["6.png"]
    plain = prepare_photos(photos, tmp_path / "plain", PrepareOptions(str(SIZE), folders="none"))
    before, after = images(plain.out), images(done.out)
    assert {name for name in before if before[name] == after[name]} == {"3.png"}


@pytest.mark.parametrize("not_found", ["null", "center"])
def test_neighbors_of_folders(tmp_path, not_found):
    """A drawn photo that is replaced by noise, or emptied, moves no byte of another image."""
    pytest.importorskip("cv2")
    source = tmp_path / "photos"
    source.mkdir()
    for number, pixels in enumerate(draw(5, 200, people=5, seed=3).images.permute(0, 2, 3, 1).numpy()):
        side = 120 + 40 * number
        Image.fromarray(pixels).resize((side, side + 7)).save(source / f"{number}.png")
    first = prepare(source, tmp_path / "first", not_found=not_found)
    before = images(first.out)
    assert first.aligned["eyes"] >= 2
    assert images(prepare(source, tmp_path / "again", not_found=not_found).out) == before
    noise = np.random.default_rng(0).integers(0, 256, (200, 150, 3), np.uint8)
    for name, content in zip(sorted(before), (noise, None), strict=False):
        kept = (source / name).read_bytes()
        (source / name).write_bytes(b"")
        if content is not None:
            Image.fromarray(content).save(source / name)
        after = images(prepare(source, tmp_path / name, not_found=not_found).out)
        assert after.pop(name, None) != before[name]
        assert after == {other: data for other, data in before.items() if other != name}
        (source / name).write_bytes(kept)


REFUSED = {
    "words": (["--align", "mouth"], "--align mouth is unknown: eyes."),
    "crop": (["--align", "eyes", "--crop", "none"], "--crop none does not go with --align"),
    "alone": (["--not-found", "center"], "--not-found belongs to --align eyes"),
    "fallback": (["--align", "eyes", "--not-found", "box"], "--not-found box is unknown: null, center."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together(run, tmp_path, name):
    arguments, expected = REFUSED[name]
    code, _, err = run("prepare", tmp_path, tmp_path / "out", "--size", SIZE, *arguments)
    assert code == 2
    assert expected in err
