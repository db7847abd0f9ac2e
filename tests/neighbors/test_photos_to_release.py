"""From photos to a release: with several faces a photo the unit is the photo, all of whose rows may change at once."""

import csv
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image

from idpgan.commands.prepare import PrepareOptions, prepare_photos
from idpgan.data.eyes import Face
from idpgan.data.load import known_shape
from idpgan.errors import ConfigError
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.totals import steps
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run
from tests.neighbors.folders import data_of, method_of

PHOTOS, FACES = 60, 3
MANY = 17  # a photo with three faces that is private, and what the neighbors lack


@contextmanager
def by_corners():
    """Stands for the cascades: a face in every bright corner of a photo."""

    def find(grey, most):
        corners = [(x, y) for y in (0, 24) for x in (0, 24) if grey[y : y + 16, x : x + 16].mean() > 127]
        return [Face((x + 5.0, y + 6.0), (x + 12.0, y + 7.0), True) for x, y in corners][:most]

    yield find


def photo(number):
    """A photo whose corners hold 0 to 3 bright and unlike pictures."""
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 60, (40, 40))
    for corner in range(3 if number == MANY else number % 4):
        y, x = 24 * (corner // 2), 24 * (corner % 2)
        pixels[y : y + 16, x : x + 16] = 145 + np.kron(rng.integers(0, 2, (4, 4)) * 110, np.ones((4, 4)))
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """Prepare the photos with one of them changed, and return the [data] of the folder."""
    monkeypatch.setattr("idpgan.data.eyes.face_finder", by_corners)

    def make(name, change=None):
        source = tmp_path / f"{name}-photos"
        source.mkdir()
        for number in range(PHOTOS):
            photo(number).save(source / f"{number:02}.png")
        if change is not None:
            change(source / f"{MANY}.png")
        options = PrepareOptions("8", grey=True, align="eyes", faces=FACES)
        done = prepare_photos(source, tmp_path / name, options)
        assert done.num_photos == PHOTOS * FACES
        return data_of({"name": "folder", "root": done.out, "split_by": "identity", "classes": ()})

    return make


def table(unit):
    return {
        "model": {"generator": "warp", "width": 4, "latent_dim": 4, "codes": 5, "conditional": False},
        "method": {"name": "idp-gan-aggregate", "moments": 6, "fourier": 10, "augment": 0.0},
        "privacy": {"epsilon": 1.0, "delta": 1e-3, "unit": unit, "most_per_person": FACES},
        "training": {"steps": 3, "batch_size": 30},
    }


CHANGES = {
    "emptied": lambda path: path.write_bytes(b""),
    "no face any more": lambda path: Image.new("L", (40, 40)).save(path),
}


def sums_of(method):
    method.prepare()
    return method._released["sums"] / method.plan.release.sums.grid.step


@pytest.mark.parametrize("how", CHANGES)
def test_a_photo_moves_its_own_rows_and_the_sums_by_the_sensitivity(prepared, how):
    (left, before), (right, after) = (
        method_of(data, table("photo")) for data in (prepared("left"), prepared("right", CHANGES[how]))
    )
    touched = (before.private.images != after.private.images).flatten(1).any(1)
    assert int(touched.sum()) == FACES
    assert len(before.private.identities[touched].unique()) == 1
    assert torch.equal(before.private.images[~touched], after.private.images[~touched])
    assert torch.equal(before.private.identities, after.private.identities)
    for part in ("public", "holdout", "test"):
        assert getattr(before, part).digest() == getattr(after, part).digest()
    moved = torch.linalg.vector_norm(sums_of(left) - sums_of(right)).item()
    assert left.ledger.events == right.ledger.events
    assert {str(event.unit) for event in left.ledger.events} == {"photo"}
    assert 0.05 < moved / left.plan.release.sums.mechanism.sensitivity <= 1


def test_control_unit_image_would_be_too_small(prepared, monkeypatch):
    """The same rows without their photos, as images of their own: one photo moves the sums beyond the sensitivity."""
    both = []
    for name, change in (("left", None), ("right", CHANGES["emptied"])):
        data = prepared(name, change)
        path = f"{data['root']}/metadata.csv"
        with open(path) as file:
            rows = [row[:1] for row in csv.reader(file)]
        with open(path, "w") as file:
            csv.writer(file).writerows(rows)
        data = {key: value for key, value in data.items() if key not in ("num_people", "split_by")}
        both.append(method_of(data, table("image"))[0])
    moved = torch.linalg.vector_norm(sums_of(both[0]) - sums_of(both[1])).item()
    assert moved > 1.3 * both[0].plan.release.sums.mechanism.sensitivity


def refusal(data, unit="photo", **keys):
    config = build_config({**table(unit), "data": data, **keys}, "test")
    with pytest.raises(ConfigError) as caught:
        plan_run(config, known_shape(config.data)).check()
    return str(caught.value)


def test_other_units_are_refused(prepared, tmp_path):
    data = prepared("left")
    assert 'Set privacy.unit = "photo"' in refusal(data, "image")
    assert "unit person would protect one face" in refusal(data, "person")
    privacy = {"epsilon": 1.0, "delta": 1e-3, "sample_rate": 0.1}
    told = refusal(data, model={"conditional": False}, method={"name": "dp-gan"}, privacy=privacy)
    assert "dp-gan has no unit photo" in told
    with pytest.raises(ConfigError, match=r'privacy\.unit = photo, but data\.split_by = "image"'):
        build_config(table("photo") | {"data": {**data, "split_by": "image"}}, "test")
    text = (tmp_path / "left" / "metadata.csv").read_text()
    (tmp_path / "left" / "metadata.csv").write_text(text.replace("cut_from", "person"))
    assert "rows of the data set are not faces of photos" in refusal(data)


def test_people_are_not_told_apart_by_photos(prepared, tmp_path, monkeypatch):
    source = tmp_path / "people" / "anna"
    source.mkdir(parents=True)
    photo(1).save(source / "1.png")
    options = PrepareOptions("8", align="eyes", faces=2, folders="person")
    with pytest.raises(ValueError, match="who is on which face is not said"):
        prepare_photos(tmp_path / "people", tmp_path / "out", options)


def test_what_is_proven_of_photos_says_nothing_of_people_and_the_other_way_round():
    zero, replace = Relation.ZERO_OUT, Relation.REPLACE_ONE
    assert steps((Unit.PHOTO, zero), (Unit.IMAGE, zero), FACES) == 2
    assert steps((Unit.PHOTO, replace), (Unit.IMAGE, replace), FACES) == 1
    assert steps((Unit.IMAGE, zero), (Unit.PHOTO, zero), FACES) == FACES
    assert steps((Unit.PHOTO, zero), (Unit.PERSON, zero), FACES) is None
    assert steps((Unit.PERSON, zero), (Unit.PHOTO, zero), FACES) is None
