"""A linear classifier on scattering features, by noisy gradient descent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.classify.scattering_linear.audit import AUDIT
    from idpgan.classify.scattering_linear.config import Config
    from idpgan.classify.scattering_linear.method import Method

__all__ = ["AUDIT", "Config", "Method"]

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
