"""Image disguising: blocks are permuted and multiplied by secret matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.obfuscate.disguise.method import Config, Method

__all__ = ["INFO", "Config", "Method"]

INFO = MethodInfo(
    name="disguise",
    family="obfuscator",
    units=("image",),
    relation="replace-one",
    sound=None,
    claimed=None,
    proven="inf",
    reason=(
        "one key for all images and noise that no sensitivity sizes: a few known images give the key away "
        "by least squares"
    ),
)

__getattr__ = lazy_names(__name__, {"Config": "method", "Method": "method"})
