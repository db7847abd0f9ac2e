"""One normal distribution a class, from one noisy release of moments: what every generator has to beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.synthesis.gaussian.audit import AUDIT
    from idpgan.synthesis.gaussian.config import Config
    from idpgan.synthesis.gaussian.method import Method
    from idpgan.synthesis.gaussian.starter import suggest

__all__ = ["AUDIT", "INFO", "Config", "Method", "suggest"]

INFO = MethodInfo(
    name="gaussian",
    family="gan",
    units=("image", "person"),
    relation="zero-out-one or replace-one",
    sound=True,
    claimed="privacy.epsilon",
    proven="privacy.epsilon",
    reason="one release of noisy first and second moments of bounded vectors; sampling from them costs nothing",
)

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method", "suggest": "starter"})
