"""How much memory a step will take, foretold from steps of one record and of two, which any machine holds.

A processor's system promises more memory than it has, and ends the process that uses it: without a forecast a chunk
that is too large is no error that could be caught, as it is on a GPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from idpgan.memory import free_memory

_USABLE = 0.8  # of the free memory: libraries have buffers of their own, and freed memory lies in pieces


def fitting(most: int, step: Callable[[int], object], device: torch.device) -> int:
    """Return how many records' gradients the free memory will hold at once by forecast: ``most``, or half, and so on.

    Memory grows with the records along a line at most: what grows slower is shared by a block of them.

    Args:
        most: At least 1.
        step: Computes the gradients of so many records.
    """
    free = free_memory(str(device))
    if free is None or most == 1:
        return most
    one, two = most_bytes(lambda: step(1)), most_bytes(lambda: step(2))
    while most > 1 and one + (most - 1) * max(two - one, 0) > _USABLE * free:
        most //= 2
    return most


def most_bytes(call: Callable[[], object]) -> int:
    """Return the most bytes of new tensors that there are at once while a function is called."""
    with _Allocated() as seen:
        call()
    return seen.most


class _Allocated(TorchDispatchMode):
    """Counts the memory of tensors that operations return, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self._living: dict[int, int] = {}
        self._now = self.most = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say no, since the mark for PyTorch's compiler imports it at the first call, which takes a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else None
            if storage is not None and storage._cdata not in self._living:
                self._living[storage._cdata] = storage.nbytes()
                self._now += storage.nbytes()
                self.most = max(self.most, self._now)
                weakref.finalize(storage, self._freed, storage._cdata)
        return made

    def _freed(self, storage: int) -> None:
        self._now -= self._living.pop(storage)
