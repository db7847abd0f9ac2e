"""A stream that is kept in a file, with all its released answers beside it, so that it can be continued.

State and answers of a block are on the disk before one of them is shown: after a crash the same values give the same
answers again, and no value is released twice. The state is secret, since it holds the true counts.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idpgan import files
from idpgan.continual.stream import ContinualCounter
from idpgan.errors import InputError
from idpgan.lazy import torch
from idpgan.privacy.event import Event

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "idpgan stream state 1"
ANSWERS = ".answers"  # suffix to the name of the state file
_MOST_STATE_BYTES = 1 << 30
Terms = tuple[float, int | None, bool]  # epsilon, horizon, whole counts: what never changes in a continuation


class Stream:
    """A stream that ends with the process."""

    def __init__(self, counter: ContinualCounter, answers: list[float]) -> None:
        self.counter, self.answers = counter, answers

    def add(self, values: list[float]) -> list[float]:
        """Release the next values."""
        answers: list[float] = self.counter.release(values).tolist() if values else []
        self.answers += answers
        return answers

    def to_tensor(self) -> Tensor:
        """Return all answers, those of earlier calls included."""
        if not self.answers:
            raise InputError("no value was answered, so there is nothing to give away: --out was not written.")
        return torch.tensor(self.answers, dtype=torch.int64 if self.counter.integer else torch.float64)


class StreamFile(Stream):
    """A stream that is kept in a file."""

    def __init__(self, path: Path, terms: Terms) -> None:
        self.path, self.shown = path, answers_of(path)
        if not path.exists():
            if self.shown.exists():
                raise InputError(
                    f"{self.shown} is there without its state {path.name}. Move it away, or restore the state."
                )
            super().__init__(ContinualCounter(*terms), [])
            self._save([])  # the stream exists, and is paid for, before its first value is read
            return
        content = _content(path)
        try:
            counter, last = ContinualCounter.from_state(content["stream"], *terms), [*content["last"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path} is damaged ({error!r}). Restore it from a copy, or start a new stream."
            ) from error
        super().__init__(counter, _read_answers(self.shown, counter.count))
        missing = counter.count - len(self.answers)
        if missing > len(last):
            raise InputError(f"{self.shown} lacks answers that were shown. Restore it from a copy.")
        lost = last[len(last) - missing :]  # a crash came between the two files
        self._append(lost)
        self.answers += lost

    def add(self, values: list[float]) -> list[float]:
        """Release the next values, and make state and answers durable."""
        answers = super().add(values)
        if answers:
            self._save(answers)
            self._append(answers)
        return answers

    def _save(self, last: list[float]) -> None:
        content = {"format": FORMAT, "stream": self.counter.state(), "last": last}
        files.write_text_atomic(self.path, json.dumps(content, allow_nan=False) + "\n", mode=files.PRIVATE_FILE)

    def _append(self, answers: list[float]) -> None:
        """Append answers to those in the file beside the state."""
        if answers:
            with files.naming(self.shown), open(self.shown, "a", encoding="ascii") as file:
                file.write("".join(f"{answer!r}\n" for answer in answers))
                file.flush()
                os.fsync(file.fileno())
            files.flush_folder(self.shown.parent)


@contextlib.contextmanager
def opened(path: Path | None, terms: Terms) -> Iterator[Stream]:
    """Open a stream; nobody else may use its file meanwhile.

    Raises:
        InputError: If the state is foreign, damaged, of another stream or in use.
    """
    if path is None:
        yield Stream(ContinualCounter(*terms), [])
        return
    if path.is_symlink() or path.is_dir():
        raise InputError(f"--state {path} is a link or a folder, not a file. Name a file.")
    files.check_writable(path)
    with files.file_lock(path.parent / f".{path.name}.lock", busy=f"{path} is in use by another process."):
        yield StreamFile(path, terms)


def answers_of(state: Path) -> Path:
    """Return where the released answers of a stream lie."""
    return state.with_name(f"{state.name}{ANSWERS}")


def price_of(state: Path) -> Event:
    """Return what a stream that is kept in a file costs one event.

    Raises:
        InputError: If the file is not the state of a stream, or is damaged.
    """
    content = _content(state)
    try:
        return ContinualCounter(*(content["stream"][name] for name in ("epsilon", "horizon", "integer"))).event
    except (KeyError, TypeError, InputError) as error:
        raise InputError(f"{state} is damaged ({error!r}). Restore it from a copy.") from error


def _content(path: Path) -> dict[str, Any]:
    """Read a state file, whatever its stream is."""
    try:
        content = files.parse_json(files.read_plain(path, _MOST_STATE_BYTES))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}). Restore it from a copy, or start a new stream.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(f"{path} is not a state of `idpgan stream`. Name another file.")
    return content


def _read_answers(path: Path, count: int) -> list[float]:
    """Return the complete answers, at most ``count``; a line that a crash cut off is dropped."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    try:
        answers: list[Any] = [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}). Restore it from a copy.") from error
    if len(answers) > count:
        raise InputError(
            f"{path} holds {len(answers)} answers, the state {count} values: one of them is an older copy."
        )
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return answers
