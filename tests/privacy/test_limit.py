"""A limit on a folder's ledger: no sequence of charges exceeds it, at whatever folder they are made."""

import dataclasses
import itertools
import json
import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from idpgan.errors import InputError
from idpgan.privacy import Event, Relation, Unit, folder_ledger
from idpgan.privacy.books import checksum, lock_of
from idpgan.privacy.folder_ledger import (
    OLD_FORMAT,
    FolderLedger,
    Limit,
    LimitError,
    Publication,
    ledger_of,
    refuse_limited,
)

LIMIT = Limit(3.0, 0.0, Unit.IMAGE, "today")


def row(epsilon, unit=Unit.IMAGE, relation=Relation.REPLACE_ONE, **changes):
    event = Event("laplace", unit, relation, noise_multiplier=1 / epsilon)
    known = {"events": (event,), "delta": 0.0, "method": "lap", "epsilon": epsilon, "num": 3, "out": "o", "date": "d"}
    return Publication(**known | changes)


@pytest.fixture
def folders(tmp_path):
    """A tree of folders, each with an image."""
    made = [tmp_path / place for place in ("faces", "faces/s1", "faces/s1/a", "faces/s2")]
    for folder in made:
        folder.mkdir()
        (folder / "1.png").touch()
    return made


def pay(folder, *rows, ledger=None):
    with FolderLedger.locked(ledger or ledger_of(folder), folder.resolve().name) as found:
        return found.pay(folder, rows)


def limit(folder, found=LIMIT):
    with FolderLedger.locked(ledger_of(folder), folder.name) as ledger:
        return ledger.limited(found)


def spent(folder):
    return sum(each.epsilon for each in FolderLedger.read(ledger_of(folder), folder.name).publications)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.parent.rglob("*.ledger.json")}


def test_a_charge_beyond_it_is_refused_and_leaves_the_ledgers_as_they_were(folders):
    faces = folders[0]
    pay(faces, row(1.0))
    limit(faces)
    pay(faces, row(1.5))
    before = content(faces)
    with pytest.raises(
        LimitError, match=r"epsilon = 3 \(unit image.* spent is epsilon = 2.5, asked epsilon = 1 .* 3.5"
    ):
        pay(faces, row(1.0))
    assert content(faces) == before
    pay(faces, row(0.5))  # up to the limit, exactly
    with pytest.raises(LimitError):
        pay(faces, row(1e-6))


@pytest.mark.parametrize("seed", range(4))
def test_no_sequence_of_charges_exceeds_it(folders, seed):
    """Against every image of the tree, added up by hand; without limits the same sequence exceeds them."""
    chance = random.Random(seed)
    limits = {folder: chance.choice([1.0, 2.0, 4.0]) for folder in chance.sample(folders, 2)}
    for folder, epsilon in limits.items():
        limit(folder, dataclasses.replace(LIMIT, epsilon=epsilon))
    asked, refused = dict.fromkeys(folders, 0.0), 0
    for _ in range(12):
        folder, epsilon = chance.choice(folders), chance.choice([0.25, 0.5, 1.0])
        asked[folder] += epsilon
        try:
            pay(folder, row(epsilon, relation=chance.choice(list(Relation))))
        except LimitError:
            refused += 1
    for capped, epsilon in limits.items():
        for place in (each for each in folders if each.is_relative_to(capped)):
            assert sum(spent(at) for at in folders if place.is_relative_to(at)) <= epsilon
    exceeds = [
        sum(total for at, total in asked.items() if place.is_relative_to(at)) > epsilon
        for capped, epsilon in limits.items()
        for place in folders
        if place.is_relative_to(capped)
    ]
    assert any(exceeds) == bool(refused)


@pytest.mark.parametrize("seed", range(3))
def test_of_charges_at_once_none_is_missed(folders, seed):
    limit(folders[0])
    orders = random.Random(seed).choices(folders[:3], k=24)

    def attempt(folder):
        try:
            pay(folder, row(0.5))
        except InputError:  # the limit, or a ledger that is in use
            return 0.0
        return 0.5

    with ThreadPoolExecutor(8) as pool:
        paid = sum(pool.map(attempt, orders))
    assert 0 < paid <= 3
    assert sum(map(spent, folders)) == paid


