"""``idpgan stream``: running counts of values that arrive as lines of text, under one epsilon, resumable.

A line without a number ends the stream. This reveals nothing about anybody: the guarantee covers one event, which
changes one number by at most 1 and cannot turn a number into something else.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from idpgan.commands.command import Answer, AsJson, command, option
from idpgan.errors import InputError

if TYPE_CHECKING:
    from idpgan.continual.stream import ContinualCounter

_LONGEST_LINE = 400  # characters; a number has far fewer


@dataclass(frozen=True)
class StreamOptions:
    """What a stream is, which never changes in a continuation (epsilon, horizon, real), and where it is kept."""

    epsilon: Annotated[float, Option(help="Of the whole stream; unit: one event, which adds at most 1.")]
    horizon: int | None = option(None, "Most values that will come; left out: not known.")
    state: Path | None = option(None, "Where the stream is kept, secret.", metavar="FILE")
    first: int | None = option(None, "Index of the first line's value; default: the next.")
    block: int = option(1, "Values that are answered, and made durable, together.")
    real: bool = option(False, "Real values of at most 1 per event, not whole counts.")
    out: Path | None = option(None, "A new folder to give away: all answers so far.", metavar="DIR")
    data: str = option("a stream", "What the card calls the stream.")


@dataclass(frozen=True)
class Streamed:
    """The result of a call.

    Attributes:
        new: Values that this call has added.
        repeated: Values that had been answered before and were answered again by the same numbers.
        counter: The stream as it stands, with the values of earlier calls.
        answers: All answers of this call, in order.
    """

    new: int
    repeated: int
    counter: ContinualCounter
    answers: tuple[float, ...]


@command
def stream(options: StreamOptions, as_json: AsJson = False) -> Answer:
    r"""Release the running count of values that arrive line by line on stdin, one answer per line on stdout.

    With --state the stream can be continued, and a value whose --first index was answered gets the same answer again.

    Example: printf '3\n0\n5\n' | idpgan stream --epsilon 1 --horizon 365 --state faces.state
    """

    def show(answers: list[float]) -> None:
        if not as_json:
            print("\n".join(map(repr, answers)), flush=True)

    answered = answer_lines(sys.stdin, options, show)
    facts = {
        "count": answered.counter.count,
        "new": answered.new,
        "repeated": answered.repeated,
        "answers": list(answered.answers),
    }
    return Answer({**facts, "privacy": answered.counter.privacy.to_json()}, lambda: None)


def answer_lines(lines: Iterable[str], options: StreamOptions, emit: Callable[[list[float]], None]) -> Streamed:
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
    from idpgan.continual.settings import check_name
    from idpgan.continual.state import opened
    from idpgan.files import check_writable, refuse_existing
    from idpgan.release.folder import refuse_place

    out, block = options.out, options.block
    if out is not None:
        refuse_existing(out)
        refuse_place(out, f"--out {out}")
        check_writable(out)
        check_name(options.data)
    if options.state is not None:
        refuse_place(options.state, f"--state {options.state}")
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise InputError(f"--block {block} must be a whole number of at least 1.")
    with opened(options.state, (options.epsilon, options.horizon, not options.real)) as state:
        counter = state.counter
        index = counter.count + 1 if options.first is None else options.first
        if not 1 <= index <= counter.count + 1:
            raise InputError(
                f"--first {index}: the stream stands at {counter.count} values, so the first line is value 1 to "
                f"{counter.count + 1}. A gap cannot be filled later."
            )
        emitted: list[float] = []
        new = repeated = 0
        numbers = _numbers(lines, not options.real)
        while values := list(itertools.islice(numbers, block)):
            old = min(len(values), max(0, counter.count + 1 - index))
            answers = state.answers[index - 1 : index - 1 + old]
            answers += state.add(values[old:])
            index, new, repeated = index + len(values), new + len(values) - old, repeated + old
            emitted += answers
            emit(answers)
        if out is not None:
            counter.write(out, state.to_tensor(), options.data)
        return Streamed(new, repeated, counter, tuple(emitted))


def _numbers(lines: Iterable[str], integer: bool) -> Iterator[float]:
    """Yield the number of each line; refuse what is not one."""
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
