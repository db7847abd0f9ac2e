"""A hundred edited ledgers of an interrupted run: refused, or no read is forgotten."""

from __future__ import annotations

import copy
import json
import random
import shutil
import signal

import pytest

from idpgan import trainer
from idpgan.errors import InputError
from idpgan.kinds import verify as verify_release
from idpgan.privacy.books import checksum
from idpgan.training.config import load_method
from tests import small_runs

EDITS = 100
TAKEN = 4  # steps that the interrupted run took
_VALUES = (None, True, -1, 0, 1, 2, 3, 1e-9, 0.5, 1e9, 10**30, "", "inf", "image", "replace-one", [], {}, "0" * 64)


def interrupt(out):
    """Return a dp-gan run that stopped after four of six steps."""
    config = small_runs.config_of("dp-gan")
    step, taken = load_method("dp-gan").Method.critic_step, []

    def stopping(self, number):
        taken.append(number)
        if number == TAKEN:
            signal.raise_signal(signal.SIGTERM)
        return step(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_method("dp-gan").Method, "critic_step", stopping)
        assert trainer.start(config, out).outcome.ended == "interrupted"
    assert len(taken) == TAKEN
    return out


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    return interrupt(tmp_path_factory.mktemp("ledgers") / "run")


def places(value, path=()):
    """The paths of all values in a nested table."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def edited(books, number):
    """Change, remove or double one value; return the place, what was done, and whether the checksum fits again."""
    coins = random.Random(f"ledger {number}")
    data = copy.deepcopy(books)
    path = coins.choice([place for place in places(data) if place and place != ("checksum",)])
    *parents, key = path
    table = data
    for parent in parents:
        table = table[parent]
    kind = coins.choice(["value", "value", "value", "scaled", "removed", "doubled"])
    if kind == "removed":
        del table[key]
    elif kind == "doubled" and isinstance(table, list):
        table.append(copy.deepcopy(table[key]))
    elif kind == "scaled" and isinstance(table[key], int | float) and not isinstance(table[key], bool):
        table[key] = type(table[key])(table[key] * coins.choice([0.5, 2, 10]))
    else:
        table[key] = coins.choice(_VALUES)
    fits = coins.random() < 0.8
    if fits:
        data["checksum"] = checksum({name: value for name, value in data.items() if name != "checksum"})
    return data, fits


def reads(path):
    """Number of critic steps on a ledger."""
    return sum(event["count"] for event in json.loads(path.read_text())["events"])


def edit_and_resume(interrupted, folder, number):
    """Resume the run with an edited ledger; whether it was refused."""
    run = shutil.copytree(interrupted, folder / str(number))
    path = run / "state" / "ledger.json"
    books = json.loads(path.read_text())
    data, fits = edited(books, number)
    path.write_text(json.dumps(data))
    problem = None
    try:
        trainer.resume(run)
    except InputError as error:
        problem = str(error)
    if problem is not None:
        assert problem.count("\n") == 0
        assert not (run / "release").exists()
        return True
    if data != books:
        assert fits, f"edit {number}: an edit without its checksum was taken"
    assert reads(path) >= small_runs.STEPS, f"edit {number}: reads were forgotten"
    assert verify_release(run).problems == ()
    return False


def test_the_untouched_ledger_goes_on(interrupted, tmp_path):
    run = shutil.copytree(interrupted, tmp_path / "run")
    assert trainer.resume(run).outcome.ended == "finished"
    assert reads(run / "state" / "ledger.json") == small_runs.STEPS


def test_edited_ledgers_are_refused_or_forget_nothing(interrupted, tmp_path):
    refused = [edit_and_resume(interrupted, tmp_path, number) for number in range(8)]
    assert sum(refused) >= 4


@pytest.mark.slow
def test_a_hundred_edited_ledgers(interrupted, tmp_path):
    refused = [edit_and_resume(interrupted, tmp_path, number) for number in range(EDITS)]
    print(f"{sum(refused)} of {EDITS} edited ledgers are refused, the others forget nothing")
    assert sum(refused) > EDITS / 2
