"""A run that is frozen, killed or starved of disk at any moment goes on, pays once, and leaves nothing half-written."""

from __future__ import annotations

import functools
import json
import random
import signal
import time
from pathlib import Path

import pytest

from idpgan.kinds import verify as verify_release
from idpgan.privacy.ledger import Ledger
from idpgan.synthesis import METHODS
from idpgan.training.plan import plan_run
from tests.redteam import small_runs
from tests.small_runs import STEPS, config_of
from tests.training.toy import digits, fork_server

FROZEN, KILLED = 100, 50  # over all methods


@pytest.fixture(scope="module")
def context():
    """Where children start in milliseconds."""
    return fork_server()


def run_child(context, name, out, number=0, act=None, report=None, timeout=120):
    """Begin or continue a run in a process of its own; return its exit code."""
    out.parent.mkdir(parents=True, exist_ok=True)
    process = context.Process(target=small_runs.child, args=(name, out, number, act, report))
    process.start()
    process.join(timeout)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"{name} hangs after a disturbance at write {number}")
    return process.exitcode


def charges(out: Path):
    """What the ledger of a run says that was read."""
    return json.loads((out / "state" / "ledger.json").read_text())["events"]


def leftovers(out: Path):
    """Files that an interrupted write left behind, beside the run too."""
    hidden = [path for path in out.parent.rglob(".*") if path.suffix != ".lock"]  # a lock stays, empty
    return [path.name for path in [*hidden, *out.parent.rglob("*.part")]]


def check(name: str, out: Path) -> None:
    """The run is finished, paid exactly once, released whole, and clean."""
    config = config_of(name)
    ledger = Ledger.open(out / "state" / "ledger.json", config.identity())
    assert ledger.events == plan_run(config, digits().shape).events, name
    assert verify_release(out).problems == ()
    stats = out / "stats.jsonl"  # none without steps
    rows = [json.loads(line) for line in stats.read_text().splitlines()] if config.training.steps else []
    assert [row["step"] for row in rows] == ([2, 4, STEPS] if config.training.steps else [])
    assert leftovers(out) == []


def count_writes(context, name, folder):
    """How often a method changes the disk in an undisturbed run."""
    out, report = folder / "run", folder.with_suffix(".json")
    assert run_child(context, name, out, 10**9, small_runs.die, report) == 0
    found = json.loads(report.read_text())
    assert found["problem"] is None, found
    check(name, out)
    return found["calls"]


@pytest.fixture(scope="module")
def writes(context, tmp_path_factory):
    """The same of each method that is asked for, counted once."""
    return functools.cache(lambda name: count_writes(context, name, tmp_path_factory.mktemp(name)))


def disturbed(context, name, out, number, act):
    """Disturb a run at one write, then let it go on."""
    code = run_child(context, name, out, number, act)
    assert code in (0, -signal.SIGKILL)
    report = out.parent.with_suffix(".json")
    assert run_child(context, name, out, report=report) == 0
    assert json.loads(report.read_text())["problem"] is None
    check(name, out)


def points(total: int, wanted: int) -> list[int]:
    """Numbers of writes, spread evenly."""
    return sorted({1 + round(share * (total - 1) / max(wanted - 1, 1)) for share in range(wanted)})


@pytest.mark.parametrize("name", ["idp-gan-aggregate", "dp-gan"])
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_frozen_run_goes_on(context, writes, tmp_path, name, share):
    disturbed(context, name, tmp_path / "work" / "run", round(share * writes(name)), small_runs.die)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("act", [small_runs.die, small_runs.fill_the_disk, small_runs.press_ctrl_c])
def test_frozen_at_many_moments(context, writes, tmp_path, name, act):
    for number in points(writes(name), -(-FROZEN // len(METHODS))):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        disturbed(context, name, folder / "run", number, act)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_killed_at_random_moments(context, tmp_path, name):
    coins = random.Random(f"kill {name}")
    started = time.monotonic()
    assert run_child(context, name, tmp_path / "whole" / "run") == 0
    seconds = time.monotonic() - started
    for number in range(-(-KILLED // len(METHODS))):
        out = tmp_path / f"{number}" / "run"
        out.parent.mkdir()
        process = context.Process(target=small_runs.child, args=(name, out, 0, None))
        process.start()
        process.join(coins.uniform(0, seconds))
        process.kill()
        process.join()
        report = tmp_path / "report.json"
        assert run_child(context, name, out, report=report) == 0
        assert json.loads(report.read_text())["problem"] is None
        check(name, out)
