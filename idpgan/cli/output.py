"""What commands share: options, JSON, progress."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Protocol

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Quiet = Annotated[bool, typer.Option("--no-progress", help="Show no progress.")]


class CountProgress(Protocol):
    """Told how many of how many are done."""

    def __call__(self, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` are done."""


def print_json(value: Any) -> None:
    """Print one JSON value on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as an exception, exit code 143, so that what is half-written is removed."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # Python allows no handlers there
        yield
        return
    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)


@contextmanager
def count_progress(what: str, off: bool) -> Iterator[CountProgress | None]:
    """Show a bar on stderr while things are counted; None where it is turned off or nobody watches."""
    if off or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
