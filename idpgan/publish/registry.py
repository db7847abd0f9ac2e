"""The rows of ``idpgan.publish.METHODS``: what each publisher claims and what is proven. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping

from idpgan.methods import MethodInfo


def _published(name: str, reason: str) -> MethodInfo:
    """Return the row of an algorithm of Zhang, Fu and Meng (2020): epsilon is claimed for one column (theorem 7)."""
    return MethodInfo(name, "publisher", ("column",), "replace-one", False, "epsilon", "inf", reason)


_ROWS = (
    MethodInfo(
        name="lap",
        family="publisher",
        units=("pixel", "column", "image"),
        relation="replace-one",
        sound=True,
        claimed="epsilon",
        proven="epsilon",
        reason="discrete noise on every pixel, sized by the public pixel range and the image size alone",
    ),
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
METHODS: Mapping[str, MethodInfo] = {row.name: row for row in _ROWS}
