"""Networks of somebody else's code, as the classifiers and generators that the rest of the package takes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from idpgan.errors import InputError
from idpgan.models.config import ModelConfig
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import PrivateClassifier


class ForeignClassifier(PrivateClassifier):
    """A module that maps images to logits (B, K).

    Args:
        module: Called with float images (B, C, H, W).
        image_shape: (C, H, W).
        classes: Names.
        pixels: The numbers by which the module knows black and white.
    """

    network = "foreign"

    def __init__(
        self, module: nn.Module, image_shape: Sequence[int], classes: Sequence[str], pixels: tuple[float, float]
    ) -> None:
        super().__init__(image_shape, classes)
        self.module, self.pixels = module, pixels

    def forward(self, images: Tensor) -> Tensor:
        """Return logits of images in [-1, 1]."""
        black, white = self.pixels
        logits: Tensor = self.module(black + (images + 1) * ((white - black) / 2))
        if logits.shape != (len(images), len(self.classes)):
            raise InputError(
                f"The module maps {len(images)} images to {tuple(logits.shape)}, and a classifier of "
                f"{len(self.classes)} classes gives ({len(images)}, {len(self.classes)})."
            )
        return logits


class ForeignGenerator(Generator):
    """A module that maps latent vectors (B, latent_dim), and labels (B,) if it has classes, to images (B, C, H, W).

    Args:
        module: Called as ``module(z)`` or ``module(z, labels)``.
        image_shape: (C, H, W).
        classes: Names; empty = unconditional.
        latent_dim: Standard normal numbers per image.
        pixels: The numbers by which the module means black and white; images are clamped to them.
    """

    def __init__(
        self,
        module: nn.Module,
        image_shape: Sequence[int],
        classes: Sequence[str],
        latent_dim: int,
        pixels: tuple[float, float],
    ) -> None:
        super().__init__(ModelConfig(conditional=bool(classes)), image_shape, len(classes), latent_dim)
        self.classes = tuple(classes)
        self.module, self.pixels = module, pixels

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Return images in [-1, 1]."""
        drawn: Tensor = self.module(z) if labels is None else self.module(z, labels)
        if drawn.shape != (len(z), *self.image_shape):
            raise InputError(
                f"The module draws images of shape {tuple(drawn.shape[1:])}, and image_shape is {self.image_shape}."
            )
        black, white = self.pixels
        return ((drawn - black) * (2 / (white - black)) - 1).clamp(-1, 1)
