"""The DCGAN generator and the critic that mirrors it, for all sizes of `models.config.SIZES`, conditional or not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from idpgan.errors import InputError
from idpgan.models.config import ModelConfig, classes_of, labels_error, pyramid_of
from idpgan.models.generator import Generator
from idpgan.models.initialize import seeded_init

SLOPE = 0.2  # of LeakyReLU


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
            layers: list[nn.Module] = [nn.BatchNorm2d(channels), nn.ReLU()]
            for _ in range(pyramid.doublings - 1):  # every transposed convolution doubles both sides
                layers.append(nn.ConvTranspose2d(channels, channels // 2, 4, stride=2, padding=1, bias=False))
                channels //= 2
                layers += [nn.BatchNorm2d(channels), nn.ReLU()]
            layers.append(nn.ConvTranspose2d(channels, self.image_shape[0], 4, stride=2, padding=1))
            self.blocks = nn.Sequential(*layers)
            for module in (self.project, *layers):  # DCGAN's initial weights
                if isinstance(module, nn.ConvTranspose2d | nn.Linear):
                    nn.init.normal_(module.weight, std=0.02)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Apply the transposed convolutions to a start map, and crop the borders."""
        if self.embedding is not None:
            z = torch.cat([z, self.embedding(labels)], dim=1)  # (B, 2 * latent_dim)
        maps = self.blocks(self.project(z).view(-1, *self.start_shape))  # (B, C, at least H, at least W)
        top, left = ((found - side) // 2 for found, side in zip(maps.shape[2:], self.image_shape[1:], strict=True))
        return torch.tanh(maps[:, :, top : top + self.image_shape[1], left : left + self.image_shape[2]])


class Critic(nn.Module):
    r"""Score images; the score of an image depends on that image (and its label) alone.

    Convolutions of 4 x 4 and stride 2, LeakyReLU(0.2), one linear score on the flattened last map phi(x). A
    conditional critic adds the projection of `Miyato & Koyama (2018), Eq. (3) <https://arxiv.org/abs/1802.05637>`_:
    ``score(x, y) = w . phi(x) + b + v_y . phi(x)``. Deviation: phi is flattened, not summed over positions, since
    after two halvings a position sees 10 px only.

    Nothing is done in place, so ``torch.func.vmap(torch.func.grad(...))`` and double backward both work.

    Args and errors are those of `DcganGenerator`.

    Attributes:
        num_classes: Classes that the critic is conditioned on, 0 for none.
        num_features: Length of phi(x).
    """

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        super().__init__()
        pyramid = pyramid_of(image_shape)
        self.config = config
        self.image_shape = (int(image_shape[0]), int(image_shape[1]), int(image_shape[2]))
        self.num_classes = classes_of(config, num_classes)
        self.num_features = config.width * 2 ** (pyramid.doublings - 1) * math.prod(pyramid.last)
        with seeded_init(seed, stream=1):
            channels = config.width
            layers = [nn.Conv2d(self.image_shape[0], channels, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE)]
            for _ in range(pyramid.doublings - 1):  # without normalization, unlike DCGAN: it would mix records
                layers += [nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE)]
                channels *= 2
            self.blocks = nn.Sequential(*layers)
            self.head = nn.Linear(self.num_features, 1)
            self.projection = nn.Embedding(self.num_classes, self.num_features) if self.num_classes else None
            self.apply(_initialize)

    def features(self, images: Tensor) -> Tensor:
        """Return phi(x), (B, num_features), the input of the last layer, for images (B, C, H, W) in [-1, 1].

        Raises:
            InputError: If the images have another shape than the critic's.
        """
        if tuple(images.shape[1:]) != self.image_shape:
            raise InputError(f"The critic takes images of shape {self.image_shape}, got {tuple(images.shape[1:])}.")
        return self.blocks(images).flatten(1)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Score images, (B,); higher means more real.

        Args:
            images: (B, C, H, W) in [-1, 1].
            labels: (B,) int64 in [0, num_classes) if conditional, else None.

        Raises:
            InputError: If the images have another shape, or labels are missing or not expected.
        """
        if (labels is None) == (self.projection is not None):
            raise labels_error("critic", self.num_classes)
        phi = self.features(images)  # (B, num_features)
        score = self.head(phi).squeeze(1)  # (B,)
        return score if self.projection is None else score + (self.projection(labels) * phi).sum(1)


def _initialize(module: nn.Module) -> None:
    """Set initial weights that keep the variance of the features: no normalization layer restores it."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, a=SLOPE)  # He et al. (2015), Eq. (15)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    bias = getattr(module, "bias", None)
    if isinstance(bias, Tensor):
        nn.init.zeros_(bias)
