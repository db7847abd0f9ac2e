"""What `fit` takes from private images because nobody declared it: call and card say so, and `verify` compares."""

import json
import logging

import numpy as np
import pytest
from PIL import Image

import idpgan
from idpgan.commands import process_ledger
from idpgan.kinds import verify
from tests.release.forging import document_of

NUM, ALL = 60, ["data.image_size=8", "data.channels=1"]
GREY = (np.arange(NUM * 64).reshape(NUM, 8, 8) * 7 % 251).astype(np.uint8)
LABELS = np.array(["a", "b"] * (NUM // 2))
QUICK = {"epsilon": 2.0, "method": "gaussian", "progress": False}
HOLDS = "the guarantee holds for data sets that agree in them"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(process_ledger, "_DONE", [])


@pytest.fixture
def folders(tmp_path):
    """The same images as subfolders, and as a table."""
    for index, image in enumerate(GREY):
        for folder in (tmp_path / "subfolders" / LABELS[index], tmp_path / "table"):
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).resize((16, 16)).save(folder / f"{index:02d}.png")
    rows = [f"{index:02d}.png,{label}" for index, label in enumerate(LABELS)]
    (tmp_path / "table" / "metadata.csv").write_text("\n".join(["file_name,mood", *rows]) + "\n")
    return tmp_path


def taken(made, caplog):
    """Return what card and terminal say was taken from the images, which has to be the same; None = nothing."""
    said = [record.message for record in caplog.records if HOLDS in record.message]
    lines = [line for line in (made.release / "README.md").read_text().splitlines() if HOLDS in line]
    found = [phrase for phrase in made.privacy.public_assumptions if HOLDS in phrase]
    assert len(said) == len(lines) == len(found) <= 1
    assert verify(made.release).problems == ()
    if not found:
        return None
    assert lines == [f"- {found[0]}"]
    assert said[0].lower().startswith(found[0] + ". to declare them: ")
    return found[0].removeprefix("taken from the images: ").partition(";")[0]


@pytest.mark.parametrize(
    ("labels", "more", "expected"),
    [
        (LABELS, {}, "classes, size, channels"),
        (LABELS, {"classes": ["a", "b"]}, "size, channels"),
        (LABELS, {"settings": ALL}, "classes"),
        (LABELS, {"settings": ALL[:1]}, "classes, channels"),
        (LABELS, {"classes": ["a", "b"], "settings": ALL}, None),
        (LABELS, {"settings": ['data.classes=["a", "b"]', *ALL]}, None),
        (None, {}, "size, channels"),
        (None, {"settings": ALL}, None),
    ],
)
def test_arrays_say_what_nobody_declared(labels, more, expected, caplog):
    assert taken(idpgan.fit(GREY, labels, **QUICK, **more), caplog) == expected


def test_a_classifier_says_it_too(caplog):
    made = idpgan.fit_classifier(GREY, LABELS, epsilon=2.0, method="scattering-linear", progress=False)
    assert taken(made, caplog) == "classes, size, channels"


LARGE = ["data.image_size=16", "data.channels=1"]


@pytest.mark.parametrize(
    ("name", "labels", "more", "expected"),
    [
        ("subfolders", None, {}, "classes, size, channels"),
        ("subfolders", None, {"classes": ["a", "b"]}, "size, channels"),
        ("subfolders", None, {"classes": ["a", "b"], "settings": LARGE}, None),
        ("table", None, {}, "label column, classes, size, channels"),
        ("table", "mood", {}, "classes, size, channels"),
        ("table", "mood", {"classes": ["a", "b"], "settings": LARGE}, None),
        ("table", None, {"settings": ["data.label=mood", 'data.classes=["a", "b"]', *LARGE]}, None),
        ("table", "none", {"settings": LARGE}, None),
    ],
)
def test_folders_say_what_nobody_declared(folders, name, labels, more, expected, caplog):
    assert taken(idpgan.fit(folders / name, labels, **QUICK, **more), caplog) == expected


@pytest.mark.parametrize("name", ["arrays", "subfolders", "table"])
def test_what_is_declared_is_not_looked_at(folders, name):
    """A label more, which is none of them, changes the list of classes where nobody declared it, and else nothing."""
    released = []
    for declared in ({}, {"classes": ["a", "b"], "settings": ALL if name == "arrays" else LARGE}):
        for changed in (False, True):
            labels = np.where((np.arange(NUM) == 7) & changed, "z", LABELS)
            where, column = folders / name, "mood" if name == "table" else None
            if name == "subfolders":
                (where / "z").mkdir(exist_ok=True)
                source, target = (where / "b" / "07.png", where / "z" / "07.png")[:: 1 if changed else -1]
                if source.exists():
                    source.rename(target)
                if not changed:
                    (where / "z").rmdir()
            if name == "table":
                rows = [f"{index:02d}.png,{label}" for index, label in enumerate(labels)]
                (where / "metadata.csv").write_text("\n".join(["file_name,mood", *rows]) + "\n")
            images, given = (GREY, labels) if name == "arrays" else (where, column)
            released.append(idpgan.fit(images, given, **QUICK, **declared).classes)
    assert released == [("a", "b"), ("a", "b", "z"), ("a", "b"), ("a", "b")]


@pytest.mark.parametrize(("grey", "expected"), [(True, "classes"), (False, "classes, channels")])
def test_the_size_that_prepare_was_told_is_declared(folders, grey, expected, caplog):
    from idpgan.commands.prepare import PrepareOptions, prepare_photos

    made = folders / "made"
    prepare_photos(folders / "subfolders", made, PrepareOptions(size="16", folders="label", grey=grey))
    fitted = idpgan.fit(made, "label", **QUICK)
    assert taken(fitted, caplog) == expected


def test_a_release_cannot_keep_it_to_itself(caplog, tmp_path):
    made = idpgan.fit(GREY, LABELS, **QUICK)
    made.save(tmp_path / "release")
    config, document = (tmp_path / "release" / name for name in ("config.json", "privacy.json"))
    table = json.loads(config.read_text())
    assert table["settings"]["data"].pop("taken") == ["classes", "size", "channels"]
    config.write_text(json.dumps(table, indent=2) + "\n")
    assert "'public_assumptions' is not what follows" in " ".join(verify(tmp_path / "release").problems)
    stated = document_of(tmp_path / "release")
    stated["report"]["public_assumptions"] = []
    document.write_text(json.dumps(stated, indent=2) + "\n")
    table["settings"]["data"]["taken"] = ["classes", "size", "channels"]
    config.write_text(json.dumps(table, indent=2) + "\n")
    assert "'public_assumptions' is not what follows" in " ".join(verify(tmp_path / "release").problems)


def test_a_logger_that_is_quiet_stays_quiet(caplog):
    with caplog.at_level(logging.ERROR, "idpgan"):
        idpgan.fit(GREY, LABELS, **QUICK)
    assert HOLDS not in caplog.text
