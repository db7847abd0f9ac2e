"""The ledger of a folder: publications add up across units as far as one bounds the other."""

import math

import pytest

from idpgan.errors import InputError
from idpgan.privacy import Event, Relation, Unit
from idpgan.privacy.folder_ledger import FolderLedger, Publication


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
    total = made.total(Unit(unit))
    assert total.guarantee.epsilon == pytest.approx(epsilon)
    assert (total.finer, total.counted) == (finer, 3 - finer)


def test_a_window_is_of_no_other_unit(tmp_path):
    made = ledger(tmp_path, publication("window", 1.0), publication("image", 4.0))
    assert made.total(Unit.WINDOW).guarantee.epsilon == pytest.approx(1.0)


def test_the_total_is_stated_at_the_largest_delta(tmp_path):
    gaussian = Event("gaussian", Unit.IMAGE, Relation.REPLACE_ONE, noise_multiplier=3.0)
    made = ledger(tmp_path, publication("image", 2.0, 1e-4, events=(gaussian,)), publication("image", 1.0))
    total = made.total(Unit.IMAGE).guarantee
    assert total.delta == 1e-4
    assert 1.0 < total.epsilon < math.inf


def test_one_without_a_proof_leaves_no_total_of_any_unit(tmp_path):
    bad = publication("column", 1.0, events=(Event.non_private("no proof", Unit.COLUMN),))
    made = ledger(tmp_path, publication("image", 1.0), bad)
    for unit in (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE):
        assert made.total(unit).guarantee.epsilon == math.inf
    assert ledger(tmp_path, publication("image", 1.0)).total(Unit.IMAGE).guarantee.epsilon == pytest.approx(1)


@pytest.mark.parametrize("change", [("0.5", "0.6"), ("laplace", "gaussian"), ("{", "["), ("faces", "people")])
def test_every_change_is_found(tmp_path, change):
    ledger(tmp_path, publication("image", 0.5)).write()
    path = tmp_path / "ledger"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(InputError, match="restore it from a copy"):
        FolderLedger.read(path, "faces")
