"""A small convolutional classifier by DP-SGD."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.classify.dp_sgd.audit import AUDIT
    from idpgan.classify.dp_sgd.config import Config
    from idpgan.classify.dp_sgd.method import Method

__all__ = ["AUDIT", "Config", "Method"]

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
