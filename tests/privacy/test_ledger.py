import errno
import json
import math
import multiprocessing
import os
import stat

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idpgan.errors import InputError
from idpgan.privacy import Budget, BudgetError, Event, Ledger, Noise, Relation, Unit
from idpgan.privacy.books import checksum
from idpgan.privacy.plan import Price

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
    path.write_text(json.dumps({"format": "idpgan ledger 1", "owner": "run", "events": []}))
    with pytest.raises(InputError, match="'idpgan ledger 1', this version of idpgan reads 'idpgan ledger 2'"):
        Ledger.open(path, "run")
    path.unlink()
    Ledger(*ADD, path=path, owner="another run").flush()
    with pytest.raises(InputError, match="another configuration"):
        Ledger.open(path, "run")


def test_what_was_planned_is_priced_together_and_no_more_is_spent(monkeypatch):
    ledger = Ledger(*ADD, target=Budget(0.55, 0.0))
    with monkeypatch.context() as patch:
        patch.setattr("idpgan.privacy.accounting.affordable", None)  # no search for the largest number
        for left in (4, 3, 2, 1):
            assert ledger.affordable(STEP, planned=left) == left
            ledger.charge(STEP)
    ledger.charge(STEP)  # beyond the plan, and within the target
    assert ledger.affordable(STEP) == 0
    with pytest.raises(BudgetError, match="Nothing was read"):
        ledger.charge(STEP)
    assert Ledger(*ADD, target=Budget(0.55, 0.0)).affordable(STEP, planned=9) == 5


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


# Two handles, two processes -----------------------------------------------------------------------------------------


def test_two_handles_lose_no_charge_and_share_the_budget(tmp_path):
    path = tmp_path / "ledger.json"
    first = Ledger(*ADD, Budget(0.35, 0.0), path, "run")
    second = Ledger(*ADD, Budget(0.35, 0.0), path, "run")  # before the first has written
    for handle in (first, second, first):
        handle.charge(STEP)
    assert Ledger.open(path, "run").events == (STEP.repeated(3),)
    assert second.affordable(STEP) == 1  # it has not looked since its own charge
    with pytest.raises(BudgetError, match=r"0\.3 is spent"):
        second.charge(STEP)
    assert second.affordable(STEP) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def charge_often(path, times):
    ledger = Ledger.open(path, "run")
    for _ in range(times):
        ledger.charge(STEP)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_that_charge_at_once_lose_no_charge(tmp_path):
    path = tmp_path / "ledger.json"
    Ledger(*ADD, path=path, owner="run").flush()
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=charge_often, args=(path, 40)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert Ledger.open(path, "run").position == 120


def test_a_ledger_is_never_written_over_by_another_one_or_after_it_is_gone(tmp_path):
    path = tmp_path / "ledger.json"
    ledger = Ledger(*ADD, path=path, owner="run")
    ledger.charge(STEP)
    for other in (Ledger(*ADD, path=path, owner="another"), Ledger(*ADD, Budget(1.0, 0.0), path, "run")):
        with pytest.raises(BudgetError, match="another one"):
            other.charge(STEP)
    in_memory = Ledger(*ADD, owner="run")
    in_memory.charge(STEP)
    in_memory.path = path
    with pytest.raises(BudgetError, match="in use"):
        in_memory.charge(STEP)
    path.unlink()
    with pytest.raises(BudgetError, match="is gone"):
        ledger.charge(STEP)


@pytest.mark.parametrize(("failing", "stands"), [("replace", 1), ("fsync", 1)])
def test_after_a_failed_write_the_next_charge_looks_at_what_stands(tmp_path, monkeypatch, failing, stands):
    ledger = Ledger(*ADD, path=tmp_path / "ledger.json", owner="run")
    ledger.charge(STEP)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, full)
        with pytest.raises(OSError, match="No space"):
            ledger.charge(STEP)
    assert ledger.position >= stands  # never under what is on the disk
    assert Ledger.open(ledger.path, "run").position == stands
    ledger.charge(STEP)
    assert Ledger.open(ledger.path, "run").position == ledger.position == stands + 1


# Bound to the config ------------------------------------------------------------------------------------------------

READ = Event("gaussian", *ADD, 1.0)
DRAW = Event("poisson-gaussian", *ADD, 1.0, sample_rate=0.01)
TARGET = Budget(8.0, 1e-5)
PLAN = Price(*ADD, budget=TARGET, events=(READ, DRAW.repeated(50)))


