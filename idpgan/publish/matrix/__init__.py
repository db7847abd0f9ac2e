"""The six matrix publishers of Zhang, Fu and Meng (2020), as published. None of them is private."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.publish.matrix.publishers import PUBLISHERS

__all__ = ["INFO", "PUBLISHERS"]


def _published(name: str, reason: str) -> MethodInfo:
    """Return the row of an algorithm of the paper, which claims epsilon for one column (theorem 7)."""
    return MethodInfo(name, "publisher", ("column",), "replace-one", False, "epsilon", "inf", reason)


_ROWS = (
    _published(
        "lap-published",
        "the noise is sized by the image's own largest column sum, so a black image is released exactly and neighbors "
        "differ in the scale of all noise",
    ),
    _published(
        "lra",
        "every update reads the image and draws noise again while epsilon is charged once, and noise scale and rank "
        "are the image's own",
    ),
    _published(
        "sra",
        "singular vectors are released without noise, so the output's column space is that of the private image, and "
        "the noise is sized by its largest singular value",
    ),
    _published(
        "esra",
        "singular vectors are released without noise, so the output's column space is within that of the private "
        "image; the sensitivities of score and noise are the image's own",
    ),
    _published(
        "lrm",
        "the left factor is computed from the private image and released without noise: a fixed workload is public, "
        "an image is not",
    ),
    _published(
        "mm",
        "the left factor is computed from the private image and released without noise, and the noise is sized by the "
        "image's own right factor",
    ),
)
INFO = {row.name: row for row in _ROWS}

__getattr__ = lazy_names(__name__, {"PUBLISHERS": "publishers"})
