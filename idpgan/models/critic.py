"""Critics that mirror the generators, without any layer that mixes records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from idpgan.errors import InputError
from idpgan.models.config import ModelConfig, classes_of, labels_error, pyramid_of
from idpgan.models.initialize import group_norm, seeded_init

SLOPE = 0.2  # of LeakyReLU


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
            self.blocks = nn.Sequential(*_blocks(config, self.image_shape[0], pyramid.doublings))
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


def _blocks(config: ModelConfig, image_channels: int, halvings: int) -> Iterator[nn.Module]:
    """Yield the layers from image to last map; no norm follows the first convolution, as in DCGAN."""
    channels = config.width
    yield from (nn.Conv2d(image_channels, channels, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE))
    for _ in range(halvings - 1):
        yield nn.Conv2d(channels, 2 * channels, 4, stride=2, padding=1)
        channels *= 2
        if config.critic_norm != "none":
            yield group_norm(channels) if config.critic_norm == "group" else group_norm(channels, groups=1)
        yield nn.LeakyReLU(SLOPE)


def _initialize(module: nn.Module) -> None:
    """Set initial weights that keep the variance of the features: there is no norm to restore it."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, a=SLOPE)  # He et al. (2015), Eq. (15)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    bias = getattr(module, "bias", None)
    if isinstance(bias, Tensor):
        nn.init.zeros_(bias)
