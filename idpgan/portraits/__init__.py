"""Portraits of people who do not exist, drawn from traits; this room knows no private image and no privacy."""

from idpgan.portraits.folder import annotated, read
from idpgan.portraits.mesh import INSTALL, PAPERS, is_installed, read_head
from idpgan.portraits.render import SIZES, batches, draw, place, sample
from idpgan.portraits.traits import COLUMNS, YES_OR_NO, Traits, near

# fmt: off
__all__ = [
    "COLUMNS", "INSTALL", "PAPERS", "SIZES", "YES_OR_NO", "Traits", "annotated", "batches", "draw", "is_installed",
    "near", "place", "read", "read_head", "sample",
]
# fmt: on
