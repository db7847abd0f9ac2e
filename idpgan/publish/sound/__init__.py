"""Publishers with a proof: the sensitivity is a constant of the declared image size and pixel range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.publish.sound.publishers import PUBLISHERS

__all__ = ["PUBLISHERS"]

__getattr__ = lazy_names(__name__, {"PUBLISHERS": "publishers"})
