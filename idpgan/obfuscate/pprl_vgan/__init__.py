"""A variational GAN that draws another known person with the same expression."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.obfuscate.pprl_vgan.method import Config, Method

__all__ = ["INFO", "Config", "Method"]

INFO = MethodInfo(
    name="pprl-vgan",
    family="obfuscator",
    units=("image",),
    relation="replace-one",
    sound=None,
    claimed=None,
    proven="inf",
    reason=(
        "the code of an image is released without noise by a network that was trained on the private "
        "images; the people drawn are real"
    ),
)

__getattr__ = lazy_names(__name__, {"Config": "method", "Method": "method"})
