"""What the user sees while a run trains."""

from __future__ import annotations

import math
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichBar

REFRESH_SECONDS = 0.2


class Progress:
    """Progress of a run; this one shows nothing."""

    def prepare(self) -> None:
        """Say that the work before the first step begins: learning from public images, one-time private reads."""

    def start(self, step: int, steps: int, epsilon: float) -> None:
        """Begin at `step` of `steps`."""

    def update(self, step: int) -> None:
        """Say that `step` is done; called after every step, so it must cost nothing."""

    def tick(self, epsilon: float) -> None:
        """Say what has been charged so far."""

    def stop(self) -> None:
        """End; called also after an error."""


class BarProgress(Progress):
    """One line with steps per second, epsilon so far and remaining time.

    Args:
        console: Where to draw; None is the standard error stream.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._bar = RichBar(
            TextColumn("[bold]train"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]:>6.1f} steps/s"),
            TextColumn("epsilon {task.fields[epsilon]}"),
            TimeRemainingColumn(compact=True),
            console=console or Console(stderr=True),
            auto_refresh=False,  # no thread of its own: the loop calls often enough
        )
        self._shown_at = 0.0
        self._started_at = 0.0
        self._first_step = 0

    def prepare(self) -> None:
        """See `Progress.prepare`."""
        self._bar.console.print("prepare: what is learned and released before the first step (minutes at most)")

    def start(self, step: int, steps: int, epsilon: float) -> None:
        """See `Progress.start`."""
        self._started_at, self._first_step, self._step = time.monotonic(), step, step
        self._task = self._bar.add_task("", total=steps, completed=step, speed=0.0, epsilon=_shown(epsilon))
        self._bar.start()

    def update(self, step: int) -> None:
        """See `Progress.update`; draws at most five times a second."""
        self._step, now = step, time.monotonic()
        if now - self._shown_at >= REFRESH_SECONDS:
            self._shown_at = now
            speed = (step - self._first_step) / max(now - self._started_at, 1e-9)
            self._bar.update(self._task, completed=step, speed=speed, refresh=True)

    def tick(self, epsilon: float) -> None:
        """See `Progress.tick`."""
        self._bar.update(self._task, epsilon=_shown(epsilon))

    def stop(self) -> None:
        """See `Progress.stop`."""
        self._bar.update(self._task, completed=self._step, refresh=True)
        self._bar.stop()


def make_progress(enabled: bool | None = None) -> Progress:
    """Return a bar, or what shows nothing.

    Args:
        enabled: None draws a bar where the standard error stream is a terminal.
    """
    return BarProgress() if (sys.stderr.isatty() if enabled is None else enabled) else Progress()


def _shown(epsilon: float) -> str:
    """Write an epsilon for a narrow column."""
    return f"{epsilon:.3g}" if math.isfinite(epsilon) else "infinite (no privacy)"
