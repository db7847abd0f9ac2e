"""What two commits do differently: records both, small and with everything fixed that is random, and compares.

    python tools/net.py BASE [HEAD] [--cache DIR] [--only PATTERN] [--skip PATTERN] [--jobs N]

HEAD defaults to the current commit; ``.`` is the working tree with uncommitted changes. A recording maps names
to values and digests: tensors, pixels, config.json, privacy.json, ledgers, prices, ``--json`` outputs, refusals,
parameters of commands. tools/recording/ defines the recorded cases. With ``--cache`` a folder keeps the recording of a
commit under the hash of the commit and the hash of these tools, and it is not recorded again. Exit code 1 means
differences.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from worktrees import FIXED, ROOT, checkout, commit_of, environment

RECORDING = Path(__file__).parent / "recording"
SHOWN = 200  # most characters shown of a value
MISSING = "(absent)"
Recording = Mapping[str, Mapping[str, Any]]  # names and values, by case


def record(name: str, recorder: Path, cache: Path, only: str, jobs: int) -> Recording:
    """Return the entries of a commit's cases that match a pattern, after recording those that the cache lacks."""
    commit = None if name == "." else commit_of(name)
    kept = cache / f"{commit or 'tree'}-{tools_digest(recorder)}.json"
    if commit is None:
        kept.unlink(missing_ok=True)  # uncommitted files can change without a new hash
    began, before = time.monotonic(), read(kept)
    with nullcontext(ROOT) if commit is None else checkout(commit) as tree:
        run_recorder(recorder, tree, kept, only, jobs)
    found = read(kept)
    seconds = {case: row["seconds"] for case, row in found.items() if case not in before}
    longest = sorted(seconds, key=lambda case: -seconds[case])[:3]
    print(
        f"{name}: recorded {len(seconds)} cases in {time.monotonic() - began:.0f} s, {sum(seconds.values()):.0f} s of "
        f"a processor; longest: {', '.join(f'{case} {seconds[case]:.0f} s' for case in longest)}",
        file=sys.stderr,
    )
    return {case: row["entries"] for case, row in found.items() if re.search(only, case) or case == "modules"}


def made(folder: Path) -> Path:
    """Make a folder and return its absolute path."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def read(kept: Path) -> dict[str, Any]:
    """Return the cached entries and seconds of each case of a commit."""
    return dict(json.loads(kept.read_text(encoding="utf-8"))) if kept.is_file() else {}


def run_recorder(recorder: Path, tree: Path, kept: Path, only: str, jobs: int) -> None:
    """Record a tree in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="idpgan-net-") as scratch:
        command = [sys.executable, str(recorder / "runner.py"), str(tree), scratch, str(kept), str(jobs), only]
        with subprocess.Popen(command, cwd=scratch, env=environment(tree), start_new_session=True) as recording:
            try:
                code = recording.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(recording.pid, signal.SIGKILL)  # after an interrupt its cases still run
        if code:
            sys.exit(f"net: the recording of {tree} failed.")


def tools_digest(recorder: Path) -> str:
    """Return a hash of all files that determine the recording."""
    texts = [path.read_bytes() for path in sorted(recorder.glob("*.py"))]
    texts += [repr((FIXED, sys.version)).encode()]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


class Difference(NamedTuple):
    """A name under which two recordings hold different values, and its case."""

    case: str
    name: str
    before: Any
    after: Any


def differences(base: Recording, head: Recording, skip: str) -> Iterator[Difference]:
    """Yield the differences whose names do not match ``skip``."""
    for case in sorted({*base, *head}):
        ours, theirs = base.get(case, {}), head.get(case, {})
        for name in sorted({*ours, *theirs}):
            before, after = ours.get(name, MISSING), theirs.get(name, MISSING)
            if before != after and not (skip and re.search(skip, name)):
                yield Difference(case, name, before, after)


def show(name: str, before: Any, after: Any) -> str:
    """Describe how a value changed; for a text of several lines, which lines."""
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
    parser.add_argument("--only", default="", metavar="PATTERN", help="only the cases whose names match")
    parser.add_argument("--skip", default="", metavar="PATTERN", help="leave out differences whose names match")
    parser.add_argument("--jobs", type=int, default=2, help="cases that run at a time; default: 2")
    parser.add_argument("--most", type=int, default=5, help="differences that are shown of a case; default: 5")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("net: stopped."))  # so that the worktree is removed
    with tempfile.TemporaryDirectory(prefix="idpgan-recorder-") as place:
        recorder = Path(shutil.copytree(RECORDING, Path(place) / "recording"))  # a copy for both, unaffected by edits
        base, head = (
            record(name, recorder, made(given.cache or Path(place) / side), given.only, given.jobs)
            for side, name in (("base", given.base), ("head", given.head))
        )
    if not {*base, *head} - {"modules"}:
        sys.exit(f"net: no case matches {given.only!r}.")
    found = list(differences(base, head, given.skip))
    for case, group in itertools.groupby(found, key=lambda difference: difference.case):
        several = list(group)
        for _, name, before, after in several[: given.most]:
            print(show(name, before, after))
        if len(several) > given.most:
            print(f"    ... and {len(several) - given.most} more of {case}")
    print(f"{len(found)} differences among {sum(map(len, head.values())):,} entries of {len(head):,} cases.")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
