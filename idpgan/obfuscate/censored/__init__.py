"""An autoencoder whose output an adversary cannot tell the hidden label from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.obfuscate.censored.method import Config, Method

__all__ = ["INFO", "Config", "Method"]

INFO = MethodInfo(
    name="censored",
    family="obfuscator",
    units=("image",),
    relation="replace-one",
    sound=None,
    claimed=None,
    proven="inf",
    reason=(
        "an autoencoder without noise: it is trained against one adversary, which bounds no other, and on the "
        "private images themselves"
    ),
)

__getattr__ = lazy_names(__name__, {"Config": "method", "Method": "method"})
