"""IDP-GAN, aggregate form: one noisy release of sums of features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.synthesis.aggregate.audit import AUDIT
    from idpgan.synthesis.aggregate.config import Config
    from idpgan.synthesis.aggregate.method import Method
    from idpgan.synthesis.aggregate.starter import suggest

__all__ = ["AUDIT", "Config", "Method", "suggest"]

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method", "suggest": "starter"})
