"""A generator whose images to train on are moved a little and sharpened, each in its own way: augmentation by z.

A released law of handwriting draws strokes that are softer and more alike than those of people. A small motion leaves a
digit what it is, and a pen may be blunt or sharp: neither needs a private image (Simard, Steinkraus and Platt, "Best
practices for convolutional neural networks applied to visual document analysis", 2003). A teacher chooses among what is
varied, so it leaves out what left its class.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.models.config import Purpose
from idpgan.models.generator import Generator
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
