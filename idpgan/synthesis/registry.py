"""The methods that train or evolve something that samples: one folder each, and one row in `_FOLDERS`.

A folder's ``__init__`` imports nothing heavy. It holds ``INFO``, the method's row of ``idpgan methods``, and gives
``Config`` (a `RunConfig`) and ``Method``, which is made by ``Method(config, split, ledger=ledger, device=device)`` and
does what `idpgan.training.method.Method` asks, when they are first used. A method with a guarantee gives ``AUDIT`` too,
the `idpgan.audit.cases.Entry` by which its release is audited.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from idpgan.config import build, nearest_hint
from idpgan.errors import ConfigError, InputError
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.audit.cases import Entry
    from idpgan.training.config import RunConfig


_FOLDERS = (  # of this package, one per method
    "wgan_gp",
    "aggregate",
    "published",
    "local",
    "dp_gan",
    "hybrid",
    "gaussian",
)
_MODULES = {module.INFO.name: module for module in (importlib.import_module(f"idpgan.synthesis.{f}") for f in _FOLDERS)}
METHODS: Mapping[str, MethodInfo] = {name: module.INFO for name, module in _MODULES.items()}


def refuse_unsound(config: RunConfig) -> None:
    """Raise a `ConfigError` for a method whose paper claims what nothing proves, unless the user says so.

    The message says what is proven, and how to run it all the same.
    """
    info = METHODS[config.method.name]
    if info.sound is False and not config.privacy.accept_unsound:
        raise ConfigError(
            f"method '{info.name}' is unsound: {info.reason}. Its proven epsilon is {info.proven}. To run it all the "
            "same, set privacy.accept_unsound = true or give --accept-unsound."
        )


def load_method(name: str) -> ModuleType:
    """Return the package of a method; an unknown name raises a `ConfigError` that names the nearest one."""
    if name not in METHODS:
        raise ConfigError(f"method.name = '{name}' is no known method. {nearest_hint(name, METHODS)}")
    return _MODULES[name]


def audit_entry(name: str) -> Entry:
    """Return how a method is audited; an unknown name, or no guarantee, raises an `InputError`."""
    module = load_method(name)
    nothing = METHODS[name].nothing_to_audit
    if nothing:
        raise InputError(nothing)
    entry: Entry = module.AUDIT
    return entry


def build_config(table: Mapping[str, Any], where: str) -> RunConfig:
    """Build the config class of the method that a table of TOML sections names.

    ``where`` names the table in messages, for example the file.

    Raises:
        ConfigError: If method.name is missing or unknown, or a key or value is refused.
    """
    section = table.get("method", {})
    name = section.get("name") if isinstance(section, Mapping) else None
    if not isinstance(name, str):
        raise ConfigError(f"{where} names no method. Set method.name to one of: {', '.join(METHODS)}.")
    config: RunConfig = build(load_method(name).Config, table, where)
    return config
