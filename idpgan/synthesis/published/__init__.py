"""IDP-GAN as published: a perturbed first layer and a noisy Taylor loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.synthesis.published.audit import AUDIT
    from idpgan.synthesis.published.config import Config
    from idpgan.synthesis.published.method import Method

__all__ = ["AUDIT", "Config", "Method"]

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
