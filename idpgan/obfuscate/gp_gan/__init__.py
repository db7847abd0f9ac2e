"""A GAN that draws a face from its landmarks alone and keeps one attribute of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.obfuscate.gp_gan.method import Config, Method

__all__ = ["INFO", "Config", "Method"]

INFO = MethodInfo(
    name="gp-gan",
    family="obfuscator",
    units=("image",),
    relation="replace-one",
    sound=None,
    claimed=None,
    proven="inf",
    reason=(
        "the landmarks of a private face are released without noise, through a face that is drawn from them by a "
        "network that was trained on the private images"
    ),
)

__getattr__ = lazy_names(__name__, {"Config": "method", "Method": "method"})
