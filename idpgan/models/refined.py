"""A Gaussian that is refined: low DCT coefficients of a normal distribution, then a few convolutions on the image.

What the moments of private images say is in the normal distribution and stays there: its mean and factor are no weights
of the training. The convolutions begin with nothing and add what a normal distribution of low frequencies cannot have,
edges above all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from idpgan.models.config import ModelConfig
from idpgan.models.gaussian import GaussianGenerator
from idpgan.models.initialize import seeded_init
from idpgan.numerics.dct import cosines

_DILATIONS = (1, 2, 4)  # of the hidden convolutions: with the last one they see 17 x 17 pixels
_PLACES = ((0, 1), (1, 0), (1, 1), (0, 2), (2, 0))  # cosines that tell a convolution where it is
_LINEAR = 0.8  # brightness, of 1, up to which a pixel stays what it is


class RefinedGenerator(GaussianGenerator):
    """Draw images as a `GaussianGenerator`, add the output of a small convolutional network, and clamp smoothly.

    The network sees the drawn image, a plane of noise of half its size, and five cosines of the place. Its last layer
    is zero at first, so that images are those of the normal distribution until it is trained. It does not see the
    class: it would draw a faint texture as a mark of it, which a classifier of the images learns instead of the class.

    Args:
        config: The [model] section: ``latent_dim`` coefficients, ``width`` feature maps.
        image_shape: (C, H, W) in px of any size, C in {1, 3}.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Of the weights.

    Attributes:
        mean: (max(num_classes, 1), q), not trained.
        factor: (max(num_classes, 1), q, q), not trained.
    """

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        super().__init__(config, image_shape, num_classes, seed=seed)
        self.mean.requires_grad_(False)
        self.factor.requires_grad_(False)
        channels, height, width = self.image_shape
        self._coefficients, self._noise_shape = self.latent_dim, (-(-height // 2), -(-width // 2))
        self.latent_dim += self._noise_shape[0] * self._noise_shape[1]
        maps = [channels + 1 + len(_PLACES), *[config.width] * len(_DILATIONS)]
        with seeded_init(seed):
            self.hidden = nn.ModuleList(
                nn.Conv2d(before, after, 3, padding=dilation, dilation=dilation)
                for before, after, dilation in zip(maps[:-1], maps[1:], _DILATIONS, strict=True)
            )
        self.last = nn.Conv2d(config.width, channels, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """See `Generator.forward`."""
        coefficients, noise = z.split([self._coefficients, z.shape[1] - self._coefficients], dim=1)
        drawn = self.unclamped(coefficients, labels)
        return softly_clamped(drawn + self._residual(softly_clamped(drawn), noise))

    def _residual(self, images: Tensor, noise: Tensor) -> Tensor:
        """Return what is added to images (B, C, H, W)."""
        num, (height, width) = len(images), self.image_shape[1:]
        plane = noise.view(num, 1, *self._noise_shape).repeat_interleave(2, 2).repeat_interleave(2, 3)
        places = cosines(height, width, _PLACES).T.to(images).view(1, -1, height, width) * (height * width) ** 0.5
        hidden = torch.cat([images, plane[:, :, :height, :width], places.expand(num, -1, -1, -1)], dim=1)
        for layer in self.hidden:
            hidden = functional.gelu(layer(hidden))
        residual: Tensor = self.last(hidden)
        return residual


def softly_clamped(images: Tensor) -> Tensor:
    """Bring pixels into [-1, 1]: those within 0.8 stay, the rest comes ever nearer to the end, without a kink.

    A hard clamp has no gradient beyond the end, and a pixel that is there would never come back.
    """
    inner = images.clamp(-_LINEAR, _LINEAR)
    return inner + (1 - _LINEAR) * torch.tanh((images - inner) / (1 - _LINEAR))
