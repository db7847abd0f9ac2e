"""The one place that reports refusals of the machine in one line: disk full, no permission, no memory, signals."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

from idpgan.files import PART, naming
from idpgan.ranks import refuse_several

BAD = 2  # exit code for bad input and for refusals of the machine
INTERRUPTED, PIPE_CLOSED, TERMINATED = (128 + number for number in (2, 13, 15))  # exit codes of signals, as in shells

_WAYS_OUT = {
    errno.ENOSPC: "Make room there, or write to another disk.",
    errno.EDQUOT: "Make room there, or write to another disk.",
    errno.EROFS: "Write to another place.",
    errno.EACCES: "Change its permissions, or name another place.",
    errno.EPERM: "Change its permissions, or name another place.",
    errno.EMFILE: "Allow more open files (ulimit -n).",
    errno.ENFILE: "Close other programs, or allow more open files.",
    errno.EIO: "The disk or network drive fails: copy the file elsewhere, and check the drive.",
    errno.ENOMEM: "Close other programs, or ask for less: smaller batches, fewer or smaller images.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ELOOP: "A link there leads back to itself: remove it.",
    errno.ENOENT: "Check the name.",
    errno.EISDIR: "Name a file, not a folder.",
    errno.ENOTDIR: "Name a folder, not a file.",
}
_NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")
_NOT_WRITTEN = ("file write failed", "failed writing")  # messages of torch's zip writer


class MachineError(Exception):
    """What the machine refused, as one sentence, with the exit code of the command."""

    def __init__(self, message: str, code: int = BAD) -> None:
        super().__init__(message)
        self.code = code


class Terminated(BaseException):
    """SIGTERM, raised so that every block that cleans up does so."""


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command raise a `MachineError` for what the machine refuses; every other exception stays what it is."""

    @functools.wraps(command)
    def guard(*arguments: Any, **options: Any) -> None:
        if command.__name__ != "train":  # which alone shares work
            refuse_several(command.__name__)
        try:
            command(*arguments, **options)
        except (OSError, MemoryError, RuntimeError, KeyboardInterrupt, Terminated) as error:
            fault = explain(error)
            if fault is None:
                raise
            raise fault from error

    return guard


def explain(error: BaseException) -> MachineError | None:
    """Return what the machine refused as one sentence; None if the error is a defect."""
    if isinstance(error, KeyboardInterrupt):
        return MachineError("stopped by Ctrl-C; what is written is whole.", INTERRUPTED)
    if isinstance(error, Terminated):
        return MachineError("stopped by SIGTERM; what is written is whole.", TERMINATED)
    if isinstance(error, BrokenPipeError):
        return MachineError("whoever read the output has closed it.", PIPE_CLOSED)
    if isinstance(error, OSError):
        names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        folder, last = os.path.split(names[-1]) if names else ("", "")  # of a rename, users know the target
        part = PART.fullmatch(last)
        name = os.path.join(folder, part[1] if part else last)
        reason = error.strerror or str(error) or type(error).__name__
        said = f"{name}: {reason}" if names else f"the system refused a call that names no file: {reason}"
        return MachineError(f"{said}. {_WAYS_OUT.get(error.errno or 0, '')}".rstrip())
    text, first = str(error), f" ({str(error).splitlines()[0][:200]})" if str(error) else ""
    of_torch = isinstance(error, RuntimeError)
    if isinstance(error, MemoryError) or (of_torch and any(phrase in text for phrase in _NO_MEMORY)):
        return MachineError(f"there is not enough memory{first}. {_WAYS_OUT[errno.ENOMEM]}")
    if of_torch and any(phrase in text for phrase in _NOT_WRITTEN):
        return MachineError(f"a file could not be written{first}. {_WAYS_OUT[errno.ENOSPC]}")
    return None


def one_line(text: str) -> str:
    """Return a message as one printable line; names of files may hold line breaks, escapes and half characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.splitlines()))


def say(message: str, code: int) -> int:
    """Print one line on stderr, if anybody still reads it; return the exit code."""
    with contextlib.suppress(OSError, ValueError):
        print(f"idpgan: {one_line(message)}", file=sys.stderr, flush=True)
    return code


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Make SIGTERM an exception in the main thread, so that temporary files go with it; training has its own way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def open_missing_streams() -> None:
    """Let each standard stream that the caller closed (``>&-``) be the null device.

    Its number would otherwise go to the next file that is opened, a ledger say, and whatever is printed into that.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number: the stream's own, where it was closed
            setattr(sys, name, os.fdopen(null, "w" if number else "r", encoding="utf-8"))


def flush_output() -> int:
    """Write what is still held back for stdout; return the exit code, 0 where it went well."""
    try:
        with naming("the output"):
            sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # or Python tries again at exit, with a traceback
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fault = explain(error)
        return say(str(fault), fault.code) if fault else BAD
    return 0
