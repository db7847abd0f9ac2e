"""The ledger of a folder: publications add up across units as far as one bounds the other."""

import itertools
import json
import math
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from idpgan.errors import InputError
from idpgan.privacy import Event, Relation, Unit, books
from idpgan.privacy.folder_ledger import FolderLedger, Publication, chains, ledger_of, total


def publication(unit, epsilon, delta=0.0, **changes):
    event = Event("laplace", Unit(unit), Relation.REPLACE_ONE, noise_multiplier=1 / epsilon)
    parts = {"events": (event,), "method": "lap", "num": 3, "out": "out", "date": "today"}
    return Publication(**{**parts, "epsilon": epsilon, "delta": delta, **changes})


def ledger(tmp_path, *publications):
    made = FolderLedger(tmp_path / "ledger", "faces")
    for item in publications:
        made = made.charged(item)
    return made


def test_it_is_read_as_it_was_written(tmp_path):
    written = ledger(tmp_path, publication("image", 1.0), publication("column", 2.0, 1e-4))
    written.write()
    assert FolderLedger.read(tmp_path / "ledger", "faces") == written
    with pytest.raises(InputError, match="belongs to a folder named 'faces'"):
        FolderLedger.read(tmp_path / "ledger", "people")


def test_it_is_empty_where_there_is_none_and_never_a_link(tmp_path):
    assert FolderLedger.read(tmp_path / "ledger", "faces").publications == ()
    (tmp_path / "ledger").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="symbolic link"):
        FolderLedger.read(tmp_path / "ledger", "faces")


@pytest.mark.parametrize(("unit", "epsilon", "finer"), [("pixel", 7.0, 0), ("column", 6.0, 1), ("image", 4.0, 2)])
def test_a_coarser_unit_counts_in_the_total_of_a_finer_one(tmp_path, unit, epsilon, finer):
    made = ledger(tmp_path, publication("pixel", 1.0), publication("column", 2.0), publication("image", 4.0))
    found = total([(made,)], Unit(unit))
    assert found.guarantee.epsilon == pytest.approx(epsilon)
    assert (found.left_out, found.counted, found.elsewhere) == (finer, 3 - finer, 0)


def test_a_window_is_of_no_other_unit(tmp_path):
    made = ledger(tmp_path, publication("window", 1.0), publication("image", 4.0))
    assert total([(made,)], Unit.WINDOW).guarantee.epsilon == pytest.approx(1.0)


def test_the_total_is_stated_at_the_largest_delta(tmp_path):
    gaussian = Event("gaussian", Unit.IMAGE, Relation.REPLACE_ONE, noise_multiplier=3.0)
    made = ledger(tmp_path, publication("image", 2.0, 1e-4, events=(gaussian,)), publication("image", 1.0))
    found = total([(made,)], Unit.IMAGE).guarantee
    assert found.delta == 1e-4
    assert 1.0 < found.epsilon < math.inf


def test_one_without_a_proof_leaves_no_total_of_any_unit(tmp_path):
    bad = publication("column", 1.0, events=(Event.non_private("no proof", Unit.COLUMN),))
    made = ledger(tmp_path, publication("image", 1.0), bad)
    for unit in (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE):
        assert total([(made,)], unit).guarantee.epsilon == math.inf
    good = ledger(tmp_path, publication("image", 1.0))
    assert total([(good,)], Unit.IMAGE).guarantee.epsilon == pytest.approx(1)


def test_a_total_has_the_charges_of_both_relations(tmp_path):
    """It had those of one, and the other had a total of its own, which left these out."""
    event = Event("laplace", Unit.IMAGE, Relation.ZERO_OUT, noise_multiplier=1 / 3)
    made = [(ledger(tmp_path, publication("image", 1.0), publication("image", 3.0, events=(event,))),)]
    assert total(made, Unit.IMAGE, Relation.ZERO_OUT).guarantee.epsilon == pytest.approx(4)
    assert total(made, Unit.IMAGE, Relation.REPLACE_ONE).guarantee.epsilon == pytest.approx(7)


@pytest.mark.parametrize("change", [("0.5", "0.6"), ("laplace", "gaussian"), ("{", "["), ("faces", "people")])
def test_every_change_is_found(tmp_path, change):
    ledger(tmp_path, publication("image", 0.5)).write()
    path = tmp_path / "ledger"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match="restore it from a copy"):
        FolderLedger.read(path, "faces")


# Folders in each other -----------------------------------------------------------------------------------------


