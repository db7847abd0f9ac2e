"""The six matrix publishers of Zhang, Fu and Meng (2020), as published. None of them is private."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.publish.matrix.publishers import PUBLISHERS

__all__ = ["PUBLISHERS"]

__getattr__ = lazy_names(__name__, {"PUBLISHERS": "publishers"})
