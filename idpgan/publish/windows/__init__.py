"""Sliding windows over an image's pixels: as Liu et al. (2021) publish them, and made sound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.publish.windows.publishers import PUBLISHERS

__all__ = ["PUBLISHERS"]

__getattr__ = lazy_names(__name__, {"PUBLISHERS": "publishers"})
