"""Collaborative training by selective sharing of gradients, with or without the noise of its paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.classify.dssgd.audit import AUDIT
    from idpgan.classify.dssgd.config import Config
    from idpgan.classify.dssgd.method import Method

__all__ = ["AUDIT", "Config", "Method"]

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
