"""`data.public = "faces"`: drawn faces as public images. They are nobody's privacy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from idpgan.config import nearest_hint
from idpgan.data.config import DataConfig
from idpgan.data.face_looks import ATTRIBUTES
from idpgan.data.faces import draw
from idpgan.data.images import Images
from idpgan.errors import ConfigError
from idpgan.progress import Progress, silent

NUM_IMAGES, SEED, CROP = 6_000, 7_002, 1.0  # what the config's None stands for
_FACE_CENTER = (0.48, 0.5)  # of a drawn picture: where a crop lies, down and across
_NOT = "not "


def count_public(config: DataConfig) -> int:
    """Return the number of public images to draw."""
    return config.public_images or NUM_IMAGES


def draw_public(
    config: DataConfig, image_shape: tuple[int, int, int], classes: tuple[str, ...], progress: Progress = silent
) -> Images:
    """Draw the public images, one of each person.

    With `data.public_labels` every class gets the same number of positions, in turn, filled by faces of its look; a
    class with few such faces repeats them.

    Args:
        image_shape: (C, H, W) of the private images and of every drawn picture; only a crop is scaled.
        classes: Of the private images.

    Raises:
        ConfigError: If the labels do not fit the classes.
    """
    meanings = check_public_labels(config, classes)
    channels, height, width = image_shape
    crop = CROP if config.public_crop is None else config.public_crop
    seed = SEED if config.public_seed is None else config.public_seed
    whole = (round(height / crop), round(width / crop))
    drawn = draw(count_public(config), whole, channels, seed=seed, progress=progress)
    top, left = (
        min(max(round(center * size - side / 2), 0), size - side)
        for center, size, side in zip(_FACE_CENTER, whole, (height, width), strict=True)
    )
    pictures = drawn.images[:, :, top : top + height, left : left + width].contiguous()
    if not meanings or drawn.attributes is None:
        return Images(pictures)
    labels = torch.arange(len(drawn)) % len(classes)
    index = torch.empty_like(labels)
    for number, name in enumerate(classes):
        alike, places = torch.nonzero(_holds(drawn.attributes, meanings[name]))[:, 0], labels == number
        if not len(alike):
            raise ConfigError(
                f"none of the {len(drawn)} drawn faces is '{meanings[name]}', data.public_labels of '{name}'. Set "
                "data.public_images higher."
            )
        index[places] = alike[torch.arange(int(places.sum())) % len(alike)]
    return dataclasses.replace(Images(pictures).select(index), labels=labels, classes=classes)


def check_public_labels(config: DataConfig, classes: Sequence[str]) -> Mapping[str, str]:
    """Return the look of each class, {} for unlabeled ones; raises `ConfigError` if classes or looks do not fit."""
    meanings = config.public_labels or {}
    if meanings and set(meanings) != set(classes):
        odd = sorted(set(meanings) ^ set(classes))
        raise ConfigError(
            f"data.public_labels and the classes of '{config.name}' ({', '.join(classes) or 'none'}) do not meet: "
            f"'{odd[0]}' is only in one of them. Say what every class looks like, or leave public_labels out."
        )
    for name, look in meanings.items():
        if look.removeprefix(_NOT) not in ATTRIBUTES:
            raise ConfigError(
                f"data.public_labels: '{look}' (of '{name}') is no look of a drawn face. "
                f"{nearest_hint(look.removeprefix(_NOT), ATTRIBUTES)}"
            )
    return meanings


def _holds(attributes: Tensor, look: str) -> Tensor:
    """Return whether each face has the look, (B,) bool."""
    column = attributes[:, ATTRIBUTES.index(look.removeprefix(_NOT))].bool()
    return ~column if look.startswith(_NOT) else column
