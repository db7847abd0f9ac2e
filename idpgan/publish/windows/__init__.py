"""Sliding windows over an image's pixels: as Liu et al. (2021) publish them, and made sound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.publish.windows.publishers import PUBLISHERS

__all__ = ["INFO", "PUBLISHERS"]


def _published(name: str, reason: str) -> MethodInfo:
    """Return the row of an algorithm of the paper, whose epsilon is nominal: for each window."""
    return MethodInfo(name, "publisher", ("pixel",), "replace-one", False, "epsilon per window", "inf", reason)


def _sound(name: str, reason: str) -> MethodInfo:
    units = ("pixel", "image")
    return MethodInfo(name, "publisher", units, "replace-one", True, "epsilon", "epsilon", reason)


_ROWS = (
    _published(
        "swp",
        "whether a window is released or replaced is decided on its raw pixels without noise, and a window after many "
        "replaced ones gets many times epsilon",
    ),
    _published(
        "sort-swp",
        "beside what is wrong in swp, the order of the windows is annealed on their true similarities without noise",
    ),
    _sound(
        "swp-sound",
        "a noisy distance decides whether a window is released with noise or replaced; each window pays for both",
    ),
    _sound(
        "sort-swp-sound",
        "noisy sums order the windows, then as swp-sound; each window pays for order, distance and release",
    ),
)
INFO = {row.name: row for row in _ROWS}

__getattr__ = lazy_names(__name__, {"PUBLISHERS": "publishers"})
