"""Portraits of people who do not exist, drawn from traits; this room knows no private image and no privacy."""

from idpgan.portraits.mesh import PAPERS, is_installed, read_head
from idpgan.portraits.render import SIZES, draw, sample
from idpgan.portraits.traits import COLUMNS, YES_OR_NO, Traits

__all__ = ["COLUMNS", "PAPERS", "SIZES", "YES_OR_NO", "Traits", "draw", "is_installed", "read_head", "sample"]
