"""Obfuscators: common ways to change images for privacy without a guarantee. Nothing is proven about them.

``METHODS`` has a row for each: an infinite proven epsilon and the reason. `make_obfuscator` makes one, ``fit`` trains
it if it has parameters to learn, and ``transform`` changes images. `idpgan.attacks` evaluates them with the same
attackers as the private methods (docs/results/without-a-guarantee.md).
Names other than ``METHODS`` are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import methods_of

if TYPE_CHECKING:
    from idpgan.obfuscate.base import Obfuscator, load_obfuscator, make_obfuscator

__all__ = ["METHODS", "Obfuscator", "load_obfuscator", "make_obfuscator"]

_MODULES = {"Obfuscator": "base", "load_obfuscator": "base", "make_obfuscator": "base"}

METHODS = methods_of("obfuscator")

__getattr__ = lazy_names(__name__, _MODULES)
