"""Private Evolution: a simulator proposes, noisy votes of the private records choose; no network is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.synthesis.evolution.audit import AUDIT
    from idpgan.synthesis.evolution.config import Config
    from idpgan.synthesis.evolution.method import Method
    from idpgan.synthesis.evolution.starter import suggest

__all__ = ["AUDIT", "INFO", "Config", "Method", "suggest"]

INFO = MethodInfo(
    name="evolution",
    family="gan",
    units=("image", "person"),
    relation="zero-out-one or replace-one",
    sound=True,
    claimed="privacy.epsilon",
    proven="privacy.epsilon",
    reason="a noisy histogram of votes at each iteration, one vote a record; nothing else reads a private image",
)

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method", "suggest": "starter"})
