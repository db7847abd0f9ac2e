"""A network split between phones and a cloud: few noisy features of each image, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.classify.arden.audit import AUDIT
    from idpgan.classify.arden.config import Config
    from idpgan.classify.arden.method import Method

__all__ = ["AUDIT", "INFO", "Config", "Method"]

INFO = MethodInfo(
    name="arden",
    family="classifier",
    units=("image",),
    relation="replace-one",
    sound=False,
    claimed="ln((1 - mu) e^(2 B / b) + mu), the price of one feature",
    proven="privacy.epsilon",
    reason="the paper prices one noisy feature, and every image sends many; a pixel that is nullified hides no image",
)

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
