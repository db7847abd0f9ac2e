"""DCGAN generators for all sizes of `models.config.SIZES`, conditional or not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from idpgan.models.config import ModelConfig, pyramid_of
from idpgan.models.generator import Generator
from idpgan.models.initialize import group_norm, seeded_init


class DcganGenerator(Generator):
    """Map latent vectors, and classes if conditional, to images in [-1, 1].

    The layout is that of DCGAN (`Radford et al. 2016 <https://arxiv.org/abs/1511.06434>`_): a start map from z (and
    a learned class embedding beside it), transposed convolutions of 4 x 4 and stride 2, normalization, ReLU, tanh.
    Normalization may be BatchNorm: a generator sees no private record.

    Args:
        image_shape: (C, H, W) in px; (H, W) in `SIZES`, C in {1, 3}.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Seed of the initial weights, >= 0. The caller's random state is neither read nor changed.

    Raises:
        ConfigError: If the shape is not supported, or classes are asked for and there are none.
    """

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        pyramid = pyramid_of(image_shape)
        super().__init__(config, image_shape, num_classes, config.latent_dim)
        channels = config.width * 2 ** (pyramid.doublings - 1)
        self.start_shape = (channels, *pyramid.start)
        with seeded_init(seed):
            self.embedding = nn.Embedding(self.num_classes, config.latent_dim) if self.num_classes else None
            inputs = config.latent_dim * (2 if self.num_classes else 1)
            self.project = nn.Linear(inputs, math.prod(self.start_shape), bias=False)
            self.blocks = nn.Sequential(*_blocks(config, channels, pyramid.doublings, self.image_shape[0]))
            self.apply(_initialize)

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """See `Generator.forward`."""
        if self.embedding is not None:
            z = torch.cat([z, self.embedding(labels)], dim=1)  # (B, 2 * latent_dim)
        maps = self.blocks(self.project(z).view(-1, *self.start_shape))  # (B, C, at least H, at least W)
        top, left = ((found - side) // 2 for found, side in zip(maps.shape[2:], self.image_shape[1:], strict=True))
        return torch.tanh(maps[:, :, top : top + self.image_shape[1], left : left + self.image_shape[2]])


def _blocks(config: ModelConfig, channels: int, doublings: int, image_channels: int) -> Iterator[nn.Module]:
    """Yield the layers from start map to image; every transposed convolution doubles both sides."""
    yield from (_norm(config, channels), nn.ReLU())
    for _ in range(doublings - 1):
        yield nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1, bias=False)
        channels //= 2
        yield from (_norm(config, channels), nn.ReLU())
    yield nn.ConvTranspose2d(channels, image_channels, 4, stride=2, padding=1)


def _norm(config: ModelConfig, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if config.generator_norm == "batch" else group_norm(channels)


def _initialize(module: nn.Module) -> None:
    """Set DCGAN's initial weights: N(0, 0.02^2) for (transposed) convolutions, the start map included."""
    if isinstance(module, nn.ConvTranspose2d | nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
