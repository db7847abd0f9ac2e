"""Progress of a piece of work: one function type that every room calls, and its display."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

T = TypeVar("T")
REFRESH_SECONDS = 0.2  # between two updates of a bar on a terminal
LINE_SECONDS = 10.0  # between two lines where stderr is not a terminal
_SAMPLED, _SAMPLES = 1.0, 60  # seconds between two samples of the speed, and how many are kept


@runtime_checkable
class Progress(Protocol):
    """A callback that learns how far a piece of work is; called often, so it must cost nothing."""

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        """Say that `done` of `total` steps, images or runs are done.

        Args:
            what: Name of the work, the same in every call; shown.
            note: Shown at each tick of a training, for example the epsilon charged so far.
        """


def silent(what: str, done: int, total: int, note: str = "") -> None:
    """Show nothing."""


def renamed(progress: Progress, what: str) -> Progress:
    """Return `progress` under another name of the work: a part counts as the whole."""
    return lambda _, done, total, note="": progress(what, done, total, note)


def within(progress: Progress, whole: str) -> Progress:
    """Return `progress` that names the whole before the part, so that a count says of what it is."""
    return lambda what, done, total, note="": progress(f"{whole}, {what}", done, total, note)


def counted(
    parts: Iterable[T],
    progress: Progress,
    what: str,
    total: int,
    size: Callable[[T], int] = lambda part: 1,
    done: int = 0,
) -> Iterator[T]:
    """Yield the parts of a piece of work, and say how many of ``total`` are done after each, which counts ``size``.

    Args:
        done: What was done before, which is said first.
    """
    if done:
        progress(what, done, total, "kept by the interrupted run")
    for part in parts:
        yield part
        done += size(part)
        progress(what, done, total)


def duration(seconds: float) -> str:
    """Write how long something takes, to two digits at most, and at least a second."""
    for name, length in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.2g} {name}" if seconds < 100 * length else f"{seconds / length:,.0f} {name}"
    return f"{max(seconds, 1):.0f} s"


def shown(off: bool = False) -> contextlib.AbstractContextManager[Progress]:
    """Return a block in which progress is shown on stderr: bars on a terminal, lines elsewhere, nothing if ``off``.

    A host without a stderr, as a service or a window has none, sees nothing.
    """
    if off or sys.stderr is None or sys.stderr.closed:
        return contextlib.nullcontext(silent)
    return Bars() if sys.stderr.isatty() else contextlib.nullcontext(Lines())


class _Work:
    """One piece of work: how far it is, and how fast it has been lately.

    Its clock starts when the first part is done: what comes before is start-up, which no later part has.
    """

    def __init__(self, first: int) -> None:
        self.done = first
        self._seen: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)  # when, and what was done by then

    def reach(self, done: int) -> None:
        """Note that so much is done now."""
        now = time.monotonic()
        if done > self.done and (not self._seen or now - self._seen[-1][0] >= _SAMPLED):
            self._seen.append((now, done))
        self.done = done

    @property
    def speed(self) -> float:
        """Steps, images or runs per second; 0 until the second part is done."""
        if not self._seen:
            return 0.0
        since, before = self._seen[0]
        return (self.done - before) / max(time.monotonic() - since, 1e-9)

    def remaining(self, total: int) -> str:
        """How long the rest will take at this speed; empty where that is not known yet, or nothing is left."""
        return f"{duration((total - self.done) / self.speed)} left" if self.speed and self.done < total else ""


class Bars:
    """One bar for each piece of work, with its speed, note and remaining time; drawn five times a second at most."""

    def __init__(self, console: Console | None = None) -> None:
        from rich import progress
        from rich.console import Console

        self._bars = progress.Progress(
            progress.TextColumn("[bold]{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[speed]:>6.1f}/s {task.fields[note]}"),
            progress.TimeRemainingColumn(compact=True),
            console=console or Console(stderr=True),
            auto_refresh=False,  # needs no thread: the work calls often enough
        )
        self._work: dict[str, tuple[TaskID, _Work]] = {}
        self._drawn_at = 0.0

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        for bar, work in self._work.values():  # where it stopped, perhaps by an error
            self._bars.update(bar, completed=work.done)
        self._bars.refresh()
        self._bars.stop()

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        """See `Progress`."""
        if what not in self._work:
            self._work[what] = self._bars.add_task(what, total=total, speed=0.0, note=note), _Work(done)
        bar, work = self._work[what]
        work.reach(done)
        now = time.monotonic()
        if note or done == total or now - self._drawn_at >= REFRESH_SECONDS:
            self._drawn_at = now
            fields: dict[str, Any] = {"note": note} if note else {}
            self._bars.update(bar, completed=done, total=total, speed=work.speed, refresh=True, **fields)


class Lines:
    """One line at every note, which is at every tick of a training, and one every ten seconds of other work.

    A line says how much is done, how fast, and how long the rest will take.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._work: dict[str, _Work] = {}
        self._written_at = time.monotonic()

    def __call__(self, what: str, done: int, total: int, note: str = "") -> None:
        """See `Progress`."""
        work = self._work.setdefault(what, _Work(done))
        work.reach(done)
        now = time.monotonic()
        if note or now - self._written_at >= LINE_SECONDS:
            self._written_at = now
            speed = f"{work.speed:.3g}/s" if work.speed else ""
            words = [f"{what}: {done:,} of {total:,}", speed, work.remaining(total), note]
            with contextlib.suppress(OSError, ValueError):  # a full disk or a closed stream ends no run
                self._stream.write(", ".join(filter(None, words)) + "\n")
                self._stream.flush()
