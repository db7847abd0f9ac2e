"""A linear classifier on scattering features, by noisy gradient descent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.classify.scattering_linear.audit import AUDIT
    from idpgan.classify.scattering_linear.config import Config
    from idpgan.classify.scattering_linear.method import Method

__all__ = ["AUDIT", "INFO", "Config", "Method"]

INFO = MethodInfo(
    name="scattering-linear",
    family="classifier",
    units=("image",),
    relation="zero-out-one",
    sound=True,
    claimed="privacy.epsilon",
    proven="privacy.epsilon",
    reason="noisy gradient descent of a linear classifier on fixed features, gradients clipped per image",
)

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
