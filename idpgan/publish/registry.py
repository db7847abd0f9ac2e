"""The publishers: one row each. Imports nothing heavy.

A publisher lives in a package of this room whose ``__init__`` imports nothing heavy: ``INFO`` there has its row of
``idpgan methods``, and ``PUBLISHERS``, loaded on first use, the `idpgan.publish.plan.Publisher`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from idpgan.config import nearest_hint
from idpgan.errors import InputError
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.audit.entry import Entry
    from idpgan.publish.plan import Publisher

_PACKAGE = {
    "lap": "sound",
    "lap-shrink": "sound",
    "lap-wiener": "sound",
    "dct": "sound",
    "pix": "sound",
    "eigenfaces": "sound",
    "codebook": "sound",
    "lap-published": "matrix",
    "lra": "matrix",
    "sra": "matrix",
    "esra": "matrix",
    "lrm": "matrix",
    "mm": "matrix",
    "swp": "windows",
    "sort-swp": "windows",
    "swp-sound": "windows",
    "sort-swp-sound": "windows",
}
_MODULES = {package: importlib.import_module(f"idpgan.publish.{package}") for package in set(_PACKAGE.values())}
METHODS: Mapping[str, MethodInfo] = {name: _MODULES[package].INFO[name] for name, package in _PACKAGE.items()}


def method_info(name: str) -> MethodInfo:
    """Return the row of a publisher.

    Raises:
        InputError: If there is none of that name; the message names the nearest one.
    """
    if name not in METHODS:
        raise InputError(f"'{name}' is no known publisher. {nearest_hint(name, METHODS)}")
    return METHODS[name]


def load_publisher(name: str) -> Publisher:
    """Return a publisher.

    Raises:
        InputError: If there is none of that name.
    """
    publisher: Publisher = _MODULES[_PACKAGE[method_info(name).name]].PUBLISHERS[name]
    return publisher


def audit_entry(name: str) -> Entry:
    """Return how a publisher is audited.

    Raises:
        InputError: If there is none of that name.
    """
    return load_publisher(name).audit
