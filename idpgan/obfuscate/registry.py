"""The obfuscators: one folder each, and one row in `_FOLDERS`. Imports nothing heavy.

A folder's ``__init__`` holds ``INFO``, its row of ``idpgan methods``, and gives ``Config`` and ``Method``, an
`idpgan.obfuscate.base.Obfuscator`, on first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType

from idpgan.config import nearest_hint
from idpgan.errors import InputError
from idpgan.methods import MethodInfo

_FOLDERS = ("blur", "pixelate", "disguise", "adversarial_encoder", "pprl_vgan", "obfuscator", "censored", "gp_gan")
_MODULES = {module.INFO.name: module for module in (importlib.import_module(f"idpgan.obfuscate.{f}") for f in _FOLDERS)}
METHODS: Mapping[str, MethodInfo] = {name: module.INFO for name, module in _MODULES.items()}


def load_method(name: str) -> ModuleType:
    """Return the package of an obfuscator.

    Raises:
        InputError: If there is none of that name; the message names the nearest one.
    """
    if name not in METHODS:
        raise InputError(f"'{name}' is no known obfuscator. {nearest_hint(name, METHODS)}")
    return _MODULES[name]
