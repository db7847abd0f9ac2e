"""Files and folders that are written whole or not at all, their locks and hashes; and files of foreign origin.

Foreign files are read as plain files of a bounded size, and as JSON without tricks. Importing this does not import
torch.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import re
import secrets
import shlex
import shutil
import stat
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from idpgan.errors import InputError

_LOG = logging.getLogger(__name__)
CONFIG = "config.json"  # of a release: what is given away, and the settings that made it
WEIGHTS = "generator.safetensors"
MOST_TEXT_BYTES = 1 << 24  # of a JSON file or a card
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600  # permissions of everything outside release/: for the curator only
PART = re.compile(r"\.(.+)\.[0-9a-f]{16}\.(?:part|old)")  # the hidden name of what is incomplete, or replaced now
_BEGUN = ".begun"  # in an incomplete folder that may be gone on with: what it was asked for
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # of a folder: CIFS, gocryptfs, sshfs, VirtualBox
_UNFLUSHED: set[int] = set()  # disks that were named in the log
LEFTOVERS = frozenset((  # what desktops, file systems, network storage and archives leave behind, in lower case
    ".ds_store", ".directory", ".cache", ".ipynb_checkpoints", "thumbs.db", "desktop.ini", "@eadir", "#recycle",
    "#snapshot", "@recycle", "$recycle.bin", "recycler", "system volume information", "lost+found", "__macosx",
))  # fmt: skip
_OF_GIT = frozenset((".git", ".gitattributes", ".gitignore", ".gitkeep", ".gitmodules", ".github"))
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # reverse the rest of a line


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name a file in the errors of the system that name none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def write_bytes_atomic(path: str | os.PathLike[str], content: bytes, *, mode: int = 0o666) -> None:
    """Write a file whole or not at all, durably.

    The bytes go to a hidden file in the same folder, are flushed to the disk, and replace the old file in one step;
    then the folder itself is flushed. After an exception or a power cut the old content is there.

    ``mode`` are the permissions before the umask; 0o600 for a secret.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with naming(target):
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            move_durably(part, target)
    finally:
        part.unlink(missing_ok=True)  # gone already if it was moved


def write_text_atomic(path: str | os.PathLike[str], text: str, *, mode: int = 0o666) -> None:
    """Write UTF-8 text whole or not at all, durably, with line ends as they are; see `write_bytes_atomic`."""
    write_bytes_atomic(path, text.encode("utf-8"), mode=mode)


def pasted(path: str | os.PathLike[str]) -> str:
    """Return a path as a shell takes it: for commands in messages, which a user copies."""
    return shlex.quote(os.fspath(path))


