"""What the five papers describe, row by row: a page, and the commands that show each row.

python benchmarks/papers/rows.py table                        # write both pages from rows.toml
python benchmarks/papers/rows.py run [--paper 000] [--seconds 900]    # run every command once (make papers)
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCE, PAGE = Path(__file__).with_suffix(".toml"), ROOT / "benchmarks" / "results" / "rows.md"
PAPERS_PAGE = ROOT / "docs" / "results" / "reproduction.md"
BEGINS, ENDS = "<!-- rows -->\n", "<!-- /rows -->\n"
SLOWEST = 5  # commands that are named at the end
VERDICTS = ("works", "partial", "missing", "departs")
PAPERS = {
    "000": "Zhang, Fu and Meng (2020): matrix publishers",
    "001": "Continual release by the matrix mechanism",
    "002": "Reading notes of fifteen papers",
    "003": "Liu et al. (2021): sliding windows",
    "004": "Yang, Zhou and Ning: IDP-GAN",
    "card": "What a package of this kind holds",
}


def read() -> list[dict[str, Any]]:
    """Return the rows, in order."""
    return tomllib.loads(SOURCE.read_text(encoding="utf-8"))["rows"]


def tests() -> list[dict[str, Any]]:
    """Return the tests of what only papers use, which the suite leaves out, as rows with the number 0."""
    files = sorted((ROOT / "tests" / "papers").glob("test_*.py"))
    return [{"row": 0, "paper": "002", "command": f"pytest -m papers {path.relative_to(ROOT)}"} for path in files]


def page(rows: list[dict[str, Any]]) -> str:
    """Return the text of the page."""
    lines = [
        "# The five papers, row by row",
        "",
        f"A row is one thing that a paper describes; *line* counts in our text of it. {counted(rows)}. Written by",
        "`python benchmarks/papers/rows.py table` from rows.toml beside it; `make papers` runs every command,",
        "which shows the thing on small data (a test file is a command, too). `survey.py` needs",
        '`pip install -c constraints.txt -e ".[survey]"`, OpenDP. Which claims hold is another question:',
        "[claims](../../docs/results/reproduction.md).",
    ]
    for paper, title in PAPERS.items():
        own = [row for row in rows if row["paper"] == paper]
        lines += [
            "",
            f"## {title}",
            "",
            f"{counted(own)}.",
            "",
            "| # | line | what | verdict | shown by |",
            "|---" * 5 + "|",
        ]
        for row in own:
            verdict = row["verdict"] + (f": {row['remark']}" if row["remark"] else "")
            command = f"`{row['command']}`" if row["command"] else ""
            lines.append("| " + " | ".join((str(row["row"]), row["line"], row["what"], verdict, command)) + " |")
    return "\n".join(lines) + "\n"


def papers_page(rows: list[dict[str, Any]], text: str) -> str:
    """Return the page *The papers* with a line for each thing that a script shows on the reader's own data."""
    before, _, rest = text.partition(BEGINS)
    _, _, after = rest.partition(ENDS)
    lines = [f"* {row['what']}: {row['verdict']}. `{row['yours']}`\n" for row in rows if "yours" in row]
    return before + BEGINS + "\n" + "".join(lines) + "\n" + ENDS + after


def counted(rows: list[dict[str, Any]]) -> str:
    """Say how many rows have which verdict."""
    count = Counter(row["verdict"] for row in rows)
    return f"{len(rows)} rows: " + ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS if count[verdict])


def call(command: str, out: Path) -> list[str]:
    """Return the arguments of a command: pytest and idpgan are those of this Python, marks those of the suite."""
    words = [word.replace("OUT", str(out)) for word in shlex.split(command)]
    if words[0] == "pytest":
        return [sys.executable, "-m", "pytest", "-q", "-x", *words[1:]]
    if words[0] == "idpgan":
        return [sys.executable, "-m", *words]
    return [sys.executable, *words[1:]]


def run(rows: list[dict[str, Any]], seconds: float, jobs: int = 1) -> int:
    """Run each command once; say of which rows it is and how long it took, and return how many failed or were too late.

    Args:
        rows: As of `read`.
        seconds: For all of them.
        jobs: Commands at once, each on one thread.
    """
    commands: dict[str, list[int]] = {}
    for row in rows:
        if row["command"]:
            commands.setdefault(row["command"], []).append(row["row"])
    started, busy, bad, took = time.monotonic(), cpu_seconds(), 0, dict[str, float]()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:

        def shown(command: str) -> tuple[str, float]:
            begun = time.monotonic()
            said = said_of(call(command, Path(folder)), started + seconds - begun)
            return said, time.monotonic() - begun

        for command, (said, lasted) in zip(commands, pool.map(shown, commands), strict=True):
            bad += said != "shown"
            took[command] = lasted
            print(f"{said}, {lasted:.0f} s: rows {', '.join(map(str, commands[command]))}: {command}", flush=True)
    slowest = sorted(took, key=lambda command: -took[command])[:SLOWEST]
    print(
        f"{len(commands) - bad} of {len(commands)} commands in {time.monotonic() - started:.0f} s by the clock, "
        f"{cpu_seconds() - busy:.0f} s of processors; the slowest:"
    )
    for command in slowest:
        print(f"{took[command]:5.0f} s  {command}")
    return bad


def cpu_seconds() -> float:
    """Return the processor seconds of all commands that have ended: what the clock says of an idle machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def said_of(arguments: list[str], left: float) -> str:
    """Run one command in the seconds that are left; return whether it showed its thing, and why not."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    kept: Any = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True, "check": False}
    if left <= 0:
        return "NOT REACHED in time"
    try:
        done = subprocess.run(arguments, timeout=left, **kept)
    except subprocess.TimeoutExpired:
        return "NOT FINISHED in time"
    return "shown" if done.returncode == 0 else f"FAILED ({done.returncode}) {done.stderr[-500:]}{done.stdout[-500:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("table", "run"))
    parser.add_argument("--paper", choices=PAPERS)
    parser.add_argument("--seconds", type=float, default=900.0, help="of all commands together")
    parser.add_argument("--jobs", type=int, default=2, help="commands at once, each on one thread")
    arguments = parser.parse_args()
    rows = read()
    if arguments.do == "table":
        PAGE.write_text(page(rows), encoding="utf-8")
        PAPERS_PAGE.write_text(papers_page(rows, PAPERS_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    asked = [row for row in tests() + rows if arguments.paper in (None, row["paper"])]
    return min(run(asked, arguments.seconds, arguments.jobs), 1)


if __name__ == "__main__":
    raise SystemExit(main())
