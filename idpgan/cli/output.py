"""What commands share: options, JSON, progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
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
def kept(result: Mapping[str, Any]) -> Iterator[None]:
    """Print on stdout what took minutes to compute, if the block fails to write it."""
    try:
        yield
    except OSError:
        print_json(result)
        raise


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
