"""A classifier trained on its own adversarial examples, without any guarantee of privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.classify.pgd.config import Config
    from idpgan.classify.pgd.method import Method

__all__ = ["Config", "Method"]

__getattr__ = lazy_names(__name__, {"Config": "config", "Method": "method"})
