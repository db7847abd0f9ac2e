"""A network split between phones and a cloud: few noisy features of each image, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.classify.arden.audit import AUDIT
    from idpgan.classify.arden.config import Config
    from idpgan.classify.arden.method import Method

__all__ = ["AUDIT", "Config", "Method"]

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
