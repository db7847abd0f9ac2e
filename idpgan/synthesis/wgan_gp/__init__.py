"""WGAN-GP without any guarantee: the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.synthesis.wgan_gp.method import Config, Method

__all__ = ["INFO", "Config", "Method"]

INFO = MethodInfo(
    name="wgan-gp",
    family="gan",
    units=("image",),
    relation="replace-one",
    sound=None,
    claimed=None,
    proven="inf",
    reason="wgan-gp trains on the raw images without noise",
)

__getattr__ = lazy_names(__name__, {"Config": "method", "Method": "method"})
