"""Collaborative training by selective sharing of gradients, with or without the noise of its paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.classify.dssgd.audit import AUDIT
    from idpgan.classify.dssgd.config import Config
    from idpgan.classify.dssgd.method import Method

__all__ = ["AUDIT", "INFO", "Config", "Method"]

INFO = MethodInfo(
    name="dssgd",
    family="classifier",
    units=("image",),
    relation="replace-one",
    sound=False,
    claimed="privacy.epsilon / uploads, per parameter and round",
    proven="rounds * privacy.epsilon; inf without noise",
    reason="the paper counts one parameter of one round, and every round uploads many; without noise nothing is proven",
)

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
