"""Gaussian blur."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.obfuscate.blur.method import Config, Method

__all__ = ["Config", "Method"]

__getattr__ = lazy_names(__name__, {"Config": "method", "Method": "method"})
