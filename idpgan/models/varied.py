"""A generator whose images to train on are moved a little and sharpened, each in its own way: augmentation by z.

A released law of handwriting draws strokes that are softer and more alike than those of people. A small motion leaves a
digit what it is, and a pen may be blunt or sharp: neither needs a private image (Simard, Steinkraus and Platt, "Best
practices for convolutional neural networks applied to visual document analysis", 2003). A teacher chooses among what is
varied, so it leaves out what left its class.

A generator that draws by a released law, and public pictures that were moved onto that law, or agreed with.

What moves them, and what a teacher chooses, is in `idpgan.synthesis.move`. This generator holds the
pictures, so that whoever receives it needs neither the public images nor their source.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from idpgan.data.annotations import UNKNOWN, Annotations
from idpgan.data.images import to_float
from idpgan.models.config import Purpose
from idpgan.models.gaussian import basis_of
from idpgan.models.generator import Generator
from idpgan.models.pictures import HeldPictures
from idpgan.models.simulators import uniform_of
from idpgan.models.warp import MOVES, move, moves_of

_LIMITED = 6  # numbers of a motion that are even within limits; the others are normal
_SHARPEST = 1.5, 3.0  # an edge gets steeper by up to that factor


class VariedGenerator(Generator):
    """Draw by a law, then move each image and sharpen it by the first latent numbers.

    To be looked at, images are sharpened alike and not moved.

    Args:
        law: A generator whose config, shape and classes this one has; `Drawing.varied` is the strength of the
            motions, 1 that of `idpgan.models.warp.augment`.
    """

    def __init__(self, law: Generator) -> None:
        own = MOVES + 1
        super().__init__(law.config, law.image_shape, law.num_classes, own + law.latent_dim)
        self.law, self.classes = law, law.classes
        self.shared = tuple(own + place for place in law.shared)
        self.choosing = tuple(own + place for place in law.choosing)

    def temperatures(self, purpose: Purpose) -> Tensor:
        """Return the factors on the latent numbers; those of the motion are 0 in images to look at."""
        own = torch.full((MOVES + 1,), float(purpose is Purpose.TRAINING))
        return torch.cat([own, self.law.temperatures(purpose)])

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Draw images of latent numbers (B, latent_dim)."""
        limited, normal, steep, rest = z.split([_LIMITED, MOVES - _LIMITED, 1, self.law.latent_dim], dim=1)
        drawn = self.law.images(rest, labels)
        moved = move(drawn, moves_of(uniform_of(limited), normal, self.config.drawn.varied))
        low, high = _SHARPEST
        factor = (low + (high - low) * uniform_of(steep))[:, :, None, None]
        return torch.tanh(factor * moved) / torch.tanh(factor)


class MovedGenerator(HeldPictures):
    """Draw one of the moved pictures of the image's class, with noise of its own, or an image by the law.

    Pictures that were agreed with have no such noise. To be looked at, all images are moved pictures without it, but
    of those that were agreed with a share; of images to train on, a share
    `Drawing.plain_share` is drawn by the law. The first latent number says which of both an image is, the second
    chooses the picture, the next are the noise on its coefficients, and the others are those of the law. The candidates
    of an image differ by the last alone, so that a teacher chooses among the law's images, never among moved pictures.

    Args:
        law: A generator of the released law, whose config, shape and classes this one has.
        pictures: Number of pictures of each class.

    Attributes:
        smear: Standard deviation of the noise on each low DCT coefficient, (max(num_classes, 1), q).
    """

    def __init__(self, law: Generator, pictures: int) -> None:
        self._noise = basis_of(law.image_shape, law.config.latent_dim).shape[1] if law.config.moved else 0
        super().__init__(law.config, law.image_shape, law.num_classes, 2 + self._noise + law.latent_dim)
        rows = max(self.num_classes, 1)
        self.law, self.classes = law, law.classes
        self.shared = tuple(range(2 + self._noise))  # a teacher knows private images and the law, no moved pictures
        self.choosing = (0, 1, *(2 + self._noise + place for place in law.choosing))
        self.pictures = nn.Buffer(torch.zeros(rows, pictures, *law.image_shape, dtype=torch.uint8))
        self.smear = nn.Buffer(torch.zeros(rows, self._noise))

    def temperatures(self, purpose: Purpose) -> Tensor:
        """Return the factors on the latent numbers; of moved pictures kind and noise have 0 in images to look at."""
        own = torch.full((2 + self._noise,), float(purpose is Purpose.TRAINING or not self.config.moved))
        own[1] = 1.0
        return torch.cat([own, self.law.temperatures(purpose)])

    def shows_public(self, z: Tensor) -> Tensor:
        """Return which images are no images of the law; see `Generator.shows_public`."""
        return (2 * uniform_of(z[:, 0]) - 1).abs() <= 1 - self.config.drawn.plain_share

    def annotations(self, z: Tensor, labels: Tensor | None) -> Annotations:
        """See `HeldPictures.annotations`; of an image of the law nothing is known: NaN, and `UNKNOWN` in its mask."""
        found, by_law = super().annotations(z[:, 1:], labels), ~self.shows_public(z).cpu()
        for values, unknown in zip(found, (torch.nan, UNKNOWN, torch.nan), strict=True):
            values[by_law] = unknown
        return found

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Draw images of latent numbers (B, latent_dim)."""
        _, noise, rest = z.split([2, self._noise, self.law.latent_dim], dim=1)
        plain = ~self.shows_public(z)
        moved, chosen = (place[~plain] for place in self.chosen(z[:, 1], labels))
        images = z.new_empty(len(z), *self.image_shape)
        pictures = to_float(self.pictures[moved, chosen])
        if self._noise:
            basis = basis_of(self.image_shape, self.config.latent_dim).to(z)
            smeared = ((noise[~plain] * self.smear[moved]) @ basis.T).view(-1, *self.image_shape)
            pictures = (pictures + smeared).clamp(-1, 1)
        images[~plain] = pictures
        images[plain] = self.law.images(rest[plain], None if labels is None else labels[plain])
        return images
