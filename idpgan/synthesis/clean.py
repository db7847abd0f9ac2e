"""Moved pictures, cleaned by a denoiser that has learned from public images alone; post-processing, as the move is.

What a release leaves of its noise in a moved picture is a pattern that no face has. White noise hides it, and a
diffusion generator (`idpgan.models.diffusion`, trained by the method edm on portraits, say) takes both away (Meng et
al., "SDEdit: guided image synthesis and editing with stochastic differential equations", 2022). Its strength follows
from the release: the standard deviation of the noise on the mean of a class, where it is largest, and at most 0.7.
Below the least level that the network knows nothing is cleaned. Every picture has noise of its own, so that it needs no
further one against the common pattern of its class (`synthesis.move`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from idpgan.data.load import DataShape
from idpgan.errors import ConfigError
from idpgan.models.adapters import label_rows
from idpgan.models.checkpoint import origin_weights
from idpgan.models.config import Origin
from idpgan.models.diffusion import LEAST, DiffusionGenerator
from idpgan.models.families import build_origin
from idpgan.synthesis.moments import NormalsNoise
from idpgan.training.config import RunConfig

_MOST = 0.7  # more leaves too little of a picture
_AT_ONCE = 250  # images


class Cleaner:
    """A denoiser of public images, and which of its classes are those of the data.

    Args:
        generator: Of images of the same shape.
        rows: For each class of the data, the position of its class; empty for a generator without classes.
    """

    def __init__(self, generator: DiffusionGenerator, rows: Sequence[int]) -> None:
        self._generator, self._rows = generator.eval().requires_grad_(False), rows

    def __call__(self, images: Tensor, row: int, noise: NormalsNoise, rng: torch.Generator) -> Tensor:
        """Clean images (B, C, H, W) in [-1, 1] of a class as strongly as the noise of a release asks for."""
        level = strength(noise)
        if level <= LEAST:
            return images
        labels = torch.full((len(images),), self._rows[row]) if self._rows else None
        parts = []
        for index in torch.arange(len(images)).split(_AT_ONCE):
            normal = torch.randn(len(index), self._generator.latent_dim, generator=rng)
            of_part = None if labels is None else labels[index]
            parts.append(self._generator.cleaned(images[index], of_part, level, normal))
        return torch.cat(parts)


def strength(noise: NormalsNoise) -> float:
    """Return the standard deviation of the white noise, of pixels on [-1, 1], that hides the noise of a release."""
    return min(float(noise.mean.max()), _MOST)


def cleaner_of(config: RunConfig, shape: DataShape) -> Cleaner | None:
    """Return the cleaner that a config names; None where pictures are not cleaned.

    Raises:
        ConfigError: If it does not fit, or its weights are others than those that the config names.
    """
    origin = config.model.origin
    if not config.model.cleaned or origin is None:
        return None
    rows = check_cleaned(config, shape)
    generator = cast(DiffusionGenerator, build_origin(origin, shape.image_shape))
    generator.load_state_dict(origin_weights(config.data.public_generator, origin))
    return Cleaner(generator, rows)


def check_cleaned(config: RunConfig, shape: DataShape) -> list[int]:
    """Return the rows of a `Cleaner`, [] without any; refuse a denoiser of other images or classes."""
    origin = config.model.origin
    if not config.model.cleaned or origin is None:
        return []
    build_origin(origin, shape.image_shape)
    return _rows(origin, shape.classes if config.model.conditional else (), config.data.public_labels or {})


def _rows(origin: Origin, classes: Sequence[str], looks: Mapping[str, str]) -> list[int]:
    """Return which class of the denoiser each class is: that of its name, or of its look in ``data.public_labels``."""
    if not origin.classes:
        return []
    found = label_rows(origin.classes, classes, looks)
    rows = [row for row in found if row is not None]
    if not classes or len(rows) < len(found):
        missing = next((each for each, row in zip(classes, found, strict=True) if row is None), "any image")
        raise ConfigError(
            f"the generator of data.public_generator has the classes {', '.join(origin.classes)}, and none of them is "
            f"'{missing}'. Name its classes as data.classes, or as the looks of data.public_labels, or take one "
            "without classes."
        )
    return rows
