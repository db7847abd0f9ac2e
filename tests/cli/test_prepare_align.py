"""`idpgan prepare --align eyes`: every photo keeps its row, and what becomes of it depends on that photo alone."""

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from idpgan.commands.prepare import PrepareOptions, prepare_photos
from idpgan.data.eyes import Face
from idpgan.data.faces import draw
from idpgan.errors import DataError

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


def test_a_prepared_folder_is_prepared_again_and_its_null_records_keep_their_rows(tmp_path, photos):
    """Failed before: the sheet was taken for a photo, and a row without a file for a mistake in the table."""
    first = prepare(photos, tmp_path / "first").out
    again = PrepareOptions("16", grey=True)
    done = prepare_photos(first, tmp_path / "again", again)
    assert done.num_photos == 7
    assert done.refused == (("3.png", "is a null record of its folder"), ("6.png", "is a null record of its folder"))
    assert (done.out / "metadata.csv").read_text() == (first / "metadata.csv").read_text()
    assert done.left_out == ("prepared.json",)
    assert prepare_photos(first, tmp_path / "fewer", replace(again, skip_missing=True)).missing == ("3.png", "6.png")
    (first / "prepared.json").unlink()  # negative control: of any other folder a row without a photo is a mistake
    (first / "prepared.png").unlink()
    with pytest.raises(DataError, match=r"names 3\.png; 6\.png, which are not photos"):
        prepare_photos(first, tmp_path / "other", again)


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


# One photo that cannot be worked on, and a folder of which most photos show no face -----------------------------------

STRIPES = [(2, 60000), (60000, 2), (1, 30000)]


@pytest.mark.parametrize("size", STRIPES)
def test_a_stripe_is_a_photo_without_a_face(tmp_path, size):
    """OpenCV cannot allocate what it would search in it, and would end the whole folder."""
    pytest.importorskip("cv2")
    source = tmp_path / "photos"
    source.mkdir()
    Image.new("L", size, 90).save(source / "a.png")
    Image.fromarray(draw(1, 200, seed=3).images[0].permute(1, 2, 0).numpy()).save(source / "b.png")
    done = prepare(source, tmp_path / "out")
    assert done.refused == (("a.png", "shows no face, or no further one, that is found"),)
    assert prepare(source, tmp_path / "middle", not_found="center").refused == ()


def _too_large(*_, **__):
    import cv2

    return cv2.CascadeClassifier().detectMultiScale(np.zeros((9, 9), np.uint8))  # an empty one: cv2.error


def _without_height(*_, **__):
    return Image.new("L", (9, 9)).resize((0, 9))  # ValueError of Pillow


@pytest.mark.parametrize("fault", [_too_large, _without_height, lambda *_: Image.new("L", (9, 9)).reduce(0)])
def test_what_opencv_or_pillow_refuse_of_one_photo_is_its_reason(photos, tmp_path, monkeypatch, fault):
    pytest.importorskip("cv2")
    from idpgan.data import eyes

    registered = eyes.registered
    monkeypatch.setattr(
        "idpgan.data.eyes.registered",
        lambda photo, *rest: fault() if photo.width == 6 * 9 else registered(photo, *rest),
    )
    done = prepare(photos, tmp_path / "out")
    assert [name for name, _ in done.refused] == ["0.png", "3.png", "6.png"]
    assert dict(done.refused)["0.png"].startswith("cannot be worked on: ")
    assert "\n" not in dict(done.refused)["0.png"]


@pytest.mark.parametrize(
    "fault", [lambda: Image.new("L", (9, 9)).resize("x"), lambda: np.zeros(2)[5], lambda: int("ours"), lambda: 1 / 0]
)
def test_what_we_do_wrongly_ends_it(photos, tmp_path, monkeypatch, fault):
    monkeypatch.setattr("idpgan.data.eyes.registered", lambda *_: fault())
    with pytest.raises((TypeError, IndexError, ValueError, ZeroDivisionError)):
        prepare(photos, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def crops(tmp_path, monkeypatch):
    """Makes a folder of so many photos, of which some, said by their numbers, show no face."""
    monkeypatch.setattr("idpgan.data.eyes.face_finder", by_brightness)

    def make(num, dark):
        root = tmp_path / "crops"
        root.mkdir()
        for number in range(num):
            Image.new("L", (9, 9), 20 if dark(number) else 200).save(root / f"{number:03}.png")
        return root

    return make


def test_where_most_photos_show_no_face_it_ends_early_with_the_way_out(run, tmp_path, crops):
    root = crops(260, lambda number: number % 3)
    command = ["prepare", root, tmp_path / "out", "--size", SIZE, "--grey", "--align", "eyes"]
    code, out, err = run(*command)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "No face was found in 133 of the first 200 photos" in err
    assert "leave --align out" in err
    assert "--not-found center" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crops"]
    for given, kept in (("null", 87), ("center", 260)):
        code, out, _ = run(*command[:2], tmp_path / given, *command[3:], "--not-found", given)
        assert code == 0
        assert f"{kept} of 260 photos are in" in out


@pytest.mark.parametrize(
    ("num", "faces", "dark"),
    [(199, 1, lambda n: n % 3), (230, 1, lambda n: n < 100 or n > 200), (210, 2, lambda n: n % 2)],
    ids=["fewer than 200", "half of the first", "further faces are not asked for"],
)
def test_where_fewer_show_none_it_goes_on(tmp_path, crops, num, faces, dark):
    assert prepare(crops(num, dark), tmp_path / "out", grey=True, faces=faces).num_photos == num * faces
