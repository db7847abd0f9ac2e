"""Publishers with a proof: the sensitivity is a constant of the declared image size and pixel range."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.publish.sound.publishers import PUBLISHERS

__all__ = ["INFO", "PUBLISHERS"]


def _sound(name: str, units: tuple[str, ...], reason: str) -> MethodInfo:
    return MethodInfo(name, "publisher", units, "replace-one", True, "epsilon", "epsilon", reason)


_ROWS = (
    _sound(
        "lap",
        ("pixel", "column", "image"),
        "discrete noise on every pixel, sized by the public pixel range and the image size alone",
    ),
)
INFO = {row.name: row for row in _ROWS}

__getattr__ = lazy_names(__name__, {"PUBLISHERS": "publishers"})
