"""IDP-GAN, local form: every image perturbed by itself, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.synthesis.local.audit import AUDIT
    from idpgan.synthesis.local.method import Config, Method

__all__ = ["AUDIT", "Config", "Method"]

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "method", "Method": "method"})
