"""Records one tree: `python runner.py TREE SCRATCH KEPT.json JOBS PATTERN`, with TREE first on the Python path.

KEPT.json maps the name of every recorded case to its entries and its processor seconds; missing cases that match the
pattern are added.

All modules of the package are imported once; every case then runs in its own fork, with fresh caches. The sources of
difference between two runs of the same code are fixed before the import: random bits of the operating system, the date,
and threads and hashes (`worktrees.FIXED`).
"""

from __future__ import annotations

import datetime
import hashlib
import importlib
import json
import os
import pkgutil
import re
import resource
import secrets
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NamedTuple

PROCESSOR_SECONDS, SECONDS = 120, 1200  # a slower case is killed, and recorded as killed
NOW = datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


class FixedDatetime(datetime.datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        """Return always the same moment."""
        return NOW.astimezone(tz) if tz else NOW.replace(tzinfo=None)


def constant_bytes(size: int | None = None) -> bytes:
    """Replace `secrets.token_bytes`, so that every key is the same."""
    return hashlib.shake_256(b"idpgan net").digest(32 if size is None else size)


def constant_bits(bits: int) -> int:
    """Replace `secrets.randbits`."""
    return int.from_bytes(constant_bytes((bits + 7) // 8), "big") >> (-bits % 8)


def fix() -> None:
    """Fix date and random bits; call this before the package is imported."""
    datetime.datetime = FixedDatetime  # type: ignore[misc]
    secrets.token_bytes = constant_bytes  # type: ignore[assignment]
    secrets.randbits = constant_bits
    secrets.token_hex = lambda size=32: os.urandom(size).hex()  # names of hidden files, which must not collide


def preload(tree: Path) -> list[str]:
    """Import every module of the package; return those that cannot be imported."""
    import idpgan

    if Path(idpgan.__file__).parents[1] != tree:
        sys.exit(f"{idpgan.__file__} was imported in the place of {tree}.")
    failed = []
    for module in pkgutil.walk_packages(idpgan.__path__, "idpgan."):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            failed.append(f"{module.name}: {error}")
    import torch

    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1)])  # torch's optimizers import its compiler
    return failed


class Running(NamedTuple):
    """A case that runs."""

    name: str
    folder: Path
    began: float


class Pool:
    """Forks cases, a few at a time."""

    def __init__(self, scratch: Path, tree: Path, jobs: int, recorded: dict[str, Any]) -> None:
        self.scratch, self.tree, self.jobs, self.recorded = scratch, tree, jobs, recorded
        self.running: dict[int, Running] = {}

    def add(self, number: int, case: Any) -> None:
        """Start a case as soon as there is room."""
        while len(self.running) >= self.jobs:
            self.wait()
        folder = self.scratch / "cases" / f"{number}"
        child = os.fork()
        if child == 0:
            run_case(case, folder, self.scratch, self.tree)
        self.running[child] = Running(case.name, folder, time.monotonic())

    def wait(self) -> None:
        """Wait a moment for one case to end, and take its entries; kill those that take too long."""
        child, status, used = os.wait4(-1, os.WNOHANG)
        if child == 0:
            for process, case in self.running.items():
                if time.monotonic() - case.began > SECONDS:
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.005)
            return
        case = self.running.pop(child)
        result, entries = case.folder.with_suffix(".json"), {f"{case.name}#ended with": status}
        if result.is_file():
            entries = json.loads(result.read_text(encoding="utf-8"))
        self.recorded[case.name] = {"entries": entries, "seconds": round(used.ru_utime + used.ru_stime, 2)}
        shutil.rmtree(case.folder, ignore_errors=True)


def run_case(case: Any, folder: Path, scratch: Path, tree: Path) -> None:
    """Run a case in this process, write its entries, and end the process."""
    from box import Box

    try:
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
        folder.mkdir(parents=True)
        os.chdir(folder)
        box = Box(case.name, folder, scratch / "data", tree)
        case.act(box)
        entries = box.keep()
        part = folder.with_suffix(".part")
        part.write_text(json.dumps(entries), encoding="utf-8")
        part.rename(folder.with_suffix(".json"))
    except BaseException:  # noqa: BLE001  # a case that fails shall not go on as a second parent
        print(f"recording: {case.name}", file=sys.stderr)
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    """Run the command line."""
    tree, scratch, kept = map(Path, sys.argv[1:4])
    jobs, pattern = int(sys.argv[4]), sys.argv[5]
    fix()
    import cases
    import data

    recorded = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    chosen = [case for case in cases.every_case(tree) if re.search(pattern, case.name) and case.name not in recorded]
    if not chosen:
        return
    os.environ.update(IDPGAN_DATA=f"{scratch}/data", IDPGAN_CACHE=f"{scratch}/cache")
    data.make_all(scratch / "data")
    recorded["modules"] = {"entries": {"modules that cannot be imported": preload(tree)}, "seconds": 0}
    pool = Pool(scratch, tree, jobs, recorded)
    for number, case in enumerate(chosen):
        pool.add(number, case)
    while pool.running:
        pool.wait()
    part = kept.with_suffix(".part")
    part.write_text(json.dumps(recorded), encoding="utf-8")
    part.rename(kept)


if __name__ == "__main__":
    main()
