"""The least memory that training two networks takes, known without building them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from idpgan.models.config import ModelConfig
from idpgan.models.critic import Critic
from idpgan.models.families import build_generator

_COPIES = 4  # of each weight: itself, its gradient, and Adam's two averages
_FLOAT = 4  # bytes


def weight_bytes(network: nn.Module) -> int:
    """Return the bytes of one copy of the weights."""
    return sum(parameter.numel() for parameter in network.parameters()) * _FLOAT


def generator_bytes(model: ModelConfig, image_shape: Sequence[int], num_classes: int) -> int:
    """Return the bytes that training a generator keeps, whatever the batch."""
    with torch.device("meta"):
        return _COPIES * weight_bytes(build_generator(model, image_shape, num_classes))


def critic_bytes(model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int) -> int:
    """Return the bytes of one copy of a critic's weights."""
    with torch.device("meta"):
        return weight_bytes(Critic(model, image_shape, num_classes))


def batch_bytes(model: ModelConfig, image_shape: Sequence[int], batch_size: int) -> int:
    """Return the least bytes of a batch: the feature maps next to the image, at half its size and with gradients."""
    channels, height, width = image_shape
    return batch_size * _FLOAT * (math.prod((channels, height, width)) + model.width * height * width // 2)
