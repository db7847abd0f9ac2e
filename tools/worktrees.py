"""Several commits of this repository at once: temporary git worktrees, and the environment in which they run."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIXED = {  # what would make two runs of the same code differ
    "ATEN_CPU_CAPABILITY": "avx2",
    "CUDA_VISIBLE_DEVICES": "",
    "COLUMNS": "100",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TERM": "dumb",
    "TZ": "UTC",
}


def git(*arguments: str) -> str:
    """Run git in this repository, and return its output.

    Raises:
        SystemExit: With git's message if it fails.
    """
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip())
    return done.stdout.strip()


def commit_of(name: str) -> str:
    """Return the hash of a commit."""
    return git("rev-parse", "--verify", f"{name}^{{commit}}")


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="idpgan-tree-") as place:
        tree = Path(place) / "tree"
        git("worktree", "add", "--detach", "--quiet", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def environment(tree: Path) -> dict[str, str]:
    """Return the variables under which the package of a tree runs: the same in every call."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR", "LANG")}
    return {**kept, **FIXED, "PYTHONPATH": str(tree)}
