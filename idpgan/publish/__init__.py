"""Publishers release matrices for matrices; each image is a separate record.

`release` is the only entry point. ``METHODS`` states what each publisher claims and what is proven; the algorithms as
published prove nothing and need ``accept_unsound=True``. Each family of methods has a package: `sound`, `matrix` and
`windows`. Names other than ``METHODS`` are loaded on first use, so that the command line stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import methods_of

if TYPE_CHECKING:
    from idpgan.numerics.svd import batched_svd
    from idpgan.publish.publisher import Release, release

__all__ = ["METHODS", "Release", "batched_svd", "release"]

_MODULES = {"Release": "publisher", "batched_svd": "idpgan.numerics.svd", "release": "publisher"}

METHODS = methods_of("publisher")

__getattr__ = lazy_names(__name__, _MODULES)
