"""The methods that train or evolve something that samples: one folder each, and one row in `_FOLDERS`.

`idpgan.training.registry.Registry` says what a folder holds.
"""

from __future__ import annotations

import importlib

from idpgan.methods import MethodInfo
from idpgan.training.registry import Registry

_FOLDERS = (  # of this package, one per method
    "wgan_gp",
    "aggregate",
    "published",
    "local",
    "dp_gan",
    "hybrid",
    "gaussian",
    "evolution",
)
_MODULES = {module.INFO.name: module for module in (importlib.import_module(f"idpgan.synthesis.{f}") for f in _FOLDERS)}
METHODS: dict[str, MethodInfo] = {name: module.INFO for name, module in _MODULES.items()}
REGISTRY = Registry(_MODULES, METHODS)
audit_entry, build_config = REGISTRY.audit_entry, REGISTRY.build_config
load_method, refuse_unsound = REGISTRY.load_method, REGISTRY.refuse_unsound
