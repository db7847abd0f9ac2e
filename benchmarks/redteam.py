"""The red team's figures, by the tests' own tables: how far neighbors move, and what is let pass.

python benchmarks/redteam.py [neighbors releases configs ledgers kills ranks] [--configs 110] [--ledgers 40] [--kills 4]

* neighbors: folders that differ in one record, to what is released of them (tests/neighbors): for each method and unit
  the largest difference as a share of the sensitivity, which may not pass 1.
* releases: forged releases of a run, a publication and a stream (tests/release), and besides each value of their
  privacy.json and config.json changed, left out and doubled, with all hashes and the card made to fit again. ``passed``
  names what `verify` finds consistent then; a setting that changes no charge may be another run's.
* configs: mutated configs; each builds or is refused in one line.
* ledgers: edited ledgers of an interrupted run; each is refused, or no read is forgotten.
* kills: runs of every method killed at so many of their writes each; each goes on and pays once.
* ranks: adapters on two processes; ``moved`` names rows of other records that a changed record moved by a bit.

One JSON line a part. Exit code 1: a ratio above 1, a forgery from the tables that passed, or a defect.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import io
import json
import logging
import operator
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from idpgan.continual import ContinualCounter
from idpgan.publish import release
from tests.redteam import small_runs, test_configs, test_kills, test_ledgers
from tests.release import forging, test_artifacts, test_fuzz, test_verify
from tests.release.conftest import AGGREGATE, train
from tests.training import pair_of_adapters, pairs

ROOT = Path(__file__).parents[1]
LEFT_OUT = object()
# What is another release, and not a false one: a version, a number of images that nobody declared, an epsilon that is
# larger than it need be, names, and settings that change no charge.
MAY_PASS = (
    *("privacy.json: idpgan another", "privacy.json: num_private", "privacy.json: report.proven.epsilon raised"),
    *("config.json: generator.classes.", "config.json: settings.data", "config.json: settings.training"),
    *("config.json: settings.method.level", "config.json: settings.method.augment", "config.json: settings.horizon"),
)
Row = dict[str, Any]


# Neighbors -----------------------------------------------------------------------------------------------------


class Ratios:
    """Collects what the tests keep by `ratio`; a plugin of pytest."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float]] = []
        self.outcomes: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Take what one finished test kept."""
        if report.when == "call":
            self.outcomes[report.outcome] += 1
            self.rows += [value for key, value in report.user_properties if key == "ratio"]


def neighbors(_: argparse.Namespace, place: Path) -> Row:
    """Run tests/neighbors."""
    found, said = Ratios(), io.StringIO()
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={place / 'pytest'}", str(ROOT / "tests" / "neighbors")]
    with contextlib.redirect_stdout(said):
        code = pytest.main(options, plugins=[found])
    if code:
        sys.stderr.write(said.getvalue())
    largest: dict[str, float] = {}
    for name, unit, ratio in found.rows:
        largest[f"{name}, {unit}"] = max(ratio, largest.get(f"{name}, {unit}", 0.0))
    methods = len({name for name, _, _ in found.rows})
    row: Row = {"methods": methods, "comparisons": len(found.rows), "tests": dict(found.outcomes)}
    return row | {"largest": dict(sorted(largest.items())), "defects": int(code) + sum(r > 1 for r in largest.values())}


# Releases ------------------------------------------------------------------------------------------------------


def some_releases(place: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Make one release of each kind, with its table of forgeries."""
    run = train(place / "run", AGGREGATE) / "release"
    release(test_artifacts.IMAGES, "lap", epsilon=2.0, unit="column").write(place / "images", "nine drawings")
    counter = ContinualCounter(epsilon=1.0, horizon=20)
    counter.write(place / "stream", counter.release([3, 0, 5, 1]), "visits")
    return {
        "run": (run, test_verify.FORGED),
        "images": (place / "images", test_artifacts.FORGED_IMAGES),
        "stream": (place / "stream", test_artifacts.FORGED_STREAMS),
    }


