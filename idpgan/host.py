"""What the host process has set, kept out of every public call: it computes as it was tested, and puts all back.

Importing this imports neither torch nor NumPy.
"""

from __future__ import annotations

import itertools
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

WARNED = "default"  # what becomes of a filter that makes a warning an error; the package's own tests keep "error"


@contextmanager
def own_state() -> Iterator[None]:
    """Let a public call compute in float32, on the CPU unless told else, with gradients, NumPy's and Python's warnings.

    A default dtype of float64, ``no_grad``, autocast, a default device, ``np.seterr(all="raise")`` or warnings as
    errors would change what is released, or end a run after its charge. The caller's settings hold again afterwards,
    whatever happened. Default dtype, filters and what Pillow makes of half a file belong to all threads: the last call
    that ends puts them back.
    """
    if getattr(_thread, "within", False):  # one public function calls another
        yield
        return
    with ExitStack() as stack:
        _thread.within, _thread.call = True, next(_calls)
        stack.callback(setattr, _thread, "within", False)
        stack.enter_context(_of_process)
        for each in _odd_settings():
            stack.enter_context(each)
        yield


def call() -> int:
    """Return the number of this thread's newest public call; 0 before its first."""
    return getattr(_thread, "call", 0)


def work_for(number: int) -> None:
    """Let a thread of a pool warn in the name of the public call that it works for; see `call`."""
    _thread.call = number


def _odd_settings() -> Iterator[AbstractContextManager[Any]]:
    """Yield a block for everything of this thread that the host has set otherwise: nothing, as a rule."""
    numpy: Any = sys.modules.get("numpy")  # what is not imported yet was not set
    torch: Any = sys.modules.get("torch")
    if numpy is not None and numpy.geterr() != _NUMPY:
        yield numpy.errstate(**_NUMPY)
    if torch is None:
        return
    if torch.is_inference_mode_enabled():
        yield torch.inference_mode(False)
    if not torch.is_grad_enabled():
        yield torch.enable_grad()
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            yield torch.autocast(kind, enabled=False)
    if torch.get_default_device().type != "cpu":
        yield torch.device("cpu")


class Shared:
    """A setting of the whole process: made when the first block begins, put back when the last one ends.

    Where each block put back what it had found, blocks of several threads would leave the setting of one of them.
    """

    def __init__(self, setting: Callable[[], AbstractContextManager[Any]]) -> None:
        self._setting, self._lock, self._blocks, self._made = setting, threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._made.enter_context(self._setting())
            self._blocks += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self._made.close()


@contextmanager
def _settings_of_process() -> Iterator[None]:
    """Set default dtype, filters of warnings, and that a file that ends too early is no picture."""
    with ExitStack() as stack:
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.get_default_dtype() is not torch.float32:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float32)
        pillow: Any = sys.modules.get("PIL.ImageFile")
        if pillow is not None and pillow.LOAD_TRUNCATED_IMAGES:
            stack.callback(setattr, pillow, "LOAD_TRUNCATED_IMAGES", pillow.LOAD_TRUNCATED_IMAGES)
            pillow.LOAD_TRUNCATED_IMAGES = False
        if any(action == "error" for action, *_ in warnings.filters):
            stack.enter_context(warnings.catch_warnings())
            filters: Any = warnings.filters
            filters[:] = [(WARNED if action == "error" else action, *what) for action, *what in filters]
        yield


@contextmanager
def unwarned(category: type[Warning] = Warning, message: str = "") -> Iterator[None]:
    """Ignore warnings in the block whose text begins so. Filters that other threads set meanwhile stay theirs."""
    filters: Any = warnings.filters
    entry = ("ignore", re.compile(message, re.IGNORECASE), category, None, 0)
    filters.insert(0, entry)
    try:
        yield
    finally:
        copies: Any = {id(each): each for each in (filters, warnings.filters)}  # `catch_warnings` elsewhere makes one
        for each in copies.values():
            with suppress(ValueError):
                each.remove(entry)


_NUMPY = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}  # as NumPy has it
_calls = itertools.count(1)
_thread, _of_process = threading.local(), Shared(_settings_of_process)
