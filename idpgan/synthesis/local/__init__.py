"""IDP-GAN, local form: every image perturbed by itself, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.synthesis.local.audit import AUDIT
    from idpgan.synthesis.local.method import Config, Method

__all__ = ["AUDIT", "INFO", "Config", "Method"]

INFO = MethodInfo(
    name="idp-gan-local",
    family="gan",
    units=("image",),
    relation="replace-one",
    sound=True,
    claimed=None,
    proven="privacy.epsilon",
    reason="each image and its label are perturbed by themselves, once; all else is computed from the result",
)

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "method", "Method": "method"})
