"""Small runs of every method, in processes of their own that may be frozen, killed or starved of disk."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from idpgan import trainer
from idpgan.errors import InputError
from tests.small_runs import config_of


def start_or_resume(name: str, out: Path) -> None:
    """Begin the run, or continue it where there is one: what a user does after a crash."""
    if (out / "config.toml").is_file():
        trainer.resume(out)
    else:
        trainer.start(config_of(name), out)


# Disturbances --------------------------------------------------------------------------------------------------------

_WRITES = ("replace", "rename", "fsync", "mkdir", "unlink")  # of `os`: everything that changes a folder durably


class Freezer:
    """Does something at the n-th call that changes the disk.

    Args:
        number: Of the call, from 1; 0 only counts.
        act: What happens there, before the call.
        within: Calls on paths outside of this folder do not count; `fsync` has no path and always counts.
    """

    def __init__(self, number: int, act: Callable[[], None], within: Path) -> None:
        self.calls, self.number, self.act, self.within = 0, number, act, str(within)
        for name in _WRITES:
            setattr(os, name, self._watched(getattr(os, name)))
        self._open, os.open = os.open, self._opened  # type: ignore[assignment]

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            if isinstance(arguments[0], int) or str(arguments[0]).startswith(self.within):
                self._count()
            return call(*arguments, **options)

        return watched

    def _opened(self, path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT and str(path).startswith(self.within):
            self._count()
        return self._open(path, flags, *arguments, **options)

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.number:
            self.act()


def die() -> None:
    """End the process as SIGKILL does: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def fill_the_disk() -> None:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def press_ctrl_c() -> None:
    """Interrupt as a second Ctrl-C does, which nothing holds back."""
    raise KeyboardInterrupt


def child(name: str, out: Path, number: int, act: Callable[[], None] | None, report: Path | None = None) -> None:
    """Run in a process of its own; writes what happened to `report`."""
    freezer = Freezer(number, act, out.parent) if act else None
    started, problem = time.monotonic(), None
    try:
        start_or_resume(name, out)
    except InputError as error:
        problem = str(error)
    except OSError as error:
        problem = f"OSError {error.errno}"
    except KeyboardInterrupt:
        problem = "interrupted"
    if report is not None:
        calls = freezer.calls if freezer else 0
        report.write_text(json.dumps({"problem": problem, "calls": calls, "seconds": time.monotonic() - started}))
    sys.stdout.flush()
    os._exit(0)
