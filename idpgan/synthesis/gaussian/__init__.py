"""One normal distribution a class, from one noisy release of moments: what every generator has to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.synthesis.gaussian.audit import AUDIT
    from idpgan.synthesis.gaussian.config import Config
    from idpgan.synthesis.gaussian.method import Method
    from idpgan.synthesis.gaussian.starter import suggest

__all__ = ["AUDIT", "Config", "Method", "suggest"]

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method", "suggest": "starter"})
