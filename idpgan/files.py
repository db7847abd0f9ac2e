"""Folders written whole, and files that somebody else made: plain, of a bounded size, and JSON without tricks."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from idpgan.errors import InputError
from idpgan.run import flush_folder

_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # turn the rest of a line around


def read_plain(path: Path, most_bytes: int, *, follow: bool = False) -> bytes:
    """Return the content of a plain file.

    Args:
        path: The file.
        most_bytes: A larger file is refused before it is read.
        follow: Whether a symbolic link to a plain file is good enough, as in the caches that link to their files.

    Raises:
        InputError: If it is missing, too large, a link, a folder, a pipe or a device; a pipe does not hang.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if not follow and path.is_symlink():
            raise InputError(f"{path} is a symbolic link, not a plain file. Copy the file itself.")
        descriptor = os.open(path, flags | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{path} is not a plain file. Only plain files are read.")
            if status.st_size > most_bytes:
                raise InputError(f"{path} has {status.st_size:,} bytes, but at most {most_bytes:,} are expected.")
            return file.read(most_bytes + 1)[:most_bytes]
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from error


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text (UTF-8) that every reader reads alike.

    Raises:
        ValueError: If it is no JSON, nested too deeply, holds NaN or infinity, a number too large for a float, or one
            key twice in a table.
    """
    try:
        return json.loads(
            content.decode("utf-8"), object_pairs_hook=_table, parse_constant=_no_number, parse_float=_finite
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key stands twice in one table")
    return table


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if abs(number) == float("inf"):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def printable(text: str) -> bool:
    """Whether a text is one line that shows what it holds: no control character, line break or turned-around text."""
    return not any(unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") or sign in _BIDI for sign in text)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a hidden folder to fill, and put it in place of ``target`` when the block ends without an exception.

    Until then ``target`` is as it was. Where it is replaced, a kill between the two renames leaves it absent, but never
    half. A kill also leaves the hidden folder, ``.NAME.<hex>.part`` or ``.old``, beside it.

    Raises:
        InputError: If a file or a link lies there.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(f"{target} is a link or a file, not a folder. Move it away.")
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    part.mkdir()
    try:
        yield part
        old = part.with_suffix(".old")
        try:
            if target.exists():
                target.rename(old)
            part.rename(target)
        finally:  # whatever failed, a signal too: the old folder goes back where no new one stands
            if not target.exists() and old.exists():
                old.rename(target)
        flush_folder(target.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # gone already if it was moved
        if target.exists():
            shutil.rmtree(part.with_suffix(".old"), ignore_errors=True)
