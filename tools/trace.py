"""How much of the package the three ways of a newcomer execute: train, attack, publish.

    python tools/trace.py [--base COMMIT] [--json]

Trains the default for 20 steps, attacks that run, and publishes six images with ``--method best``, each in a process of
its own, and counts the functions and lambdas of the package that are called. A file counts as executed where one of its
functions is, and as loaded where it is imported. With ``--base`` the same figures of a commit are shown beside them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from PIL import Image
from worktrees import ROOT, checkout, commit_of, environment

FIGURES = ("files", "functions", "calls", "loaded")
WAYS = {
    "train": ["train", "--out", "run", "training.steps=20", "training.tick_steps=10", "--no-progress"],
    "attack": ["attack", "run", "--no-progress"],
    "publish": [
        *("publish", "faces", "--method", "best", "--epsilon", "10", "--unit", "image", "--out", "published"),
        "--no-progress",
    ],
}


class Calls:
    """Counts the calls of the functions of a package."""

    def __init__(self, package: Path) -> None:
        self.start = f"{package}/"
        self.counts: dict[CodeType, int] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call, as `sys.setprofile` wants it."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(self.start):
            self.counts[code] = self.counts.get(code, 0) + 1

    def summary(self) -> dict[str, Any]:
        """Return the executed functions; bodies of classes and comprehensions are not functions."""
        counted: dict[tuple[str, str, int], int] = {}
        for code, count in self.counts.items():
            named = code.co_name == "<lambda>" or not code.co_name.startswith("<")
            if named and code.co_flags & OPTIMIZED:
                name = code.co_filename.removeprefix(self.start), code.co_qualname, code.co_firstlineno
                counted[name] = counted.get(name, 0) + count
        loaded = {code.co_filename for code in self.counts if code.co_name == "<module>"}
        return {
            "files": len({name[0] for name in counted}),
            "functions": len(counted),
            "calls": sum(counted.values()),
            "loaded": len(loaded),
            "executed": sorted(f"{file}:{function}" for file, function, _ in counted),
        }


OPTIMIZED = 1  # CO_OPTIMIZED: a function, and not the body of a class


def inside(package: Path, arguments: Sequence[str], out: Path) -> None:
    """Run one command under the profiler, and write the executed functions."""
    import idpgan

    if Path(idpgan.__file__).parent != package:
        sys.exit(f"trace: {idpgan.__file__} was imported in the place of {package}.")
    for name in [name for name in sys.modules if name.split(".")[0] == "idpgan"]:
        del sys.modules[name]  # so that loading the package is counted too
    calls = Calls(package)
    threading.setprofile(calls)
    sys.setprofile(calls)
    code: Any = 0
    try:
        from idpgan.commands import main as command

        command(arguments)
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.setprofile(None)
    if code:
        sys.exit(f"trace: idpgan {' '.join(arguments)} ended with {code}.")
    out.write_text(json.dumps(calls.summary()), encoding="utf-8")


def trace(tree: Path) -> dict[str, dict[str, Any]]:
    """Run the three commands of a tree."""
    with tempfile.TemporaryDirectory(prefix="idpgan-trace-") as place:
        folder = Path(place)
        draw_faces(folder / "faces")
        found = {}
        for name, arguments in WAYS.items():
            out = folder / f"{name}.json"
            command = [sys.executable, __file__, "--inside", str(tree / "idpgan"), str(out), *arguments]
            done = subprocess.run(command, cwd=folder, env=environment(tree), capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr.strip())
            found[name] = json.loads(out.read_text(encoding="utf-8"))
        return found


def draw_faces(folder: Path) -> None:
    """Write six grey images of 24 x 24."""
    folder.mkdir()
    height, width = np.mgrid[0:24, 0:24] / 23
    for index in range(6):
        pixels = np.hypot(height - 0.5, width - 0.3 - 0.08 * index) < 0.35
        Image.fromarray((40 + 150 * pixels + 50 * height).astype(np.uint8)).save(folder / f"{index}.png")


def show(base: dict[str, dict[str, Any]] | None, head: dict[str, dict[str, Any]]) -> str:
    """Return the figures as a table; with a base, its figure precedes an arrow."""
    rows = [f"{'':9}" + "".join(f"{figure:>24}" for figure in FIGURES)]
    for name in WAYS:
        row = f"{name:9}"
        for figure in FIGURES:
            after = head[name][figure]
            before = base[name][figure] if base else None
            text = f"{after:,}" if before is None else f"{before:,} -> {after:,} ({after / before - 1:+.0%})"
            row += f"{text:>24}"
        rows.append(row)
    return "\n".join(rows)


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["--inside"]:
        package, out, *arguments = sys.argv[2:]
        inside(Path(package), arguments, Path(out))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", metavar="COMMIT", help="show this commit beside the working tree")
    parser.add_argument("--json", action="store_true", help="print JSON, with the name of every executed function")
    given = parser.parse_args()
    base = None
    if given.base:
        with checkout(commit_of(given.base)) as tree:
            base = trace(tree)
    head = trace(ROOT)
    print(json.dumps({"base": base, "head": head}, indent=2) if given.json else show(base, head))


if __name__ == "__main__":
    main()
