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


_PARTS = ("pixel", "column", "image")
_ROWS = (
    _sound("lap", _PARTS, "discrete noise on every pixel, sized by the public pixel range and the image size alone"),
    _sound(
        "lap-shrink",
        _PARTS,
        "lap, then optimal shrinkage of the noisy image's singular values at the known noise level: post-processing",
    ),
    _sound(
        "lap-wiener",
        _PARTS,
        "lap, then the best linear estimate under a model of drawn faces at the known noise level: post-processing",
    ),
    _sound(
        "dct",
        _PARTS,
        "discrete noise on the lowest frequencies, sized by the public cosines; the estimate is post-processing",
    ),
    _sound(
        "pix",
        _PARTS,
        "discrete noise on sums over public blocks, sized by the pixel range; the estimate is post-processing",
    ),
    _sound(
        "eigenfaces",
        _PARTS,
        "discrete noise on coefficients in a basis of drawn faces, clipped to a public norm or sized by the basis",
    ),
    _sound(
        "codebook",
        ("image",),
        "the number of the nearest of K public faces, by k-ary randomized response; nothing else of the image is used",
    ),
)
INFO = {row.name: row for row in _ROWS}

__getattr__ = lazy_names(__name__, {"PUBLISHERS": "publishers"})
