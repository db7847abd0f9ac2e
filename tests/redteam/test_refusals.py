"""However many private files cannot be used, a command ends alike and releases alike: no refusal tells of a record."""

import json
import logging

import pytest
from PIL import Image

from idpgan import trainer
from idpgan.commands.publish import PublishOptions, publish_folder
from idpgan.data.faces import draw
from idpgan.data.images import png_bytes
from idpgan.errors import InputError
from idpgan.privacy.folder_ledger import FolderLedger
from idpgan.training.config import build_config
from tests.neighbors.folders import data_of, write_classes, write_metadata

SIDES = (16, 20)
NUM = 8


def documents(release):
    """Return all that is released but the pixels, the weights and what hashes them."""
    privacy = json.loads((release / "privacy.json").read_text())
    del privacy["files"]
    names = sorted(path.relative_to(release).as_posix() for path in release.rglob("*"))
    return privacy, (release / "config.json").read_text(), (release / "README.md").read_text(), names


# Files that cannot be used -------------------------------------------------------------------------------------------


def empty(path):
    path.write_bytes(b"")


def smaller(path):
    Image.new("L", (5, 5)).save(path)


def headless(path):
    path.write_bytes(path.read_bytes()[:20])


def cut_short(path):
    path.write_bytes(path.read_bytes()[:60])  # the header is whole


def wrong_checksum(path):
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


SPOILS = [smaller, empty, headless, cut_short, wrong_checksum]

# Runs ----------------------------------------------------------------------------------------------------------------


def gaussian(data):
    return build_config(
        {
            "data": data,
            "model": {"generator": "gaussian", "latent_dim": 12},
            "method": {"name": "gaussian"},
            "privacy": {"epsilon": 2.0, "delta": 1e-5},
            "training": {"steps": 0, "device": "cpu"},
            "release": {"samples": 4},
        },
        "test",
    )


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole")
    data = data_of(write_classes(place / "faces"))
    return documents(trainer.start(gaussian(data), place / "run").run.release)


@pytest.mark.parametrize("share", [1, 60, 61, 120])
def test_a_run_ends_and_releases_alike_whatever_share_of_its_files_is_empty(tmp_path, caplog, whole_run, share):
    data = data_of(write_classes(tmp_path / "faces"))
    paths = sorted((tmp_path / "faces").rglob("*.png"))
    for path in paths[:share]:
        path.write_bytes(b"")
    finished = trainer.start(gaussian(data), tmp_path / "run")
    assert documents(finished.run.release) == whole_run
    assert f"{share} of 120 files cannot be used as declared" in caplog.text
    paths[-1].unlink()  # the control: names are public, so that a file less is refused
    with pytest.raises(InputError, match="empty files of their names"):
        trainer.start(gaussian(data), tmp_path / "again")


@pytest.mark.parametrize("blank", [1, 121, 239])
def test_no_share_of_blank_labels_ends_a_run(tmp_path, caplog, blank):
    data = data_of(write_metadata(tmp_path / "faces"))
    table = tmp_path / "faces" / "metadata.csv"
    header, *rows = [line.split(",") for line in table.read_text().splitlines()]
    rows = [[name, "" if index < blank else label, who] for index, (name, label, who) in enumerate(rows)]
    table.write_text("\n".join(map(",".join, [header, *rows])) + "\n")
    assert trainer.start(gaussian(data), tmp_path / "run").released
    assert f"{blank} of 240 rows of" in caplog.text