@pytest.mark.parametrize("unit", [Unit.PIXEL, Unit.WINDOW, Unit.EVENT])
def test_what_bounds_nothing_of_its_unit_is_refused(folders, unit):
    limit(folders[0])
    with pytest.raises(LimitError, match="infinite or of units that bound no image"):
        pay(folders[0], row(0.1, unit))
    with pytest.raises(LimitError):
        pay(folders[0], row(0.1, events=(Event.non_private("no proof"),)))
    pay(folders[0], row(0.1, Unit.PERSON))  # negative control


def test_a_cost_never_has_a_larger_delta_than_the_limit():
    """Charges of people with a delta are carried over to images by group privacy, and bring a delta of their own."""
    gaussian = Event("gaussian", Unit.PERSON, Relation.ZERO_OUT, noise_multiplier=8.0)
    limit = dataclasses.replace(LIMIT, delta=1e-5)
    found = limit.cost([row(1.0), row(1.0, events=(gaussian,), delta=1e-5)])
    assert 1.0 < found.epsilon < math.inf
    assert found.delta <= limit.delta


@pytest.mark.parametrize("change", ["removed", "emptied", "edited", "linked"])
def test_a_ledger_with_a_limit_that_is_not_whole_refuses_every_charge(folders, change):
    faces = folders[0]
    limit(faces)
    path = ledger_of(faces)
    text = path.read_text()
    path.unlink()
    if change == "emptied":
        path.touch()
    if change == "edited":
        path.write_text(text.replace("3.0", "9.0"))
    if change == "linked":
        path.symlink_to(faces.parent / "nowhere")
    for folder in (faces, faces / "s1"):
        with pytest.raises(InputError, match=r"cannot be used|symbolic link"):
            pay(folder, row(0.1))


def test_a_ledger_without_a_limit_may_be_gone(folders):
    """Negative control of the mark beside it."""
    pay(folders[0], row(1.0))
    ledger_of(folders[0]).unlink()
    assert lock_of(ledger_of(folders[0])).is_file()
    pay(folders[0], row(1.0))


def test_a_charge_that_the_limit_would_not_see_is_refused(folders):
    faces = folders[0]
    limit(faces)
    with pytest.raises(LimitError, match="Leave --ledger out"):
        pay(faces, row(0.1), ledger=faces.parent / "other.json")
    other = faces.parent / "other"
    other.mkdir()
    (other / "mine").symlink_to(faces / "s1")
    with pytest.raises(LimitError, match="leads by a link"):
        pay(other, row(0.1))


def test_the_last_limit_holds_and_all_are_kept(folders):
    raised = dataclasses.replace(LIMIT, epsilon=4.0, reason="a second study")
    limit(folders[0])
    limit(folders[0], raised)
    assert FolderLedger.read(ledger_of(folders[0]), "faces").limits == (LIMIT, raised)
    pay(folders[0], row(3.5))


def test_ledgers_of_the_version_before_are_read(folders):
    pay(folders[0], row(1.0))
    path = ledger_of(folders[0])
    written = json.loads(path.read_text())
    old = {"format": OLD_FORMAT, "folder": "faces", "publications": written["publications"]}
    for each in old["publications"]:
        del each["run"]
    path.write_text(json.dumps({**old, "checksum": checksum(old)}))
    assert FolderLedger.read(path, "faces").publications == (row(1.0),)


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan])
def test_a_limit_is_a_number(epsilon):
    with pytest.raises(InputError):
        Limit(epsilon, 0.0, Unit.IMAGE, "today")


def test_only_what_is_no_looser_passes_for_the_same_limit():
    looser = {"epsilon": 3.1, "delta": 2e-5, "unit": Unit.PIXEL}
    for several in itertools.chain.from_iterable(itertools.combinations(looser, n) for n in range(4)):
        changed = dataclasses.replace(LIMIT, **{name: looser[name] for name in several})
        assert LIMIT.allows(changed) == (not several)


def test_a_limit_goes_with_its_folder_under_another_name(folders, caplog):
    faces = folders[0]
    limit(faces)
    pay(faces, row(1.0))
    photos = faces.rename(faces.with_name("photos"))
    for place in (photos, photos / "s1"):
        with pytest.raises(LimitError, match=r"faces\.ledger\.json"):
            pay(place, row(2.5))
    with pytest.raises(LimitError, match="under a limit"):
        refuse_limited([photos / "s1" / "1.png"])
    assert not caplog.text
    pay(photos, row(1.0))
    assert f"{photos} was {faces}, whose ledger counts (charges: 1, the limit epsilon = 3" in caplog.text
    photos.rename(faces)
    with pytest.raises(LimitError):
        pay(faces, row(1.5))  # what was paid under the other name counts
    pay(faces, row(0.5))
    beside = faces.with_name("beside")
    beside.mkdir()
    refuse_limited([beside / "1.png"])  # negative control
    pay(beside, row(9.0))


