"""A classifier trained on its own adversarial examples, without any guarantee of privacy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.classify.pgd.config import Config
    from idpgan.classify.pgd.method import Method

__all__ = ["INFO", "Config", "Method"]

INFO = MethodInfo(
    name="pgd",
    family="classifier",
    units=("image",),
    relation="replace-one",
    sound=None,
    claimed=None,
    proven="inf",
    reason="pgd trains on the raw images without noise: robust against changed inputs, not private",
)

__getattr__ = lazy_names(__name__, {"Config": "config", "Method": "method"})