def kept(tmp_path):
    ledger = Ledger(*ADD, path=tmp_path / "ledger.json", owner="run")
    ledger.charge(READ)
    ledger.charge(DRAW.repeated(20))
    target = {"epsilon": TARGET.epsilon, "delta": TARGET.delta}  # put in afterwards: nothing has to be priced
    edited(ledger.path, lambda data: data.update(target=target), forged=True)
    return ledger.path


def edited(path, change, *, forged):
    data = json.loads(path.read_text())
    change(data)
    if forged:
        data["checksum"] = checksum({name: value for name, value in data.items() if name != "checksum"})
    path.write_text(json.dumps(data))


def event(index, **values):
    return lambda data: data["events"][index].update(values)


EDITS = {
    "one bit of the noise multiplier": event(0, noise_multiplier=3.0),  # 1.0 is 0x3ff0..., 3.0 is 0x4008...
    "ten times the noise": event(1, noise_multiplier=10.0),
    "another sampling rate": event(1, sample_rate=0.001),
    "another kind": event(0, kind="discrete-gaussian"),
    "more than planned": event(1, count=51),
    "an event more": lambda data: data["events"].append(STEP.to_json()),
    "another target": lambda data: data.update(target={"epsilon": 80.0, "delta": 1e-5}),
    "another delta": lambda data: data.update(target={"epsilon": 8.0, "delta": 1e-3}),
    "no target": lambda data: data.update(target=None),
    "another relation": lambda data: [item.update(relation="replace-one") for item in (data, data["events"][0])],
    "another owner": lambda data: data.update(owner="another"),
    "a key more": lambda data: data.update(comment="mine"),
    "no events": lambda data: data.update(events={}),
    "a target of text": lambda data: data.update(target={"epsilon": "8", "delta": 1e-5}),
    "a release of text": lambda data: data.update(release={"sha256": 3}),
}


@pytest.mark.parametrize("forged", [False, True], ids=["checksum left", "checksum made again"])
@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS.keys())
def test_an_edited_ledger_is_refused(tmp_path, change, forged):
    path = kept(tmp_path)
    assert Ledger.open(path, "run", PLAN).events == (READ, DRAW.repeated(20))
    edited(path, change, forged=forged)
    with pytest.raises(InputError, match=r"cannot be used|another configuration"):
        Ledger.open(path, "run", PLAN)
    if not forged:
        with pytest.raises(InputError, match=r"checksum|format"):
            Ledger.open(path, "run")


def test_a_ledger_in_which_a_key_stands_twice_is_refused(tmp_path):
    """Readers of JSON differ in which of the two they take; this one took the last."""
    path = kept(tmp_path)
    path.write_text(path.read_text().replace('"owner": "run"', '"owner": "another", "owner": "run"'))
    with pytest.raises(InputError, match="twice"):
        Ledger.open(path, "run")


def test_without_a_config_a_price_above_the_target_is_refused(tmp_path):
    path = kept(tmp_path)
    edited(path, event(0, count=10), forged=True)
    with pytest.raises(InputError, match="above its target 8"):
        Ledger.open(path, "run")


@pytest.mark.parametrize("position", range(0, 900, 37))
def test_every_changed_byte_is_noticed(tmp_path, position):
    path = kept(tmp_path)
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1
    path.write_bytes(content)
    try:
        assert Ledger.open(path, "run").events == (READ, DRAW.repeated(20))  # white space only
    except InputError as error:
        assert "damaged" in str(error) or "checksum" in str(error) or "format" in str(error)  # noqa: PT017


def test_steps_repeated_with_fresh_noise_may_exceed_the_plan_but_not_the_target(tmp_path):
    path, plan = tmp_path / "ledger.json", Price(*ADD, 0.0, Budget(8.0, 0.0), (OTHER, STEP.repeated(50)))
    ledger = Ledger(*ADD, plan.budget, path, "run")
    ledger.charge(OTHER)
    ledger.charge(STEP.repeated(20))
    ledger.record_state("of a state at position 5")
    ledger.repeat(5)  # 16 of the 20 steps are taken again
    assert Ledger.open(path, "run", plan).state_digest is None
    ledger.charge(STEP.repeated(46))
    again = Ledger.open(path, "run", plan)
    assert again.events == (OTHER, STEP.repeated(66))
    assert again.has_repeated
    with pytest.raises(BudgetError, match="exceed"):
        again.charge(STEP.repeated(20))
    edited(path, event(1, count=67), forged=True)
    with pytest.raises(InputError, match="does not plan"):
        Ledger.open(path, "run", plan)


# Released at once ---------------------------------------------------------------------------------------------------


