"""PyTorch, imported when it is first used.

Files that are also used where no tensor is say ``from idpgan.lazy import torch``: the import takes three seconds of a
processor, and a price, a ledger, or the check of published images needs none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch as torch


class _Later:
    """A module that is imported when one of its names is first asked for; what is set is set on the module itself."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(object.__getattribute__(self, "_name")), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(importlib.import_module(self._name), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(importlib.import_module(self._name), name)


if not TYPE_CHECKING:
    torch = _Later("torch")
