"""Generator and critic families, and what loads, checks and averages them; no training code.

The names below are loaded on first use, so that reading a config does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.lazy import lazy_names

if TYPE_CHECKING:
    from idpgan.models.checkpoint import load_generator, save_generator
    from idpgan.models.config import ModelConfig
    from idpgan.models.dcgan import Critic
    from idpgan.models.ema import Ema
    from idpgan.models.families import build_generator
    from idpgan.models.generator import Generator
    from idpgan.models.initialize import seeded_init
    from idpgan.models.validate import validate_private_critic

__all__ = [
    "Critic",
    "Ema",
    "Generator",
    "ModelConfig",
    "build_generator",
    "load_generator",
    "save_generator",
    "seeded_init",
    "validate_private_critic",
]

_MODULES = {
    "Critic": "dcgan",
    "Ema": "ema",
    "Generator": "generator",
    "ModelConfig": "config",
    "build_generator": "families",
    "load_generator": "checkpoint",
    "save_generator": "checkpoint",
    "seeded_init": "initialize",
    "validate_private_critic": "validate",
}

__getattr__ = lazy_names(__name__, _MODULES)
