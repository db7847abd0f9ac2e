"""dp-GAN: DP-SGD on the critic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names
from idpgan.methods import MethodInfo

if TYPE_CHECKING:
    from idpgan.synthesis.dp_gan.audit import AUDIT
    from idpgan.synthesis.dp_gan.config import Config
    from idpgan.synthesis.dp_gan.method import Method

__all__ = ["AUDIT", "INFO", "Config", "Method"]

INFO = MethodInfo(
    name="dp-gan",
    family="gan",
    units=("image",),
    relation="zero-out-one",
    sound=True,
    claimed="privacy.epsilon",
    proven="privacy.epsilon",
    reason="DP-SGD on the critic: gradients clipped per image, Poisson sampling, Gaussian noise on their sum",
)

__getattr__ = lazy_names(__name__, {"AUDIT": "audit", "Config": "config", "Method": "method"})
