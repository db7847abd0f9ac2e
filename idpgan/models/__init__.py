"""Generator and critic families, and the code that loads, checks and averages them, without any training code.

The names below are loaded on first use, so that reading a config does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.checks import lazy_names

if TYPE_CHECKING:
    from idpgan.models.checkpoint import build_generator as build_generator
    from idpgan.models.checkpoint import load_generator as load_generator
    from idpgan.models.checkpoint import save_generator as save_generator
    from idpgan.models.config import ModelConfig as ModelConfig
    from idpgan.models.dcgan import Critic as Critic
    from idpgan.models.generator import Generator as Generator
    from idpgan.models.initialize import Ema as Ema
    from idpgan.models.initialize import seeded_init as seeded_init
    from idpgan.models.validate import validate_private_critic as validate_private_critic

__getattr__ = lazy_names(
    __name__,
    {
        "Critic": "dcgan",
        "Ema": "initialize",
        "Generator": "generator",
        "ModelConfig": "config",
        "build_generator": "checkpoint",
        "load_generator": "checkpoint",
        "save_generator": "checkpoint",
        "seeded_init": "initialize",
        "validate_private_critic": "validate",
    },
)
