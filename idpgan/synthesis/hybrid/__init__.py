"""The aggregate's release first, then steps of dp-gan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.synthesis.hybrid.audit import AUDIT
    from idpgan.synthesis.hybrid.method import Config, Method

__all__ = ["AUDIT", "INFO", "Config", "Method"]

INFO = MethodInfo(
    name="hybrid",
    family="gan",
    units=("image",),
    relation="zero-out-one",
    sound=True,
    claimed="privacy.epsilon",
    proven="privacy.epsilon",
    reason="one release of noisy sums, then DP-SGD on a critic; both are charged to one ledger",
)

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "method", "Method": "method"})
