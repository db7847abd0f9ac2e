"""A network that changes an image little and makes its attacker fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.obfuscate.obfuscator.method import Config, Method

__all__ = ["INFO", "Config", "Method"]

INFO = MethodInfo(
    name="obfuscator",
    family="obfuscator",
    units=("image",),
    relation="replace-one",
    sound=None,
    claimed=None,
    proven="inf",
    reason=(
        "a network without noise: it is trained against one attacker, which bounds no other, and on the "
        "private images themselves"
    ),
)

__getattr__ = lazy_names(__name__, {"Config": "method", "Method": "method"})
