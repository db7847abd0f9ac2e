"""``idpgan stream``: running counts of values that arrive as lines of text, under one epsilon, resumable.

The state file and the answers beside it are on the disk before an answer is shown, block by block: after a crash the
same values give the same answers again, and no value is released twice.

A line without a number ends the stream. This reveals nothing about anybody: the guarantee covers one event, which
changes one number by at most 1 and cannot turn a number into something else.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idpgan.continual.settings import check_name
from idpgan.continual.stream import ContinualCounter
from idpgan.errors import InputError
from idpgan.files import (
    PRIVATE_FILE,
    check_writable,
    file_lock,
    flush_folder,
    naming,
    parse_json,
    read_plain,
    write_text_atomic,
)
from idpgan.jobs.options import StreamOptions
from idpgan.privacy.event import Event
from idpgan.release.outputs import refuse_closed

FORMAT = "idpgan stream state 1"
ANSWERS = ".answers"  # suffix to the name of the state file
_LONGEST_LINE = 400  # characters; a number has far fewer
_MOST_STATE_BYTES = 1 << 30
Emit = Callable[[list[float]], None]


@dataclass(frozen=True)
class Streamed:
    """The result of a call.

    Attributes:
        count: Values of the stream so far, those of earlier calls included.
        new: Values that this call has added.
        repeated: Values that had been answered before and were answered again by the same numbers.
        counter: The stream as it stands.
        answers: All answers of this call, in order.
    """

    count: int
    new: int
    repeated: int
    counter: ContinualCounter
    answers: tuple[float, ...]


def stream(lines: Iterable[str], options: StreamOptions, emit: Emit) -> Streamed:
    """Answer values line by line.

    Args:
        lines: One number each, with its line break; read only as far as they are answered.
        options: The state file is secret, since it holds the true counts; ``NAME.answers`` beside it holds all released
            answers. Without one the stream ends with this call. Values of indices that were answered before are not
            read, and get the stored answers.
        emit: Called with the answers of a block once they are durable.

    Raises:
        InputError: Naming the line, if it holds no number, cannot be counted or does not end (it may be cut off).
            Answers that were emitted before stand; nothing of the block is released. Also for a state that is foreign,
            damaged, of another stream or in use, for a ``first`` that leaves a gap, for an ``out`` that exists, and for
            a ``data`` that no card can show.
    """
    out, block = options.out, options.block
    if out is not None:
        if os.path.lexists(out):
            raise InputError(f"--out {out} exists already, and a release is not written over. Choose another name.")
        refuse_closed(out, f"--out {out}")
        check_writable(out)
        check_name(options.data)
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise InputError(f"--block {block} must be a whole number of at least 1.")
    with _book(options) as book:
        index = book.counter.count + 1 if options.first is None else options.first
        if not 1 <= index <= book.counter.count + 1:
            raise InputError(
                f"--first {index}: the stream stands at {book.counter.count} values, so the first line is value 1 to "
                f"{book.counter.count + 1}. A gap cannot be filled later."
            )
        shown: list[float] = []
        new = repeated = 0
        numbers = _numbers(lines, not options.real)
        while values := list(itertools.islice(numbers, block)):
            old = min(len(values), max(0, book.counter.count + 1 - index))
            answers = [book.answer(number) for number in range(index, index + old)]
            answers += book.add(values[old:])
            index, new, repeated = index + len(values), new + len(values) - old, repeated + old
            shown += answers
            emit(answers)
        if out is not None:
            book.counter.write(out, book.everything(), options.data)
        return Streamed(book.counter.count, new, repeated, book.counter, tuple(shown))


def _terms(options: StreamOptions) -> tuple[float, int | None, bool]:
    """Return epsilon, horizon and whether values are whole counts: what never changes in a continuation."""
    return options.epsilon, options.horizon, not options.real


def _numbers(lines: Iterable[str], integer: bool) -> Iterator[float]:
    try:
        for number, line in enumerate(lines, start=1):
            where, text = f"line {number}", line.strip().removeprefix("\ufeff")  # a mark before the first
            if len(line) > _LONGEST_LINE or not text.isprintable():
                raise InputError(f"{where} holds no number. Nothing of its block was released.")
            if not line.endswith("\n"):
                raise InputError(
                    f"{where} ({text!r}) has no line break, so that it may be cut off. It was not released; give it "
                    "whole."
                )
            try:
                yield int(text) if integer else float(text)
            except ValueError:
                kind = "whole number" if integer else "number"
                raise InputError(
                    f"{where} holds {text!r}, which is not a {kind}. Nothing of its block was released."
                ) from None
    except UnicodeDecodeError as error:
        raise InputError(f"the input is not UTF-8 text ({error}). Nothing of its block was released.") from None


# Books ---------------------------------------------------------------------------------------------------------------


class _Memory:
    """A stream that ends with the process."""

    def __init__(self, counter: ContinualCounter) -> None:
        self.counter = counter
        self._answers: list[float] = []

    def add(self, values: list[float]) -> list[float]:
        answers: list[float] = self.counter.release(values).tolist() if values else []
        self._answers += answers
        return answers

    def answer(self, index: int) -> float:
        return self._answers[index - 1]

    def everything(self) -> Tensor:
        if not self._answers:
            raise InputError("no value was answered, so there is nothing to give away: --out was not written.")
        return torch.tensor(self._answers, dtype=torch.int64 if self.counter.integer else torch.float64)


class _File(_Memory):
    """A stream that is kept in a file, with its answers beside it."""

    def __init__(self, path: Path, terms: tuple[float, int | None, bool]) -> None:
        self.path, self.shown = path, answers_of(path)
        if path.exists():
            content = _content(path)
            try:
                self.counter = ContinualCounter.from_state(content["stream"], *terms)
                last = [*content["last"]]
            except (KeyError, TypeError, AttributeError) as error:
                raise InputError(
                    f"{path} is damaged ({error!r}). Restore it from a copy, or start a new stream."
                ) from error
            self._answers = _read_answers(self.shown, self.counter.count)
            missing = self.counter.count - len(self._answers)
            if missing > len(last):
                raise InputError(f"{self.shown} lacks answers that were shown. Restore it from a copy.")
            lost = last[len(last) - missing :]  # a crash came between the two files
            self._write(lost)
            self._answers += lost
        else:
            if self.shown.exists():
                raise InputError(
                    f"{self.shown} is there without its state {path.name}. Move it away, or restore the state."
                )
            self.counter = ContinualCounter(*terms)
            self._answers = []
            self._save([])  # the stream exists, and is paid for, before its first value is read

    def add(self, values: list[float]) -> list[float]:
        """Release the next values, and make state and answers durable."""
        answers = super().add(values)
        if answers:
            self._save(answers)
            self._write(answers)
        return answers

    def _save(self, last: list[float]) -> None:
        content = {"format": FORMAT, "stream": self.counter.state(), "last": last}
        write_text_atomic(self.path, json.dumps(content, allow_nan=False) + "\n", mode=PRIVATE_FILE)

    def _write(self, answers: list[float]) -> None:
        """Append answers to those in the file."""
        if not answers:
            return
        with naming(self.shown), open(self.shown, "a", encoding="ascii") as file:
            file.write("".join(f"{answer!r}\n" for answer in answers))
            file.flush()
            os.fsync(file.fileno())
        flush_folder(self.shown.parent)


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


@contextlib.contextmanager
def _book(options: StreamOptions) -> Iterator[_Memory]:
    """Open a stream; nobody else may use its file meanwhile."""
    path, terms = options.state, _terms(options)
    if path is None:
        yield _Memory(ContinualCounter(*terms))
        return
    if path.is_symlink() or path.is_dir():
        raise InputError(f"--state {path} is a link or a folder, not a file. Name a file.")
    check_writable(path)
    with file_lock(path.parent / f".{path.name}.lock", busy=f"{path} is in use by another process."):
        yield _File(path, terms)


def _content(path: Path) -> dict[str, Any]:
    """Read a state file, whatever its stream is."""
    try:
        content = parse_json(read_plain(path, _MOST_STATE_BYTES))
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
