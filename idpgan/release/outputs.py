"""Where a command may write its result: never over files of another origin, never into a release or a run's state."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from idpgan.errors import InputError
from idpgan.files import WEIGHTS, parse_json, read_plain
from idpgan.release.statement import PRIVACY

_MOST_BYTES = 1 << 26
_HEAD_BYTES = 1000  # first bytes of a page, which contain its format
_CLOSED = ("state", "release")  # folders of a run that no command writes results to


def check_output(path: Path, form: str, inputs: Sequence[Path] = (), option: str = "--out") -> None:
    """Refuse a place for a result before anything is computed for it.

    Args:
        path: The JSON file to be.
        form: The entry "format" of the command's own results: one of them is replaced, nothing else is.
        inputs: What the command reads.
        option: What the user wrote, for the message.

    Raises:
        InputError: If the folder is missing or belongs to a release or a run's state, or the file is an input, or
            anything but an earlier result of the same command.
    """
    where = f"{option} {path}"
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist. Make it first.")
    real = path.parent.resolve() / path.name
    for source in (item.resolve() for item in inputs):
        if real == source:
            raise InputError(f"{where} is what is to be read. Choose another name.")
    refuse_closed(path, where)
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    document: Any = None
    if stat.S_ISREG(status.st_mode):
        with contextlib.suppress(ValueError):  # InputErrors too
            document = parse_json(read_plain(path, _MOST_BYTES))
    if not isinstance(document, dict) or document.get("format") != form:
        raise InputError(
            f"{where} exists and is not an earlier result of this command. Choose another name or move it."
        )


def check_page(path: Path, form: str) -> None:
    """Refuse a place for a page of the curator, of which only an earlier one of the same format is overwritten.

    Raises:
        InputError: If it is in a release or a run's state, or anything but such a page lies there.
    """
    refuse_closed(path, f"the report {path}")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path} is not a plain file. Move it away.")
    if path.exists() and f'content="{form}"'.encode() not in path.read_bytes()[:_HEAD_BYTES]:
        raise InputError(f"{path} exists and is not a report of this version of idpgan. Move it away.")


def refuse_closed(path: Path, where: str) -> None:
    """Refuse a file or folder in a release, or in a folder that only training writes; ``where`` begins the message."""
    real = path.parent.resolve() / path.name
    for folder in (real, *real.parents):
        if folder != real and ((folder / WEIGHTS).exists() or (folder / PRIVACY).exists()):
            raise InputError(f"{where} is in a release, and what its epsilon does not cover must not be given away.")
        if folder.name in _CLOSED and (folder.parent / "config.toml").exists():
            raise InputError(f"{where} is in the folder {folder.name}/ of a run, which only training writes.")
