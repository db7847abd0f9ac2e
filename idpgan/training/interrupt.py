"""How a run is stopped from outside."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignals:
    """Context in which Ctrl-C and SIGTERM only ask to stop, so that a step is never cut in two.

    A second Ctrl-C raises `KeyboardInterrupt` at once. Outside the main thread, where Python allows no handlers,
    nothing is changed.

    Args:
        at_once: Raise `KeyboardInterrupt` at the first signal, whichever it is.

    Attributes:
        received: Name of the signal that came, or None.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self._at_once = at_once
        self.received: str | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None and number == signal.SIGINT
        self.received = signal.Signals(number).name
        if self._at_once or again:
            raise KeyboardInterrupt
