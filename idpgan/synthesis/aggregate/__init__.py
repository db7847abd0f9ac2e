"""IDP-GAN, aggregate form: one noisy release of sums of features."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.synthesis.aggregate.audit import AUDIT
    from idpgan.synthesis.aggregate.config import Config
    from idpgan.synthesis.aggregate.method import Method
    from idpgan.synthesis.aggregate.starter import suggest

__all__ = ["AUDIT", "INFO", "Config", "Method", "suggest"]

INFO = MethodInfo(
    name="idp-gan-aggregate",
    family="gan",
    units=("image", "person"),
    relation="zero-out-one or replace-one",
    sound=True,
    claimed="privacy.epsilon",
    proven="privacy.epsilon",
    reason="one release of noisy sums of features of bounded norm; training on them costs nothing",
)

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method", "suggest": "starter"})
