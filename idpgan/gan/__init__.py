"""The GANs: one file per method, imported when it is used, so that this list costs nothing.

A method's module exposes ``INFO`` (its row below), ``Config`` (a `RunConfig`) and ``Method``, which is made by
``Method(config, split, ledger=ledger, device=device)`` and does what `idpgan.training.method.Method` asks.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from idpgan.config import build, nearest_hint
from idpgan.errors import ConfigError
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.gan.config import RunConfig


_ROWS = (
    MethodInfo(
        name="wgan-gp",
        family="gan",
        units=("image",),
        relation="replace-one",
        sound=None,
        claimed=None,
        proven="inf",
        reason="wgan-gp trains on the raw images without noise",
    ),
    MethodInfo(
        name="idp-gan-aggregate",
        family="gan",
        units=("image", "person"),
        relation="zero-out-one or replace-one",
        sound=True,
        claimed="privacy.epsilon",
        proven="privacy.epsilon",
        reason="one release of noisy sums of features of bounded norm; training on them costs nothing",
    ),
    MethodInfo(
        name="idp-gan-published",
        family="gan",
        units=("image",),
        relation="replace-one",
        sound=False,
        claimed="eps1 + eps2",
        proven="n R / b0 where noise is drawn once, that per access where drawn at each, inf where a batch shares it",
        reason="the paper sizes its noise by the first layer and the batch, and charges eps1 + eps2 for any training",
    ),
    MethodInfo(
        name="idp-gan-local",
        family="gan",
        units=("image",),
        relation="replace-one",
        sound=True,
        claimed=None,
        proven="privacy.epsilon",
        reason="each image and its label are perturbed by themselves, once; all else is computed from the result",
    ),
    MethodInfo(
        name="dp-gan",
        family="gan",
        units=("image",),
        relation="zero-out-one",
        sound=True,
        claimed="privacy.epsilon",
        proven="privacy.epsilon",
        reason="DP-SGD on the critic: gradients clipped per image, Poisson sampling, Gaussian noise on their sum",
    ),
    MethodInfo(
        name="hybrid",
        family="gan",
        units=("image",),
        relation="zero-out-one",
        sound=True,
        claimed="privacy.epsilon",
        proven="privacy.epsilon",
        reason="one release of noisy sums, then DP-SGD on a critic; both are charged to one ledger",
    ),
)
METHODS: Mapping[str, MethodInfo] = {row.name: row for row in _ROWS}


def refuse_unsound(config: RunConfig) -> None:
    """Refuse a method whose paper claims what nothing proves, unless the user says so.

    Raises:
        ConfigError: Saying what is proven, and how to run it all the same.
    """
    info = METHODS[config.method.name]
    if info.sound is False and not config.privacy.accept_unsound:
        raise ConfigError(
            f"method '{info.name}' is unsound: {info.reason}. Its proven epsilon is {info.proven}. To run it all the "
            "same, set privacy.accept_unsound = true or give --accept-unsound."
        )


def load_method(name: str) -> ModuleType:
    """Import the module of a method; ``wgan-gp`` lies in ``wgan_gp.py``, ``idp-gan-x`` in ``idp_x.py``.

    Raises:
        ConfigError: If there is none of that name; the message names the nearest one.
    """
    if name not in METHODS:
        raise ConfigError(f"method.name = '{name}' is no known method. {nearest_hint(name, METHODS)}")
    return importlib.import_module(f"{__name__}.{name.replace('idp-gan-', 'idp-').replace('-', '_')}")


def build_config(table: Mapping[str, Any], where: str) -> RunConfig:
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
        raise ConfigError(f"{where} names no method. Set method.name to one of: {', '.join(METHODS)}.")
    config: RunConfig = build(load_method(name).Config, table, where)
    return config