def charge(folder, *publications):
    """Put publications on the ledger beside a folder that holds an image."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "1.png").touch()
    made = FolderLedger.read(ledger_of(folder), folder.name)
    for item in publications:
        made = made.charged(item)
    made.write()
    return made


def spent(folder, unit=Unit.IMAGE):
    return total(chains(folder, FolderLedger.read(ledger_of(folder), folder.name)), unit)


def test_an_image_has_cost_what_every_folder_on_its_path_has_published(tmp_path):
    faces = tmp_path / "faces"
    for place, epsilon in (("", 1.0), ("s1", 2.0), ("s1/a", 4.0), ("s2", 3.5), ("s2/empty/x", 2.0)):
        charge(faces / place, publication("image", epsilon))
    for place, expected in (("", 7), ("s1", 7), ("s1/a", 7), ("s2", 6.5), ("s2/empty", 6.5)):
        assert spent(faces / place).guarantee.epsilon == pytest.approx(expected), place
    assert (spent(faces).counted, spent(faces).elsewhere) == (3, 2)  # on the path to s1/a; what s2 spent is beside it


@pytest.mark.parametrize("seed", range(10))
def test_the_total_is_that_of_the_dearest_image(tmp_path, seed):
    """Against every single image of a random tree, composed by hand; the sum over all folders is too much."""
    chance, folders = random.Random(seed), [tmp_path / "0"]
    for number in range(1, 8):
        folders.append(chance.choice(folders) / str(number))
    epsilons = {folder: chance.choice([0.0, 0.25, 0.5, 1.0, 2.0]) for folder in folders}
    for folder, epsilon in epsilons.items():
        charge(folder, *([publication("image", epsilon)] if epsilon else []))
    images = {folder: sum(epsilons[at] for at in (folder, *folder.parents) if at in epsilons) for folder in folders}
    for folder in (each for each in folders if epsilons[each]):
        below = [cost for at, cost in images.items() if at.is_relative_to(folder)]
        assert spent(folder).guarantee.epsilon == pytest.approx(max(below))
    assert max(images.values()) < sum(epsilons.values())


def test_units_of_nested_folders_count_as_those_of_one(tmp_path):
    faces = tmp_path / "faces"
    charge(faces, publication("image", 1.0))
    charge(faces / "s1", publication("pixel", 4.0, 1e-4))
    assert spent(faces / "s1", Unit.PIXEL).guarantee.epsilon == pytest.approx(5, rel=1e-3)  # at delta 1e-4
    found = spent(faces)
    assert (found.guarantee.epsilon, found.counted, found.left_out) == (pytest.approx(1), 1, 1)
    assert spent(faces, Unit.PIXEL).guarantee.delta == 1e-4


def test_one_without_a_proof_stands_for_the_images_that_it_read(tmp_path):
    faces = tmp_path / "faces"
    bad = publication("image", 1.0, events=(Event.non_private("no proof"),))
    for place, item in (("", publication("image", 1.0)), ("s1", bad), ("s2", publication("image", 1.0))):
        charge(faces / place, item)
    assert [spent(faces / place).guarantee.epsilon for place in ("", "s1")] == [math.inf, math.inf]
    assert spent(faces / "s2").guarantee.epsilon == pytest.approx(2)


@pytest.mark.parametrize("linked", ["folder", "image"])
def test_a_link_inside_leads_to_the_ledgers_around_its_target(tmp_path, linked):
    charge(tmp_path / "all", publication("image", 4.0))
    charge(tmp_path / "all" / "s1", publication("image", 2.0))
    charge(tmp_path / "faces", publication("image", 1.0))
    target = tmp_path / "all" / "s1"
    (tmp_path / "faces" / "mine").symlink_to(target if linked == "folder" else target / "1.png")
    assert spent(tmp_path / "faces").guarantee.epsilon == pytest.approx(7)
    assert spent(target).guarantee.epsilon == pytest.approx(6)  # what links to it, nobody can list


def test_a_ledger_below_a_link_counts_once(tmp_path):
    charge(tmp_path / "all" / "s1", publication("image", 2.0))
    charge(tmp_path / "faces", publication("image", 1.0))
    (tmp_path / "faces" / "link").symlink_to(tmp_path / "all")
    assert spent(tmp_path / "faces").guarantee.epsilon == pytest.approx(3)


def test_a_second_ledger_of_the_folder_counts(tmp_path):
    charge(tmp_path / "faces", publication("image", 2.0))
    own = FolderLedger(tmp_path / "other", "faces", (publication("image", 1.0),))
    assert total(chains(tmp_path / "faces", own), Unit.IMAGE).guarantee.epsilon == pytest.approx(3)


def test_a_ledger_inside_under_another_name_counts_for_every_place(tmp_path):
    faces = tmp_path / "faces"
    for place, epsilon in (("", 1.0), ("s1", 2.0), ("s2", 3.0)):
        charge(faces / place, publication("image", epsilon))
    FolderLedger(faces / "old.ledger.json", "s1", (publication("image", 0.5),)).write()
    assert spent(faces).guarantee.epsilon == pytest.approx(4.5)


def test_a_folder_that_is_gone_has_spent_what_it_spent(tmp_path):
    faces = tmp_path / "faces"
    charge(faces, publication("image", 1.0))
    charge(faces / "s1", publication("image", 2.0))
    (faces / "s1" / "1.png").rename(faces / "2.png")
    (faces / "s1").rmdir()
    assert spent(faces).guarantee.epsilon == pytest.approx(3)


@pytest.mark.parametrize("place", ["above", "inside"])
def test_a_nested_ledger_that_cannot_be_read_is_refused(tmp_path, place):
    folders = [tmp_path / "faces", tmp_path / "faces" / "s1"]
    for folder in folders:
        charge(folder, publication("image", 1.0))
    asked, spoiled = folders if place == "inside" else folders[::-1]
    ledger_of(spoiled).write_text("{}")
    with pytest.raises(InputError, match=f"the ledger .*{spoiled.name}.ledger.json cannot be used"):
        spent(asked)


def moves(tmp_path):
    """What happens to data/faces, and where it is then."""
    data = tmp_path / "data"
    return {
        "renamed": (lambda: (data / "faces").rename(data / "photos"), "data/photos"),
        "renamed twice": (
            lambda: (data / "faces").rename(data / "a").rename(data / "photos"),
            "data/photos",
        ),
        "its parent renamed": (lambda: data.rename(tmp_path / "old"), "old/faces"),
        "both renamed": (lambda: (data / "faces").rename(data / "photos") and data.rename(tmp_path / "b"), "b/photos"),
        "moved down": (lambda: (data / "new").mkdir() or (data / "faces").rename(data / "new" / "x"), "data/new/x"),
        "moved up": (lambda: (data / "faces").rename(tmp_path / "faces"), "faces"),
        "moved aside": (lambda: (tmp_path / "b").mkdir() or (data / "faces").rename(tmp_path / "b" / "f"), "b/f"),
        "stays": (lambda: None, "data/faces"),
    }


@pytest.mark.parametrize("name", moves(Path()))
def test_a_folder_that_was_moved_keeps_what_it_cost(tmp_path, name):
    charge(tmp_path / "data" / "faces", publication("image", 2.0))
    move, then = moves(tmp_path)[name]
    move()
    assert spent(tmp_path / then).guarantee.epsilon == pytest.approx(2)
    charge(tmp_path / then, publication("image", 1.0))
    assert spent(tmp_path / then).guarantee.epsilon == pytest.approx(3)
    (tmp_path / then / "s1").mkdir()
    assert spent(tmp_path / then / "s1").counted == 2
    aside = tmp_path / "other"
    aside.mkdir()
    assert spent(aside).guarantee.epsilon == 0  # negative control: of another folder beside it nothing


def test_a_folder_that_gets_its_name_back_has_what_it_cost_under_both(tmp_path):
    faces, photos = tmp_path / "faces", tmp_path / "photos"
    charge(faces, publication("image", 2.0))
    charge(faces.rename(photos), publication("image", 1.0))
    photos.rename(faces)
    assert spent(faces).guarantee.epsilon == pytest.approx(3)
    charge(faces, publication("image", 4.0))
    assert spent(faces.rename(photos)).guarantee.epsilon == pytest.approx(7)


def test_another_folder_at_the_old_name_over_counts_and_the_moved_one_loses_nothing(tmp_path):
    faces, photos = tmp_path / "faces", tmp_path / "photos"
    charge(faces, publication("image", 2.0))
    faces.rename(photos)
    charge(faces, publication("image", 1.0))  # of other images
    assert spent(faces).guarantee.epsilon == pytest.approx(3)
    assert spent(photos).guarantee.epsilon == pytest.approx(3)  # never too little
    shutil.copytree(faces, tmp_path / "copy")
    assert spent(tmp_path / "copy").guarantee.epsilon == 0  # a copy is another folder, as documented


def test_a_moved_ledger_of_elsewhere_that_is_damaged_or_of_an_older_version_is_passed_over(tmp_path):
    charge(tmp_path / "faces", publication("image", 2.0))
    (tmp_path / "broken.ledger.json").write_text("{")
    content = json.loads((tmp_path / "faces.ledger.json").read_text())
    del content["known"], content["checksum"]
    (tmp_path / "faces.ledger.json").write_text(json.dumps({**content, "checksum": books.checksum(content)}))
    assert spent(tmp_path / "faces").guarantee.epsilon == pytest.approx(2)
    assert spent((tmp_path / "faces").rename(tmp_path / "photos")).guarantee.epsilon == 0  # it knows none by itself


def test_folders_near_it_that_vanish_while_they_are_listed_are_no_error(tmp_path):
    charge(tmp_path / "faces", publication("image", 2.0))
    ended = threading.Event()

    def busy():
        for number in itertools.count():
            if ended.is_set():
                return
            (tmp_path / f"a{number}").mkdir()
            (tmp_path / f"a{number}").rmdir()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(busy)
        try:
            for _ in range(200):
                assert spent(tmp_path / "faces").counted == 1
        finally:
            ended.set()
