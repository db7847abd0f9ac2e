"""Plant the mistakes of `mutations.toml` one after the other, and see which of them the tests catch.

    python tools/mutate.py [--only PATTERN] [--tree DIR] [--out FILE.json]

Each mutation replaces one text in the worktree DIR (here by default) by another, runs the test files that are named
beside it until the first failure, and puts the text back. One line says what came of it: *caught*, *hung*, *survived*
the named tests, *broken* (no test ran), or *does not apply*. A text that was moved is looked for in all of ``idpgan/``.
In the end all tests that caught something run without a mutation: what fails then too has caught nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("mutations.toml")
LIMIT = 1800  # seconds for one mutation
VERDICTS = {0: "survived", 1: "caught", None: "hung"}


def pytest(tree: Path, *args: str, limit: float | None = None) -> tuple[int | None, list[str]]:
    """Run tests of a worktree; return the exit status, None after the limit, and which tests failed."""
    env = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = ["nice", "-n", "19", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *args]
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return None, []
    return done.returncode, re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)


def located(tree: Path, mutation: dict[str, Any]) -> Path | None:
    """Return the one file that holds the text once: the named one, or that to which it was moved."""
    named, old = tree / mutation["file"], mutation["old"]
    places = [named] if named.exists() and old in named.read_text() else sorted(tree.glob("idpgan/**/*.py"))
    found = [path for path in places if old in path.read_text()]
    return found[0] if len(found) == 1 and found[0].read_text().count(old) == 1 else None


def planted(tree: Path, mutation: dict[str, Any]) -> dict[str, str]:
    """Plant one mutation, run its tests, put the text back; return the verdict and the test that failed."""
    path, tests = located(tree, mutation), [name for name in mutation["tests"] if (tree / name).exists()]
    if path is None or not tests:
        return {"verdict": "does not apply", "by": "no such text" if path is None else "no such tests"}
    text = path.read_text()
    try:
        path.write_text(text.replace(mutation["old"], mutation["new"]))
        status, failed = pytest(tree, "-x", *tests, limit=LIMIT)
    finally:
        path.write_text(text)
    return {"verdict": VERDICTS.get(status, "broken"), "by": failed[0] if failed else ""}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="a pattern in name, kind or file")
    parser.add_argument("--tree", type=Path, default=LIST.parents[1], help="a worktree without changes")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    tree, rows = asked.tree.resolve(), list[dict[str, Any]]()
    if subprocess.run(["git", "diff", "--quiet", "--", "idpgan"], cwd=tree, check=False).returncode:
        sys.exit(f"{tree} has changes in idpgan/: commit them first, as mutations are written over its files.")
    for mutation in tomllib.loads(LIST.read_text())["mutation"]:
        if not re.search(asked.only, " ".join((mutation["name"], mutation["kind"], mutation["file"]))):
            continue
        start, found = time.monotonic(), planted(tree, mutation)
        rows.append(mutation | found | {"seconds": round(time.monotonic() - start)})
        print(f"{found['verdict']:<14} {mutation['kind']:<11} {mutation['name']}  {found['by']}", flush=True)
    by = sorted({row["by"] for row in rows if row["verdict"] == "caught"})
    always = set(pytest(tree, *by)[1]) if by else set()
    rows = [row | {"verdict": "not judged"} if row["by"] in always else row for row in rows]
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    caught = sum(row["verdict"] in ("caught", "hung") for row in rows)
    print(f"{caught} of {len(rows)} caught", *(f"; fails unmutated too: {name}" for name in sorted(always)))


if __name__ == "__main__":
    main()