def sums(value=1.0):
    return {"sums": torch.full((3,), value), "none": torch.empty(0)}


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_was_released_is_neither_computed_nor_charged_again(tmp_path, on_disk):
    ledger = Ledger(*ADD, Budget(0.35, 0.0), tmp_path / "ledger.json" if on_disk else None, "run")
    assert ledger.released() is None
    calls = []
    for _ in range(3):
        found = ledger.release([OTHER, STEP], lambda: (calls.append(1), sums())[1], noise=Noise.system())
        assert torch.equal(found["sums"], torch.ones(3))
        assert found["none"].shape == (0,)
    assert len(calls) == 1
    assert ledger.events == (OTHER, STEP)
    assert ledger.released_position == 2
    if on_disk:
        again = Ledger.open(ledger.path, "run")
        assert torch.equal(again.release([OTHER], pytest.fail, noise=Noise.system())["sums"], torch.ones(3))
        assert again.events == (OTHER, STEP)


def test_a_release_that_cannot_be_paid_is_not_computed():
    ledger = Ledger(*ADD, Budget(0.25, 0.0))
    with pytest.raises(BudgetError, match="1 x exponential and 1 x laplace would exceed"):
        ledger.release([OTHER, STEP], pytest.fail, noise=Noise.system())
    assert ledger.events == ()


def test_a_release_of_a_fixed_seed_is_not_taken_for_a_private_one(tmp_path):
    ledger = Ledger(*ADD, path=tmp_path / "ledger.json", owner="run")
    ledger.release([OTHER], sums, noise=Noise.fixed(1))
    with pytest.raises(InputError, match="fixed noise seed"):
        Ledger.open(ledger.path, "run").release([OTHER], sums, noise=Noise.system())


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("error", [Killed, KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
def test_a_release_stopped_at_any_write_is_paid_exactly_once(tmp_path, monkeypatch, call, error):
    """The commit point is the rename of the ledger: before it nothing is kept or paid, after it everything is."""
    outcomes, moment, ended = [], 0, False
    while not ended:
        moment += 1
        path = tmp_path / str(moment) / "ledger.json"
        path.parent.mkdir()
        Ledger(*ADD, Budget(0.25, 0.0), path, "run").flush()
        ended, seen, original = True, [], getattr(os, call)

        def stopping(*arguments, seen=seen, original=original, moment=moment):
            seen.append(arguments)
            if len(seen) == moment:
                raise error
            return original(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(os, call, stopping)
            try:
                Ledger.open(path, "run").release([OTHER], sums, noise=Noise.system())
            except (Killed, KeyboardInterrupt, OSError):
                ended = False
        kept = Ledger.open(path, "run")
        committed = kept.events == (OTHER,)
        assert committed or kept.events == ()
        outcomes.append(committed)
        found = kept.release([OTHER], lambda: sums(2.0), noise=Noise.system())
        assert found["sums"].tolist() == [1.0 if committed else 2.0] * 3  # what no ledger names is not used
        assert Ledger.open(path, "run").events == (OTHER,)
        assert {item.name for item in path.parent.iterdir()} == {
            "ledger.json", ".ledger.json.lock", "prepared.safetensors",
        }  # fmt: skip
    assert outcomes == sorted(outcomes)
    assert len(outcomes) == (4 if call == "replace" else 6)
    assert False in outcomes


@pytest.mark.parametrize("how", ["charge", "release"])
def test_a_first_charge_that_could_not_be_written_is_not_paid_twice(tmp_path, monkeypatch, how):
    ledger = Ledger(Unit.IMAGE, Relation.ZERO_OUT, path=tmp_path / "ledger.json")
    event = Event("gaussian", Unit.IMAGE, Relation.ZERO_OUT, 4.0)

    def spend():
        if how == "charge":
            ledger.charge(event)
        else:
            ledger.release([event], lambda: {"x": torch.ones(1)}, noise=Noise.system())

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("idpgan.privacy.ledger.write_text_atomic", full)
        with pytest.raises(OSError, match="No space"):
            spend()
    spend()
    assert ledger.events == Ledger.open(ledger.path, "").events == (event,)


def test_a_link_to_a_ledger_is_refused_since_charges_would_not_reach_the_ledger(tmp_path):
    event = Event("gaussian", Unit.IMAGE, Relation.ZERO_OUT, 4.0)
    Ledger(Unit.IMAGE, Relation.ZERO_OUT, path=tmp_path / "ledger.json").charge(event)
    (tmp_path / "link.json").symlink_to(tmp_path / "ledger.json")
    with pytest.raises(BudgetError, match="symbolic link"):
        Ledger.open(tmp_path / "link.json", "").charge(event)
    assert (tmp_path / "link.json").is_symlink()
