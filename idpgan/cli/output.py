"""What commands share: arguments, options, JSON, and the processes of `torchrun`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from idpgan.errors import InputError
from idpgan.ranks import ALONE, Ranks, launched

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Device = Annotated[
    str, typer.Option(help="Where to compute: auto, cpu, cuda or cuda:1; mps draws samples only (no float64).")
]
FolderAndOptions = Annotated[list[str], typer.Argument(metavar="DIR [option=value ...]", show_default=False)]
FolderLedgerFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Ledger of DIR; default: DIR.ledger.json beside it.")
]
Quiet = Annotated[bool, typer.Option("--no-progress", help="Show no progress.")]


def split_folder(arguments: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Return the folder and the options of `FolderAndOptions`.

    Raises:
        InputError: If there is not one folder, or an option is not key=value.
    """
    from idpgan.config import apply_overrides

    folders = [text for text in arguments if "=" not in text or Path(text).is_dir()]
    if len(folders) != 1:
        raise InputError(
            f"name one folder of images, got {', '.join(folders) or 'none'}. An option is written key=value."
        )
    return Path(folders[0]), apply_overrides({}, [text for text in arguments if text not in folders])


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
