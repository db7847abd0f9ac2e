"""The methods that train a private classifier: one folder each, and one row in `_FOLDERS`.

`idpgan.training.registry.Registry` says what a folder holds.
"""

from __future__ import annotations

import importlib

from idpgan.methods import MethodInfo
from idpgan.training.registry import Registry

_FOLDERS = (  # of this package, one per method
    "scattering_linear",
    "dp_sgd",
    "pgd",
    "dssgd",
    "arden",
)
_MODULES = {module.INFO.name: module for module in (importlib.import_module(f"idpgan.classify.{f}") for f in _FOLDERS)}
METHODS: dict[str, MethodInfo] = {name: module.INFO for name, module in _MODULES.items()}
REGISTRY = Registry(_MODULES, METHODS)
