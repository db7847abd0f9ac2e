"""Generators that hold finished pictures, and draw one of its class: whoever receives them needs no renderer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from idpgan.config import Section
from idpgan.data.annotations import POINTS, POSE, Annotations
from idpgan.data.images import to_float
from idpgan.models.config import ModelConfig
from idpgan.models.generator import Generator
from idpgan.models.simulators import uniform_of

ANNOTATIONS = "annotations_"  # begins the names of tensors
_Word = Annotated[str, Field(pattern=r"^[a-z_]{1,20}$")]
_Three = Annotated[list[float], Field(min_length=3, max_length=3)]


class Asked(Section):
    """In words, what a release asked the pictures of a class to be like.

    Attributes:
        images: How many images the class has, by the release.
        images_std: Standard deviation of the noise on that.
        traits: Trait of the pictures -> its mean before, and after, and the standard deviation of the noise on the
            latter.
    """

    images: float
    images_std: float
    traits: dict[_Word, _Three] = Field(max_length=8)


class HeldPictures(Generator):
    """A generator that holds pictures, one of which a latent number chooses.

    It may be annotated: it then also holds where the parts of the pictures lie, in buffers named `ANNOTATIONS` and a
    field of `Annotations`. They come from public portraits and the law that moved them, and cost nothing.

    Attributes:
        pictures: uint8 (max(num_classes, 1), pictures of each, C, H, W); black before they are set.
    """

    pictures: Tensor

    def hold_annotations(self, annotations: Annotations | None = None) -> None:
        """Hold where the parts of the pictures lie, (rows, pictures, ...) each; None makes room for it."""
        self.annotated = True
        each, device = self.pictures.shape[:2], self.pictures.device
        points, masks = torch.zeros(*each, len(POINTS), 2), torch.zeros_like(self.pictures[:, :, 0])
        room = Annotations(points, masks, torch.zeros(*each, len(POSE)))
        for name, values in (annotations or room)._asdict().items():
            self.register_buffer(ANNOTATIONS + name, values.to(device))

    def chosen(self, choice: Tensor, labels: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return class and position of the pictures that latent numbers (B,) choose, (B,) each."""
        rows = torch.zeros(len(choice), dtype=torch.int64, device=choice.device) if labels is None else labels
        most = self.pictures.shape[1]
        return rows, (uniform_of(choice) * most).long().clamp(max=most - 1)

    def annotations(self, z: Tensor, labels: Tensor | None) -> Annotations:
        """Return where the parts of the pictures lie that the first of the latent numbers (B, any) chooses."""
        chosen = self.chosen(z[:, 0], labels)
        return Annotations(*(self.get_buffer(ANNOTATIONS + name)[chosen].cpu() for name in Annotations._fields))


class PicturesGenerator(HeldPictures):
    """Draw a picture of the image's class, each as often as any other.

    The only latent number chooses it, so images of one seed repeat pictures as draws with replacement do.

    Args:
        config: The [model] section: ``codes`` pictures a class.
        image_shape: (C, H, W) in px of any size.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Of no use here.

    Attributes:
        asked: Of each class, or of all images; none before they are set.
    """

    asked: tuple[Asked, ...] = ()

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        super().__init__(config, image_shape, num_classes, latent_dim=1)
        rows = max(self.num_classes, 1)
        self.choosing = (0,)
        self.pictures = nn.Buffer(torch.zeros(rows, config.codes, *self.image_shape, dtype=torch.uint8))
        self.scale = nn.Parameter(torch.ones(1))  # a generator has a weight, whose device is its own

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Return the pictures that latent numbers (B, 1) choose."""
        return to_float(self.pictures[self.chosen(z[:, 0], labels)])
