"""Publish and generate images under differential privacy, with every guarantee claimed, proven and audited.

The names below are loaded when they are first used, so that ``import idpgan`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idpgan.models.checkpoint import load_generator

__version__ = "0.1.0"
_ROOMS = ("attacks", "audit", "continual", "data", "metrics", "models", "privacy", "publish", "synthesis", "training")

__all__ = ["__version__", "load_generator", *_ROOMS]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Load a room or `load_generator` on first use."""
    if name == "load_generator":
        return importlib.import_module("idpgan.models.checkpoint").load_generator
    if name in _ROOMS:
        return importlib.import_module(f"idpgan.{name}")
    raise AttributeError(f"module 'idpgan' has no attribute {name!r}")