@pytest.mark.parametrize("named", ["published", "published/photos", "published/s1/deeper"])
def test_a_limit_goes_with_its_folder_into_a_published_one(folders, tmp_path, caplog, named):
    """Failed before: the folder around it was refused for good, as if a link led there."""
    faces, published = folders[0], tmp_path / "published"
    (published / "s1").mkdir(parents=True)
    (published / "s1" / "1.png").touch()
    limit(faces)
    pay(faces, row(1.0))
    pay(published, row(0.5))
    inside = faces.rename(tmp_path / named / ("x" if named == "published" else ""))
    for place in (published, inside, inside / "s1"):
        with pytest.raises(LimitError, match=r"faces\.ledger\.json.* spent is epsilon = 1.5, asked epsilon = 2 "):
            pay(place, row(2.0))
    pay(published, row(1.0))
    assert f"{inside} was {faces}, whose ledger counts (charges: 1" in caplog.text
    with pytest.raises(LimitError):
        pay(inside, row(1.0))  # what was paid around it counts
    pay(inside, row(0.5))
    beside = tmp_path / "published" / "s2"
    beside.mkdir()
    (beside / "1.png").touch()
    pay(beside, row(9.0))  # negative control: other images


@pytest.mark.parametrize("unreadable", ["damaged", "of a later version"])
def test_a_limit_that_cannot_be_read_is_not_passed_by_a_folder_that_may_have_its_name(folders, unreadable):
    """Failed before: the folder under another name was charged as if there had been no limit."""
    faces = folders[0]
    limit(faces)
    pay(faces, row(2.5))
    content = ledger_of(faces).read_text()
    spoiled = content.replace("ledger 2", "ledger 3") if unreadable == "of a later version" else content[:-9]
    ledger_of(faces).write_text(spoiled)
    beside = faces.with_name("beside")
    beside.mkdir()
    pay(beside, row(9.0))  # negative control: the folder of that name is there
    photos = faces.rename(faces.with_name("photos"))
    for charged in (lambda: pay(photos, row(1.0)), lambda: refuse_limited([photos / "1.png"])):
        with pytest.raises(InputError, match=r"faces\.ledger\.json cannot be used.*move it away\."):
            charged()
    ledger_of(faces).write_text(content)
    with pytest.raises(LimitError):
        pay(photos, row(1.0))
    ledger_of(faces).rename(faces.with_name("elsewhere"))
    pay(photos, row(1.0))


def test_a_limit_is_seen_through_a_link_to_its_folder_under_another_name(tmp_path):
    """Failed before: only the ledgers near the folder with the link were asked, not those near its target."""
    faces, mine = tmp_path / "far" / "away" / "faces", tmp_path / "mine"
    for folder in (faces, mine):
        folder.mkdir(parents=True)
    (faces / "1.png").touch()
    limit(faces)
    (mine / "1.png").symlink_to(faces.rename(faces.with_name("photos")) / "1.png")
    with pytest.raises(LimitError, match="leads by a link to images of"):
        pay(mine, row(1.0))


def test_a_folder_of_another_disk_with_an_equal_number_is_another_folder(folders, monkeypatch):
    """Failed before: it passed for the folder under another name, and the limit would not have seen its charge."""
    faces, beside = folders[0], folders[0].with_name("beside")
    beside.mkdir()
    (beside / "1.png").symlink_to(faces / "1.png")
    limit(faces)
    number, disk = beside.stat().st_ino, beside.stat().st_dev
    with FolderLedger.locked(ledger_of(faces), faces.name) as ledger:
        dataclasses.replace(ledger, known=ledger.known | {number}).write()
    on_disk = folder_ledger._on_disk
    monkeypatch.setattr(
        folder_ledger, "_on_disk", lambda folder: ((number, disk + 1),) if folder == beside else on_disk(folder)
    )
    with pytest.raises(LimitError, match="leads by a link to images of"):
        pay(beside, row(1.0))
