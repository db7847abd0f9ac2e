"""Private Evolution: a simulator proposes, noisy votes of the private records choose; no network is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.synthesis.evolution.audit import AUDIT
    from idpgan.synthesis.evolution.config import Config
    from idpgan.synthesis.evolution.method import Method
    from idpgan.synthesis.evolution.starter import suggest

__all__ = ["AUDIT", "Config", "Method", "suggest"]

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method", "suggest": "starter"})
