"""Gaussian blur."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.obfuscate.blur.method import Config, Method

__all__ = ["INFO", "Config", "Method"]

INFO = MethodInfo(
    name="blur",
    family="obfuscator",
    units=("image",),
    relation="replace-one",
    sound=None,
    claimed=None,
    proven="inf",
    reason=(
        "a filter without noise: two images are told apart by what comes out, and a network that is "
        "trained on blurred faces recognizes them"
    ),
)

__getattr__ = lazy_names(__name__, {"Config": "method", "Method": "method"})
