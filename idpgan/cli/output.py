"""What commands share: arguments, options, JSON, and the processes of `torchrun`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from idpgan.ranks import ALONE, Ranks, launched

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Device = Annotated[
    str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:1; mps draws samples only (no float64).")
]
Quiet = Annotated[bool, typer.Option("--no-progress", help="Show no progress.")]


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
def processes() -> Iterator[Ranks]:
    """Meet the other processes of `torchrun`; without it there is one, and PyTorch is not imported."""
    if launched()[1] == 1:
        yield ALONE
        return
    from idpgan.training.distributed import joined

    with joined() as ranks:
        yield ranks