def others(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a forger would write in place of a value."""
    if isinstance(value, bool):
        yield "turned", not value
    elif isinstance(value, int | float):
        yield from (("halved", value / 2 if isinstance(value, float) else value // 2), ("raised", 2 * value + 1))
    elif isinstance(value, str):
        yield from (("another word", value + "x"), ("empty", ""))
    elif isinstance(value, list | dict):
        yield from (("emptied", type(value)()), ("doubled", 2 * value if isinstance(value, list) else value))
    yield "nothing", None


def mutations(table: Any) -> Iterator[tuple[str, Any]]:
    """Yield what was done, and the table with one value changed, left out or doubled."""
    for path in test_fuzz.paths(table):
        value = functools.reduce(operator.getitem, path, table)
        for word, new in (("left out", LEFT_OUT), *others(value)):
            changed = copy.deepcopy(table)
            inner = functools.reduce(operator.getitem, path[:-1], changed)
            if new is LEFT_OUT:
                del inner[path[-1]]
            else:
                inner[path[-1]] = new
            if changed != table:
                yield f"{'.'.join(map(str, path))} {word}", changed


def forged_by_field(source: Path, place: Path) -> tuple[int, list[str]]:
    """Change every value of both tables of a release; return how many, and what passed. Hashes and card are mended."""
    tried, passed = 0, []
    for file in ("privacy.json", "config.json"):
        for name, changed in mutations(json.loads((source / file).read_text())):
            folder = shutil.copytree(source, place / "forged")
            (folder / file).write_text(json.dumps(changed, indent=2) + "\n")
            if not name.startswith("files"):
                with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError):  # no card of that
                    forging.edit(folder, lambda document: None)
            tried += 1
            passed += [] if forging.verdict(folder) else [f"{file}: {name}"]
            shutil.rmtree(folder)
    return tried, passed


def unexpected(passed: list[str]) -> list[str]:
    """Return what should not have passed."""
    return [name for name in passed if not name.startswith(MAY_PASS)]


def releases(_: argparse.Namespace, place: Path) -> Row:
    """Forge releases."""
    row: Row = {"from_tables": 0, "passed_of_tables": [], "by_field": 0, "passed": {}, "unexpected": []}
    for kind, (source, table) in some_releases(place).items():
        for name, (forge, _word) in table.items():
            folder = shutil.copytree(source, place / "work" / "release")
            forge(folder)
            row["passed_of_tables"] += [] if forging.verdict(folder) else [f"{kind}: {name}"]
            shutil.rmtree(place / "work")
        row["from_tables"] += len(table)
        tried, passed = forged_by_field(source, place)
        row["by_field"] += tried
        row["passed"][kind] = passed
        row["unexpected"] += [f"{kind}: {name}" for name in unexpected(passed)]
    return row | {"defects": len(row["passed_of_tables"]) + len(row["unexpected"])}


# Configs, ledgers, kills -----------------------------------------------------------------------------------------


def configs(arguments: argparse.Namespace, place: Path) -> Row:
    """Mutate configs."""
    with contextlib.chdir(place):
        built, wrong = test_configs.attack(range(arguments.configs), test_configs.SLOW, place)
    refused = arguments.configs - len(built) - len(wrong)
    return {"tried": arguments.configs, "built": len(built), "one_line": refused, "wrong": wrong, "defects": len(wrong)}


def ledgers(arguments: argparse.Namespace, place: Path) -> Row:
    """Edit ledgers; an assertion of the test is a defect."""
    run = test_ledgers.interrupt(place / "run")
    refused, wrong = 0, []
    for number in range(arguments.ledgers):
        try:
            refused += test_ledgers.edit_and_resume(run, place, number)
        except AssertionError as error:
            wrong.append(str(error))
    went_on = arguments.ledgers - refused - len(wrong)
    row: Row = {"tried": arguments.ledgers, "refused": refused, "went_on_and_forgot_nothing": went_on}
    return row | {"wrong": wrong, "defects": len(wrong)}


def kills(arguments: argparse.Namespace, place: Path) -> Row:
    """Kill runs of every method at their writes."""
    context, tried, wrong = small_runs.fork_server(), 0, []
    for name in test_kills.METHODS:
        writes = test_kills.count_writes(context, name, place / name / "counted")
        for number in test_kills.points(writes, arguments.kills):
            tried += 1
            try:
                test_kills.disturbed(context, name, place / name / str(number) / "run", number, small_runs.die)
            except AssertionError as error:
                wrong.append(f"{name} at write {number}: {error}")
    return {"tried": tried, "methods": len(test_kills.METHODS), "wrong": wrong, "defects": len(wrong)}


def ranks(_: argparse.Namespace, place: Path) -> Row:
    """Change records of either rank in a step of adapters."""
    found = pairs.in_pair(pair_of_adapters.steps, place)
    moved, seen = [name for one in found for name in one["moved"]], sum(len(one["positions"]) for one in found)
    changes = len(pair_of_adapters.CHANGES) * len(pair_of_adapters.CHANGED)
    return {"records": seen, "changes": changes, "moved": moved, "defects": len(moved) + (seen != pair_of_adapters.NUM)}


PARTS = {part.__name__: part for part in (neighbors, releases, configs, ledgers, kills, ranks)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all without")
    for name, number in (("configs", 110), ("ledgers", 40), ("kills", 4)):
        parser.add_argument(f"--{name}", type=int, default=number)
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    os.environ.pop("IDPGAN_DATA", None)
    logging.disable(logging.WARNING)
    defects = 0
    for name in arguments.parts or PARTS:
        with tempfile.TemporaryDirectory() as place:
            row = PARTS[name](arguments, Path(place))
        defects += row["defects"]
        print(json.dumps({"part": name, **row}), flush=True)
    sys.exit(1 if defects else 0)


if __name__ == "__main__":
    main()
