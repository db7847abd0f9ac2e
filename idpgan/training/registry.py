"""Methods by name: what a room of methods is looked up by, and all rooms together. Imports nothing heavy."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from idpgan.config import build, nearest_hint
from idpgan.errors import ConfigError, InputError
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.training.config import RunConfig


class Registry:
    """Methods that `idpgan train` knows.

    A method is a package whose ``__init__`` imports nothing heavy. It holds ``INFO``, the method's row of ``idpgan
    methods``, and gives ``Config`` (a `RunConfig`) and ``Method``, which is made by ``Method(config, split,
    ledger=ledger, device=device)`` and does what `idpgan.training.method.Method` asks, when they are first used. A
    method with a guarantee gives ``AUDIT`` too, the `idpgan.audit.cases.Entry` by which its release is audited.

    Args:
        modules: Packages by method name.
        infos: Their ``INFO``, by the same names.
    """

    def __init__(self, modules: MutableMapping[str, ModuleType], infos: MutableMapping[str, MethodInfo]) -> None:
        self.modules, self.infos = modules, infos

    def joined(self, other: Registry) -> Registry:
        """Return both together: a view, not a copy."""
        return Registry(ChainMap(self.modules, other.modules), ChainMap(self.infos, other.infos))

    def refuse_unsound(self, config: RunConfig) -> None:
        """Refuse a method whose paper claims what nothing proves, unless the user says so.

        Raises:
            ConfigError: Saying what is proven, and how to run it all the same.
        """
        info = self.infos[config.method.name]
        if info.sound is False and not config.privacy.accept_unsound:
            raise ConfigError(
                f"method '{info.name}' is unsound: {info.reason}. Its proven epsilon is {info.proven}. To run it all "
                "the same, set privacy.accept_unsound = true or give --accept-unsound."
            )

    def load_method(self, name: str) -> ModuleType:
        """Return the package of a method.

        Raises:
            ConfigError: If there is none of that name; the message names the nearest one.
        """
        if name not in self.infos:
            raise ConfigError(f"method.name = '{name}' is no known method. {nearest_hint(name, self.infos)}")
        return self.modules[name]

    def audit_entry(self, name: str) -> Any:
        """Return how a method is audited, an `idpgan.audit.cases.Entry`.

        Raises:
            InputError: If it has no guarantee to audit, or there is none of that name.
        """
        module = self.load_method(name)
        nothing = self.infos[name].nothing_to_audit
        if nothing:
            raise InputError(nothing)
        return module.AUDIT

    def build_config(self, table: Mapping[str, Any], where: str) -> RunConfig:
        """Build the config class of the method that the table names.

        Args:
            table: The sections as read from TOML.
            where: Names the table in messages, for example the file.

        Raises:
            ConfigError: If method.name is missing or unknown, or a key or value is refused.
        """
        section = table.get("method", {})
        name = section.get("name") if isinstance(section, Mapping) else None
        if not isinstance(name, str):
            raise ConfigError(f"{where} names no method. Set method.name to one of: {', '.join(self.infos)}.")
        config: RunConfig = build(self.load_method(name).Config, table, where)
        return config
