"""IDP-GAN as published: a perturbed first layer and a noisy Taylor loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.synthesis.published.audit import AUDIT
    from idpgan.synthesis.published.config import Config
    from idpgan.synthesis.published.method import Method

__all__ = ["AUDIT", "INFO", "Config", "Method"]

INFO = MethodInfo(
    name="idp-gan-published",
    family="gan",
    units=("image",),
    relation="replace-one",
    sound=False,
    claimed="eps1 + eps2",
    proven="n R / b0 where noise is drawn once, that per access where drawn at each, inf where a batch shares it",
    reason="the paper sizes its noise by the first layer and the batch, and charges eps1 + eps2 for any training",
)

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
