"""Public images that a program draws, for any source of private ones: `data.public`.

"faces" are drawings (`faces`), "fonts" digits of a simulated pen (`fonts`), "people" portraits of people who do not
exist (`people`, with the extra of that name), "dead-leaves" shapes on one another (`dead_leaves`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from idpgan.config import nearest_hint
from idpgan.data import dead_leaves, faces, fonts, people
from idpgan.data.config import DataConfig
from idpgan.data.images import Images
from idpgan.errors import ConfigError
from idpgan.progress import Progress, silent

NUM_PUBLIC, PUBLIC_SEED, PUBLIC_CROP = 6_000, 7_002, 1.0  # where a config does not say
LOOKS: Mapping[str, Sequence[str]] = {
    "faces": faces.ATTRIBUTES, "fonts": fonts.CLASSES, "people": people.YES_OR_NO, "dead-leaves": (),
}  # fmt: skip
PAPERS: Mapping[str, str] = {  # what such images are, and where they come from
    "faces": "drawings of faces by this program, of nobody",
    "fonts": "digits written by a simulated pen of this program, of nobody's hand",
    "people": str(people.PAPERS),
    "dead-leaves": "ellipses and rectangles on one another, drawn by this program, of nobody",
}
_NOT = "not "


def count_public(config: DataConfig) -> int:
    """Return the number of public images to draw."""
    return config.public_images or NUM_PUBLIC


def draw_public(
    config: DataConfig, image_shape: tuple[int, int, int], classes: tuple[str, ...], progress: Progress = silent
) -> Images:
    """Draw the public images, one of each person.

    With `looks_of` each class the positions go to the classes in turn, and each class is filled with pictures that look
    like it; a class with too few such pictures repeats them.

    Args:
        image_shape: (C, H, W) of the private images and of every drawn picture; only crops are rescaled.
        classes: Classes of the private images.

    Raises:
        ConfigError: If the labels do not fit the classes.
    """
    meanings = check_public_labels(config, classes)
    drawn = _drawn(config, image_shape, progress)
    pictures = drawn.images
    if not meanings or drawn.attributes is None:
        return Images(pictures)
    labels = torch.arange(len(drawn)) % len(classes)
    index = torch.empty_like(labels)
    for number, name in enumerate(classes):
        look = meanings[name]
        holds = drawn.attributes[:, drawn.attribute_names.index(look.removeprefix(_NOT))] != look.startswith(_NOT)
        alike, places = torch.nonzero(holds)[:, 0], labels == number
        if not len(alike):
            raise ConfigError(
                f"none of the {len(drawn)} drawn {config.public} is '{look}', as '{name}' looks. Set "
                "data.public_images higher."
            )
        index[places] = alike[torch.arange(int(places.sum())) % len(alike)]
    return dataclasses.replace(Images(pictures).select(index), labels=labels, classes=classes)


def _drawn(config: DataConfig, image_shape: tuple[int, int, int], progress: Progress) -> Images:
    """Draw the pictures, with their looks as attributes."""
    (channels, height, width), num = image_shape, count_public(config)
    seed = PUBLIC_SEED if config.public_seed is None else config.public_seed
    if config.public == "fonts":
        digits = fonts.draw(num, (height, width), channels, seed=seed, progress=progress)
        is_digit = functional.one_hot(cast(Tensor, digits.labels), len(fonts.CLASSES)).to(torch.uint8)
        return Images(digits.images, attributes=is_digit, attribute_names=fonts.CLASSES)
    if config.public == "dead-leaves":
        return Images(dead_leaves.draw(num, (height, width), channels, seed=seed, progress=progress))
    if config.public == "people":
        if height != width:
            raise ConfigError(
                f'data.public = "people" draws squares, and the private images are {height} x {width}. Prepare them '
                "with one --size."
            )
        return people.draw(num, height, channels, seed, progress=progress).images
    crop = PUBLIC_CROP if config.public_crop is None else config.public_crop
    return faces.draw_cropped(num, (height, width), channels, crop, seed=seed, progress=progress)


def looks_of(config: DataConfig, classes: Sequence[str]) -> Mapping[str, str]:
    """Return what a picture of each class looks like, {} for unlabeled ones; classes of digits look like themselves."""
    if config.public == "fonts" and not config.public_labels and set(classes) <= set(fonts.CLASSES):
        return {name: name for name in classes}
    return config.public_labels or {}


def check_public_labels(config: DataConfig, classes: Sequence[str]) -> Mapping[str, str]:
    """Return the look of each class, {} for unlabeled ones; raises `ConfigError` if classes or looks do not fit."""
    meanings = looks_of(config, classes)
    if meanings and set(meanings) != set(classes):
        odd = sorted(set(meanings) ^ set(classes))
        raise ConfigError(
            f"data.public_labels and the classes of '{config.name}' ({', '.join(classes) or 'none'}) do not meet: "
            f"'{odd[0]}' is only in one of them. Say what every class looks like, or leave public_labels out."
        )
    looks = LOOKS[config.public or "faces"]
    for name, look in meanings.items():
        if look.removeprefix(_NOT) not in looks:
            raise ConfigError(
                f"data.public_labels: '{look}' (of '{name}') is not a look of drawn {config.public}. "
                f"{nearest_hint(look.removeprefix(_NOT), looks)}"
            )
    return meanings
