"""A small convolutional classifier by DP-SGD."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.classify.dp_sgd.audit import AUDIT
    from idpgan.classify.dp_sgd.config import Config
    from idpgan.classify.dp_sgd.method import Method

__all__ = ["AUDIT", "INFO", "Config", "Method"]

INFO = MethodInfo(
    name="dp-sgd",
    family="classifier",
    units=("image",),
    relation="zero-out-one",
    sound=True,
    claimed="privacy.epsilon",
    proven="privacy.epsilon",
    reason="DP-SGD on a small classifier: gradients clipped per image, Poisson sampling, Gaussian noise on their sum",
)

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
