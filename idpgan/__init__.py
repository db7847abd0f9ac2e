"""Publish and generate images under differential privacy, with every guarantee claimed, proven and audited.

The names below are loaded when they are first used, so that ``import idpgan`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idpgan.models.checkpoint import load_generator
    from idpgan.release.classifier import load_classifier

__version__ = "0.1.0"
_ROOMS = (
    "attacks", "audit", "classify", "continual", "data", "metrics", "models", "privacy", "publish", "synthesis",
    "training",
)  # fmt: skip

_LOADERS = {"load_classifier": "idpgan.release.classifier", "load_generator": "idpgan.models.checkpoint"}

__all__ = ["__version__", "load_classifier", "load_generator", *_ROOMS]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Load a room, or what loads a release, on first use."""
    if name in _LOADERS:
        return getattr(importlib.import_module(_LOADERS[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"idpgan.{name}")
    raise AttributeError(f"module 'idpgan' has no attribute {name!r}")