def json_text(value: Any) -> str:
    """Return a JSON value as it is written into files."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def write_private_json(path: Path, value: Any) -> None:
    """Write a JSON value that is the curator's alone, whole or not at all."""
    write_text_atomic(path, json_text(value), mode=PRIVATE_FILE)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file, durably."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, PRIVATE_FILE)
    with naming(path), open(descriptor, "a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def move_durably(source: Path, target: Path) -> None:
    """Rename a whole file, replacing an older one; durable when it returns."""
    os.replace(source, target)
    flush_folder(target.parent)


def flush_folder(folder: Path) -> None:
    """Make a rename durable; Windows neither needs nor allows it, and disks that cannot are named once in the log."""
    if os.name == "nt":
        return
    with naming(folder):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_FSYNC:
                raise
            disk = os.fstat(descriptor).st_dev
            if disk not in _UNFLUSHED:
                _UNFLUSHED.add(disk)
                _LOG.warning(
                    "The disk of %s cannot flush folders (%s): a power cut may undo what was written last.",
                    folder,
                    error.strerror,
                )
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """Give a hidden folder to fill, and put it in place of ``target`` when the block ends without an exception.

    Until then ``target`` is as it was. A kill between the two renames of a replacement leaves it absent, but never
    half. A kill also leaves the hidden folder, ``.NAME.<hex>.part`` or ``.old``, beside it (`remove_dead`).

    Raises:
        InputError: If a file or link lies at ``target``, or at the end another folder than at the beginning.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(f"{target} is a link or a file, not a folder. Move it away.")
    with contextlib.ExitStack() as held:
        if target.exists():  # one at a time replaces it, and what is put aside is known to be somebody's
            with contextlib.suppress(InputError, OSError, ImportError):
                held.enter_context(file_lock(target, folder=True))
        before = _identity(target)
        part = held.enter_context(locked_folder(lambda: _make_part_folder(target)))
        held.enter_context(naming(target))
        yield part
        other = f"{target} was written by another process meanwhile, and stays. Choose another name."
        if _identity(target) != before:
            raise InputError(other)
        old = part.with_suffix(".old")
        try:
            try:
                if before is not None:
                    target.rename(old)
                part.rename(target)
            except OSError as error:
                if _identity(target) == (None if old.exists() else before):  # nobody came in between
                    raise
                raise InputError(other) from error
            finally:  # after any failure, also a signal: the old folder goes back if there is no new one
                if before is not None and not target.exists() and old.exists():
                    old.rename(target)
            flush_folder(target.parent)
        finally:
            if target.exists():
                shutil.rmtree(old, ignore_errors=True)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return by what the system knows a folder, whatever its name; None if there is none."""
    status = folder.stat() if folder.exists() else None
    return None if status is None else (status.st_dev, status.st_ino)


@contextlib.contextmanager
def new_folder(target: Path, asked: str = "") -> Iterator[Path]:
    """Give a hidden folder to fill, and move it to ``target`` when the block ends without an exception.

    As `whole_folder`, but nothing is ever replaced: ``target`` must be absent or empty then as well. The hidden folders
    that kills have left beside it, of whatever name, are removed first: they may hold private images.

    Args:
        asked: What makes the content, where a call that was stopped can be gone on with: the folder that it left is
            given again as it lies, if it was to be ``target`` and was asked for the very same; "" = it never is.

    Raises:
        InputError: If something lies at ``target``, before or after the block.
    """
    refuse_filled(target)
    with (
        locked_folder(lambda: _left(target, asked) or _make_part_folder(target), kept=bool(asked)) as part,
        naming(target),
    ):
        remove_dead(target.parent)
        if asked:
            write_text_atomic(part / _BEGUN, asked)
        yield part
        for rest in (part / _BEGUN, *_hidden(part, None)) if asked else ():
            rest.unlink(missing_ok=True)
        try:
            part.rename(target)  # replaces an empty folder, and nothing else
        except OSError:
            refuse_filled(target)  # another process was faster
            raise
        flush_folder(target.parent)


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[None]:
    """Claim the name of a new file, which the block writes; after an exception nothing lies there.

    Raises:
        InputError: If something lies there, or the folder around it does not exist.
    """
    refuse_existing(path)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        refuse_existing(path)  # another process was faster
        raise
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def parts_of(path: Path) -> list[Path]:
    """Return the hidden files of writes of a file that did not end: dead ones for whoever holds the file's lock."""
    return [each for each in _hidden(path.parent, path.name) if not each.is_dir()]


def remove_dead(folder: Path, name: str | None = None) -> None:
    """Remove the hidden folders that kills have left in a folder, which nobody has locked.

    Args:
        name: Of what they were to be, or had been: then what was put aside goes too, or goes back where a kill came
            before there was a new one; None = all that are incomplete.
    """
    for left in _hidden(folder, name):
        if left.is_dir() and not left.is_symlink() and (name or left.suffix == ".part"):
            none = contextlib.suppress(InputError, OSError, ImportError)  # in use, another user's, or no locks here
            with none, file_lock(left, busy="it is in use", folder=True):
                if name and left.suffix == ".old" and not os.path.lexists(folder / name):
                    left.rename(folder / name)
                else:
                    shutil.rmtree(left)


def _hidden(folder: Path, name: str | None) -> list[Path]:
    """List what is incomplete or put aside in a folder, of this very name or all."""
    found = [(PART.fullmatch(path.name), path) for path in folder.iterdir()] if folder.is_dir() else []
    return [path for match, path in found if match and name in (None, match[1])]


def _left(target: Path, asked: str) -> Path | None:
    """Return the user's own folder that a stopped call for the same left incomplete, if nobody uses it."""
    for left in _hidden(target.parent, target.name) if asked else ():
        with contextlib.suppress(InputError, OSError, ImportError), file_lock(left, busy="it is in use", folder=True):
            own = not left.is_symlink() and left.stat().st_uid == os.geteuid()
            if own and left.suffix == ".part" and read_plain(left / _BEGUN, MOST_TEXT_BYTES) == asked.encode():
                return left
    return None


def _make_part_folder(target: Path) -> Path:
    """Make and return a new hidden folder beside a target."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    part.mkdir()
    return part


@contextlib.contextmanager
def locked_folder(make: Callable[[], Path], lock: str = "", *, kept: bool = False) -> Iterator[Path]:
    """Give a new folder that is locked as long as its process lives; what is left of it goes at the end.

    Args:
        make: Makes a folder; called again if another process took the folder for dead before it was locked.
        lock: Name of the file inside that is locked; "" = the folder itself.
        kept: Whether it stays after a signal, as after a kill.
    """
    owner = os.getpid()
    with contextlib.ExitStack() as held:
        while True:
            folder = make()
            # Without locks on this system or disk, those who remove dead folders get no lock either, and remove none.
            with contextlib.suppress(InputError, OSError, ImportError):
                held.enter_context(file_lock(folder / lock, folder=not lock))
            if folder.exists():
                break
        try:
            yield folder
        except BaseException as error:
            kept = kept and not isinstance(error, Exception)
            raise
        else:
            kept = False
        finally:
            if os.getpid() == owner and not kept:  # not a fork that ends
                shutil.rmtree(folder, ignore_errors=True)  # gone already if it was moved


def refuse_existing(target: Path) -> None:
    """Refuse what exists already, and what would lie in a folder that does not exist.

    Raises:
        InputError: Naming it.
    """
    if os.path.lexists(target):
        raise InputError(f"{target} exists already and is not written over. Choose another name or remove it.")
    if not target.absolute().parent.is_dir():
        raise InputError(f"the folder {target.parent} does not exist. Make it first.")


def refuse_filled(target: Path) -> None:
    """Refuse an output folder if something lies there already; an empty folder is accepted.

    Raises:
        InputError: Naming it.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(f"{target} is a link or a file, not a folder. Move it away or choose another name.")
    if target.is_dir() and any(target.iterdir()):
        raise InputError(f"{target} is not empty, and nothing is written over. Move it away or choose another name.")


@contextlib.contextmanager
def file_lock(path: str | os.PathLike[str], *, busy: str | None = None, folder: bool = False) -> Iterator[None]:
    """Hold the exclusive lock of a file (made if it is missing) or of a folder; it ends with the process.

    Args:
        path: Locks of two handles in one process exclude each other too.
        busy: Message of the `InputError` if another holds the lock; None = wait for it.
        folder: Whether it must be a folder, so that no file is created if the folder is gone.

    Raises:
        InputError: If another holds the lock and ``busy`` is given, or the disk has no locks.
        OSError: If the file cannot be opened.
    """
    flags = os.O_RDONLY if folder or os.path.isdir(path) else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags, PRIVATE_FILE)
    try:
        try:
            _lock(descriptor, wait=busy is None)
        except BlockingIOError as error:
            raise InputError(str(busy)) from error
        except OSError as error:
            raise InputError(f"{os.fspath(path)}: {error.strerror}. Name a place on another disk.") from error
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, *, wait: bool) -> None:
    """Lock an open file; raises `BlockingIOError` if another holds it, `OSError` with a sentence where none can."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise OSError(error.errno, f"this disk has no lock ({reason}) to keep two processes from one file") from error


def check_writable(path: str | os.PathLike[str], num_bytes: int = 1 << 20, *, locked: bool = False) -> None:
    """Refuse a place where a file could not be written, before anything is computed for it.

    Only an attempt finds out what a disk refuses, so a nameless file is made there, and its folder flushed.

    Args:
        path: A file to be written, in a folder that exists; or a folder to be made, with or without its parents.
        num_bytes: Space that is needed on the disk.
        locked: Whether the file is to be locked too.

    Raises:
        InputError: If less is free.
        OSError: As the system says, if a file cannot be made there.
    """
    folder = Path(path).absolute().parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            if locked:
                _lock(file.fileno(), wait=False)
        flush_folder(folder)
    except OSError as error:  # name the path that was asked for, not the one that was tried
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from error
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise InputError(
            f"{os.fspath(path)} needs {num_bytes / 1e6:,.2f} MB, and {free / 1e6:,.2f} MB are free on that disk. "
            "Make room there, or write to another disk."
        )


def left_behind(name: str) -> bool:
    """Whether systems and Git leave files or folders of a name beside those of users."""
    return name.lower() in LEFTOVERS or name in _OF_GIT or name.startswith("._")


def sha256_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 (hex) of a file's content; raises `InputError` if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{os.fspath(path)} cannot be read ({error.strerror or error}). Check the path.") from error


def read_plain(path: Path, most_bytes: int, *, follow: bool = False) -> bytes:
    """Return the content of a plain file.

    Args:
        most_bytes: A larger file is refused before it is read.
        follow: Whether to follow a symbolic link to a plain file, such as those of download caches.

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
            # Reading allocates as much memory as is asked for.
            return file.read(min(most_bytes, status.st_size) + 1)[:most_bytes]
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}).") from error


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text (UTF-8) that every reader reads alike.

    Raises:
        ValueError: If the text is not JSON, is nested too deeply, holds NaN or infinity, a number too large for a
            float, or one key twice in a table.
    """
    try:
        return json.loads(
            content.decode("utf-8"), object_pairs_hook=_table, parse_constant=_finite, parse_float=_finite
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key stands twice in one table")
    return table


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        reason = "is too large for a number" if text[-1].isdigit() else "is not a JSON number"
        raise ValueError(f"{text[:40]} {reason}")
    return number


def printable(text: str) -> bool:
    """Whether a text is one line that shows all it holds: no control character, line break or reversed text."""
    return not any(unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") or sign in _BIDI for sign in text)
