"""What the host process has set, kept out of every public call: it computes as it was tested, and puts all back.

Importing this imports neither torch nor NumPy.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

WARNED = "default"  # what becomes of a filter that makes a warning an error; the package's own tests keep "error"


@contextmanager
def own_state() -> Iterator[None]:
    """Let a public call compute in float32, on the CPU unless told else, with gradients, NumPy's and Python's warnings.

    A default dtype of float64, ``no_grad``, autocast, a default device, ``np.seterr(all="raise")`` or warnings as
    errors would change what is released, or end a run after its charge. The caller's settings hold again afterwards,
    whatever happened. Default dtype and filters belong to all threads: the last call that ends puts them back.
    """
    if getattr(_thread, "within", False):  # one public function calls another
        yield
        return
    with ExitStack() as stack:
        _thread.within = True
        stack.callback(setattr, _thread, "within", False)
        stack.enter_context(_of_process)
        for each in _odd_settings():
            stack.enter_context(each)
        yield


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


class _OfProcess:
    """What belongs to all threads: set when the first call begins, put back when the last one ends."""

    def __init__(self) -> None:
        self._lock, self._calls, self._saved = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            torch: Any = sys.modules.get("torch")
            if not self._calls and torch is not None and torch.get_default_dtype() is not torch.float32:
                self._saved.callback(torch.set_default_dtype, torch.get_default_dtype())
                torch.set_default_dtype(torch.float32)
            if not self._calls and any(action == "error" for action, *_ in warnings.filters):
                self._saved.enter_context(warnings.catch_warnings())
                filters: Any = warnings.filters
                filters[:] = [(WARNED if action == "error" else action, *what) for action, *what in filters]
            self._calls += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._calls -= 1
            if not self._calls:
                self._saved.close()


_NUMPY = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}  # as NumPy has it
_thread, _of_process = threading.local(), _OfProcess()
