import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idpgan.errors import InputError
from idpgan.privacy import Budget, BudgetError, Event, Ledger, Relation, Unit

ADD = (Unit.IMAGE, Relation.ZERO_OUT)
STEP, OTHER = Event("laplace", *ADD, 10.0), Event("exponential", *ADD, pure_epsilon=0.2)
RAW = Event.non_private("raw images", *ADD)


def test_charges_add_up_in_run_length():
    ledger = Ledger(*ADD)
    for event in (STEP, STEP, OTHER, STEP):
        ledger.charge(event)
    assert ledger.events == (STEP.repeated(2), OTHER, STEP)
    assert ledger.position == 4
    assert ledger.epsilon(0.0) == pytest.approx(0.5)
    guarantee = ledger.proven(0.0)
    assert (guarantee.unit, guarantee.relation) == ADD


def test_an_empty_ledger_has_spent_nothing():
    assert Ledger(*ADD).epsilon(1e-5) == 0.0
    assert Ledger(*ADD).proven(1e-5).epsilon == 0.0


def test_the_charge_is_on_the_disk_before_it_returns(tmp_path):
    ledger = Ledger(*ADD, path=tmp_path / "ledger.json", owner="run")
    for count in (1, 2, 3):
        ledger.charge(STEP)
        assert Ledger.open(tmp_path / "ledger.json", "run").position == count


def test_a_charge_that_cannot_be_written_is_an_error_before_the_read(tmp_path):
    ledger = Ledger(*ADD, path=tmp_path / "gone" / "ledger.json")
    with pytest.raises(OSError, match="gone"):
        ledger.charge(STEP)


def test_the_target_is_never_exceeded():
    ledger = Ledger(*ADD, target=Budget(0.35, 0.0))
    assert ledger.affordable(STEP) == 3
    for _ in range(3):
        ledger.charge(STEP)
    with pytest.raises(BudgetError, match="Nothing was read"):
        ledger.charge(STEP)
    with pytest.raises(BudgetError, match="exceed"):
        ledger.charge(RAW)
    assert ledger.epsilon(0.0) == pytest.approx(0.3)
    assert ledger.position == 3


@given(st.lists(st.sampled_from([STEP, OTHER, STEP.repeated(3)]), max_size=12))
def test_no_order_of_charges_exceeds_the_target(wanted):
    ledger = Ledger(*ADD, target=Budget(1.0, 0.0))
    refused = 0
    for event in wanted:
        try:
            ledger.charge(event)
        except BudgetError:
            refused += 1
    spent = ledger.epsilon(0.0)
    assert spent <= 1.0 + 1e-9
    assert not refused or spent > 1.0 - 0.3 - 1e-9  # it refuses only what does not fit


def test_another_unit_relation_or_thing_is_refused():
    ledger = Ledger(*ADD)
    for event in (Event("laplace", Unit.PIXEL, ADD[1], 1.0), Event("laplace", Unit.IMAGE, Relation.REPLACE_ONE, 1.0)):
        with pytest.raises(BudgetError, match="this ledger counts"):
            ledger.charge(event)
    with pytest.raises(BudgetError, match="takes events"):
        ledger.charge(None)


def test_round_trip_through_json():
    ledger = Ledger(*ADD, target=Budget(2.0, 1e-5), owner="run")
    ledger.charge(STEP)
    ledger.charge(OTHER)
    again = Ledger.from_json(json.loads(json.dumps(ledger.to_json())))
    assert again.to_json() == ledger.to_json()
    assert again.epsilon(1e-5) == ledger.epsilon(1e-5)


@pytest.mark.parametrize(
    "change",
    [{"format": "opacus"}, {"surprise": 1}, {"unit": "photo"}, {"events": [{"kind": "magic", "unit": "image"}]}],
)
def test_foreign_ledgers_are_refused(change):
    with pytest.raises(InputError):
        Ledger.from_json(Ledger(*ADD).to_json() | change)


def test_open_refuses_missing_damaged_and_foreign_files(tmp_path):
    path = tmp_path / "ledger.json"
    with pytest.raises(InputError, match="no ledger at"):
        Ledger.open(path, "run")
    path.write_text("{")
    with pytest.raises(InputError, match="damaged"):
        Ledger.open(path, "run")
    Ledger(*ADD, path=path, owner="another run").flush()
    with pytest.raises(InputError, match="another configuration"):
        Ledger.open(path, "run")


def test_a_resumed_run_meets_its_charges_again_and_pays_only_for_new_ones():
    ledger = Ledger(*ADD, target=Budget(1.0, 0.0))
    for event in (OTHER, STEP, STEP, STEP):
        ledger.charge(event)
    ledger.rewind(2)  # the state was saved after OTHER, STEP
    assert ledger.position == 2
    assert ledger.affordable(STEP) == 2 + 5
    ledger.charge(STEP)
    ledger.charge(STEP)
    assert ledger.epsilon(0.0) == pytest.approx(0.5)
    ledger.charge(STEP)
    assert ledger.epsilon(0.0) == pytest.approx(0.6)
    assert ledger.position == 5


def test_a_resumed_run_that_does_something_else_is_refused():
    ledger = Ledger(*ADD)
    ledger.charge(STEP.repeated(3))
    ledger.rewind(1)
    with pytest.raises(BudgetError, match="another run"):
        ledger.charge(OTHER)
    with pytest.raises(BudgetError, match="not of one run"):
        ledger.rewind(4)


def test_unprotected_reads_are_written_once_and_counted_at_the_flush(tmp_path):
    ledger = Ledger(*ADD, path=tmp_path / "ledger.json", owner="run")
    for _ in range(5):
        ledger.charge(RAW)
    assert Ledger.open(tmp_path / "ledger.json", "run").epsilon(1e-5) == math.inf
    ledger.flush()
    assert Ledger.open(tmp_path / "ledger.json", "run").position == 5
