"""How soon a command answers: ``idpgan --help``, the first step of the default, and the commands of `make demo`.

One JSON line, medians over the turns: seconds by the clock, and processor seconds of the processes, which other work
on the machine moves less. With another checkout the two take turns, and ``ratio`` is the median of the turns' ratios
of processor seconds, this one by the other. A first turn of the help is not counted.

python benchmarks/startup.py [--turns 5] [--against CHECKOUT] [--only help first-step demo]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Cost(NamedTuple):
    """Of one or more commands, one after the other."""

    clock: float  # s
    processor: float  # s


def command(checkout: Path, *arguments: object, until: str | None = None) -> Cost:
    """Run ``idpgan`` of a checkout; the clock stops at the first line on stderr that begins with ``until``."""
    started, stopped = time.perf_counter(), None
    child = subprocess.Popen(
        [sys.executable, "-m", "idpgan", *map(str, arguments)],
        cwd=checkout,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = []
    for line in child.stderr or ():
        said.append(line)
        if stopped is None and until is not None and line.startswith(until):
            stopped = time.perf_counter()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode or (until is not None and stopped is None):
        raise SystemExit(f"idpgan {' '.join(map(str, arguments))} ended with {child.returncode}:\n{''.join(said)}")
    return Cost((stopped or time.perf_counter()) - started, usage.ru_utime + usage.ru_stime)


def run_help(checkout: Path, folder: Path) -> Cost:
    return command(checkout, "--help")


def run_first_step(checkout: Path, folder: Path) -> Cost:
    """The processor's seconds are those of the whole run of one step."""
    settings = ("training.steps=1", "training.tick_steps=1")
    return command(checkout, "train", *settings, "--out", folder / "run", until="train: 1 of 1")


def run_demo(checkout: Path, folder: Path) -> Cost:
    run = folder / "run"
    parts = [
        command(checkout, "train", "--out", run),
        command(checkout, "sample", run, "--num", 1000, "--out", folder / "synthetic.npz"),
        command(checkout, "verify", run),
    ]
    return Cost(sum(part.clock for part in parts), sum(part.processor for part in parts))


WHAT = {"help": run_help, "first-step": run_first_step, "demo": run_demo}


def medians(costs: Sequence[Cost]) -> dict[str, float]:
    clock, processor = (round(statistics.median(each), 2) for each in zip(*costs, strict=True))
    return {"clock": clock, "processor": processor}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--only", nargs="+", choices=WHAT, default=list(WHAT))
    options = parser.parse_args()
    checkouts = [ROOT] + ([] if options.against is None else [options.against.resolve()])
    result: dict[str, object] = {"turns": options.turns, "cores": os.cpu_count()}
    for name in options.only:
        costs: list[list[Cost]] = [[] for _ in checkouts]
        for turn in range(options.turns + (name == "help")):
            for checkout, found in zip(checkouts, costs, strict=True):
                with tempfile.TemporaryDirectory() as folder:
                    cost = WHAT[name](checkout, Path(folder))
                if turn or name != "help":
                    found.append(cost)
        result[name] = medians(costs[0])
        if options.against is not None:
            ratios = [one.processor / other.processor for one, other in zip(*costs, strict=True)]
            result[name] = {**medians(costs[0]), "against": medians(costs[1]), "ratio": statistics.median(ratios)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
