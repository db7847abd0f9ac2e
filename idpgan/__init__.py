"""Publish and generate images under differential privacy, with every guarantee claimed, proven and audited.

The names below are loaded when they are first used, so that ``import idpgan`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from idpgan import (
        attacks,
        audit,
        classify,
        continual,
        data,
        metrics,
        models,
        privacy,
        publish,
        release,
        synthesis,
        training,
    )
    from idpgan.commands.attack_images import attack
    from idpgan.commands.fit import fit, fit_classifier
    from idpgan.commands.one_call import evaluate, publish_images
    from idpgan.release.classifier import load_classifier
    from idpgan.release.dataset import SyntheticDataset
    from idpgan.release.generator import load_generator

__version__ = "0.4.0"
_NAMES = {
    "evaluate": "idpgan.commands.one_call",
    "fit": "idpgan.commands.fit",
    "fit_classifier": "idpgan.commands.fit",
    "publish_images": "idpgan.commands.one_call",
    "SyntheticDataset": "idpgan.release.dataset",
    "attack": "idpgan.commands.attack_images",
    "load_classifier": "idpgan.release.classifier",
    "load_generator": "idpgan.release.generator",
}

__all__ = [
    "SyntheticDataset",
    "__version__",
    "attack",
    "attacks",
    "audit",
    "classify",
    "continual",
    "data",
    "evaluate",
    "fit",
    "fit_classifier",
    "load_classifier",
    "load_generator",
    "metrics",
    "models",
    "privacy",
    "publish",
    "publish_images",
    "release",
    "synthesis",
    "training",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Load a room, or what reads a release, on first use."""
    if name in _NAMES:
        from idpgan.checks import public

        return public(_NAMES[name], name)
    if name in __all__:
        return importlib.import_module(f"idpgan.{name}")
    from idpgan.removed import gone

    if line := gone(f"idpgan.{name}"):
        raise ImportError(line)
    raise AttributeError(f"module 'idpgan' has no attribute {name!r}")