def test_a_method_that_promises_nothing_says_that_there_is_nothing_to_train_on(tmp_path):
    data = data_of(write_classes(tmp_path / "faces"))
    for path in (tmp_path / "faces").rglob("*.png"):
        path.write_bytes(b"")
    table = {"data": data, "method": {"name": "wgan-gp"}, "training": {"steps": 1, "device": "cpu"}}
    with pytest.raises(InputError, match="0 of 87 images can be used, 1 are needed"):
        trainer.start(build_config(table, "test"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Publications --------------------------------------------------------------------------------------------------------


def fill(folder, channels=1):
    folder.mkdir()
    for index, image in enumerate(draw(NUM, SIDES, channels, seed=3).images):
        (folder / f"{index}.png").write_bytes(png_bytes(image))
    return folder


def published(folder, out, **changes):
    order = {"method": "lap", "epsilon": 1e6, "unit": "pixel", "out": out} | changes
    publish_folder(PublishOptions((str(folder),), **order))
    return documents(out / "release")


@pytest.fixture(scope="module")
def whole_publication(tmp_path_factory):
    place = tmp_path_factory.mktemp("publication")
    return published(fill(place / "faces"), place / "out")


@pytest.mark.parametrize("share", [1, NUM // 2, NUM // 2 + 1, NUM])
@pytest.mark.parametrize("spoil", SPOILS)
def test_a_publication_ends_alike_and_its_null_records_are_black(tmp_path, caplog, whole_publication, spoil, share):
    faces = fill(tmp_path / "faces")
    for index in range(share):
        spoil(faces / f"{index}.png")
    size = "{}x{}".format(*SIDES) if share > 1 else None  # most headers tell it
    assert published(faces, tmp_path / "out", size=size) == whole_publication
    assert len(FolderLedger.read(tmp_path / "faces.ledger.json", "faces").publications) == 1
    images = [Image.open(path) for path in sorted((tmp_path / "out" / "release" / "images").iterdir())]
    assert [image.getextrema()[1] < 10 for image in images] == [index < share for index in range(NUM)]  # but for noise
    assert f"{share} of {NUM} files cannot be used as declared" in caplog.text
    assert not any("null record" in path.read_text() for path in (tmp_path / "out").rglob("*.json"))


def test_a_color_among_grey_images_becomes_grey(tmp_path, caplog, whole_publication):
    faces = fill(tmp_path / "faces")
    with Image.open(faces / "3.png") as image:
        image.convert("RGB").save(faces / "3.png")
    assert published(faces, tmp_path / "out") == whole_publication
    assert f"1 of {NUM} images looked at in {faces} have colors and become grey. --color keeps colors." in caplog.text
    assert "null record" not in caplog.text


def test_only_a_size_that_nothing_tells_is_asked_for(tmp_path):
    faces = fill(tmp_path / "faces")
    for path in faces.iterdir():
        path.write_bytes(b"")
    with pytest.raises(InputError, match="--size HxW"):
        published(faces, tmp_path / "out")
    assert not (tmp_path / "faces.ledger.json").exists()
    published(faces, tmp_path / "out", size="{}x{}".format(*SIDES))


def test_copies_are_remarked_on_the_terminal_and_nowhere_else(tmp_path, caplog, whole_publication):
    faces = fill(tmp_path / "faces")
    (faces / "5.png").write_bytes((faces / "2.png").read_bytes())
    assert published(faces, tmp_path / "out") == whole_publication
    assert f"Exact copies of other pictures: 1, as {faces}/2.png = {faces}/5.png" in caplog.text
    assert not any("Exact copies" in path.read_text() for path in (tmp_path / "out" / "curator").glob("*.json"))


# Obfuscations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "share"), [*((spoil, 1) for spoil in SPOILS), *((spoil, NUM // 2 + 1) for spoil in SPOILS[1:])]
)
def test_an_obfuscation_ends_alike(tmp_path, caplog, spoil, share):
    for name, spoiled in (("whole", 0), ("spoiled", share)):
        (tmp_path / name).mkdir()
        faces = fill(tmp_path / name / "faces")
        for index in range(spoiled):
            spoil(faces / f"{index}.png")
        publish_folder(PublishOptions((str(faces),), "blur", tmp_path / name / "out", accept_unsound=True))
    assert documents(tmp_path / "whole" / "out" / "release") == documents(tmp_path / "spoiled" / "out" / "release")
    assert f"{share} of {NUM} files cannot be used as declared" in caplog.text


def test_nothing_is_said_where_every_file_can_be_used(tmp_path, caplog):
    with caplog.at_level(logging.DEBUG, "idpgan"):
        published(fill(tmp_path / "faces"), tmp_path / "out")
    assert caplog.text == ""
