"""Publishers release images for images; each image is a separate record.

`release` is the only entry point. ``METHODS`` states what each publisher claims and what is proven; the algorithms as
published prove nothing and need ``accept_unsound=True``, and so do obfuscators, which claim nothing either and are no
rows of it. Some of these have to be fitted: `make_obfuscator`, ``fit``, ``transform``. Names other than ``METHODS`` are
loaded on first use, so that the command line stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.checks import lazy_names
from idpgan.methods import methods_of

if TYPE_CHECKING:
    from idpgan.numerics.svd import batched_svd
    from idpgan.publish.obfuscators.obfuscator import Obfuscator, load_obfuscator, make_obfuscator
    from idpgan.publish.publisher import Release, release

__all__ = ["METHODS", "Obfuscator", "Release", "batched_svd", "load_obfuscator", "make_obfuscator", "release"]

_MODULES = {
    "Obfuscator": "idpgan.publish.obfuscators.obfuscator",
    "Release": "publisher",
    "batched_svd": "idpgan.numerics.svd",
    "load_obfuscator": "idpgan.publish.obfuscators.obfuscator",
    "make_obfuscator": "idpgan.publish.obfuscators.obfuscator",
    "release": "publisher",
}

METHODS = methods_of("publisher")

__getattr__ = lazy_names(__name__, _MODULES)
