"""What two commits do differently: records both, small and with everything fixed that is random, and compares.

    python tools/net.py BASE [HEAD] [--cache DIR] [--only PATTERN] [--skip PATTERN] [--jobs N]

HEAD is the current commit unless another is named; ``.`` is the working tree as it lies there. A recording maps names
to values and digests: tensors, pixels, config.json, privacy.json, ledgers, prices, ``--json`` outputs, refusals,
parameters of commands. What is recorded stands in tools/recording/. With ``--cache`` the recording of a commit is kept
in a folder, under the hash of the commit and that of these tools, and not made again. Exit code 1: there are
differences.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from worktrees import FIXED, ROOT, checkout, commit_of, environment

RECORDING = Path(__file__).parent / "recording"
SHOWN = 200  # characters of a value
MISSING = "(absent)"


def record(name: str, recorder: Path, cache: Path | None, only: str, jobs: int) -> dict[str, Any]:
    """Return the entries of a commit, from the cache where they are there."""
    commit = None if name == "." else commit_of(name)
    kept = cache / f"{commit}-{tools_digest(recorder, only)}.json" if cache and commit else None
    if kept is not None and kept.is_file():
        return dict(json.loads(kept.read_text(encoding="utf-8"))["entries"])
    with nullcontext(ROOT) if commit is None else checkout(commit) as tree:
        found = run_recorder(recorder, tree, only, jobs)
    took = found["took"]
    longest = sorted(took["cases"].items(), key=lambda pair: -pair[1])[:3]
    print(
        f"{name}: {len(found['entries']):,} entries of {len(took['cases'])} cases in {took['seconds']:.0f} s, "
        f"{sum(took['cases'].values()):.0f} s of them on a processor; longest: "
        + ", ".join(f"{case} {seconds:.0f} s" for case, seconds in longest),
        file=sys.stderr,
    )
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found), encoding="utf-8")
    return dict(found["entries"])


def run_recorder(recorder: Path, tree: Path, only: str, jobs: int) -> dict[str, Any]:
    """Record a tree in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="idpgan-net-") as place:
        out = Path(place) / "recording.json"
        scratch = Path(place) / "scratch"
        scratch.mkdir()
        command = [sys.executable, str(recorder / "runner.py"), str(tree), str(scratch), str(out), str(jobs), only]
        with subprocess.Popen(command, cwd=scratch, env=environment(tree), start_new_session=True) as recording:
            try:
                recording.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(recording.pid, signal.SIGKILL)  # where this was interrupted, its cases still run
        if not out.is_file():
            sys.exit(f"net: the recording of {tree} failed.")
        return dict(json.loads(out.read_text(encoding="utf-8")))


def tools_digest(recorder: Path, only: str) -> str:
    """Return a hash of everything that decides what is recorded."""
    texts = [path.read_bytes() for path in sorted(recorder.glob("*.py"))]
    texts += [repr((FIXED, only, sys.version)).encode()]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


def differences(base: Mapping[str, Any], head: Mapping[str, Any], skip: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the names whose values differ, and both values."""
    for name in sorted({*base, *head}):
        before, after = base.get(name, MISSING), head.get(name, MISSING)
        if before != after and not (skip and re.search(skip, name)):
            yield name, before, after


def show(name: str, before: Any, after: Any) -> str:
    """Say how a value changed; of a text of several lines, which lines."""
    if isinstance(before, list) and isinstance(after, list):
        before, after = ("\n".join(map(str, value)) for value in (before, after))
    if isinstance(before, str) and isinstance(after, str) and "\n" in before + after:
        lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm=""))[2:]
        return "\n".join([name, *(f"    {line[:SHOWN]}" for line in lines if not line.startswith("@@"))])
    return f"{name}\n    - {str(before)[:SHOWN]}\n    + {str(after)[:SHOWN]}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("head", nargs="?", default="HEAD", help="the commit that is compared; . is the working tree")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where recordings of commits are kept")
    parser.add_argument("--only", default="", metavar="PATTERN", help="record the cases whose names match")
    parser.add_argument("--skip", default="", metavar="PATTERN", help="leave out differences whose names match")
    parser.add_argument("--jobs", type=int, default=2, help="cases that run at a time; default: 2")
    parser.add_argument("--most", type=int, default=100, help="differences that are shown; default: 100")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("net: stopped."))  # so that the worktree is removed
    with tempfile.TemporaryDirectory(prefix="idpgan-recorder-") as place:
        recorder = Path(shutil.copytree(RECORDING, Path(place) / "recording"))  # the same for both, whatever is edited
        base, head = (record(name, recorder, given.cache, given.only, given.jobs) for name in (given.base, given.head))
    found = list(differences(base, head, given.skip))
    for name, before, after in found[: given.most]:
        print(show(name, before, after))
    if len(found) > given.most:
        print(f"... and {len(found) - given.most} more")
    print(f"{len(found)} differences among {len({*base, *head}):,} entries.")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
