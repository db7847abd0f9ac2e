"""dp-GAN: DP-SGD on the critic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.synthesis.dp_gan.audit import AUDIT
    from idpgan.synthesis.dp_gan.config import Config
    from idpgan.synthesis.dp_gan.method import Method

__all__ = ["AUDIT", "Config", "Method"]

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
