"""`faces`: people drawn by the program itself, in any number and size, without files and without real people.

A drawn person has a head, skin, hair, eyes, brows, nose, mouth, maybe glasses, a beard or a hat; a picture adds pose,
expression, light, clothes and noise (`face_looks`, `face_drawing`). Labels: the person (`Images.identities`) and the
binary attributes `ATTRIBUTES` (`data.label` makes classes of them). A seed gives the same images for every batch size;
another device may round a pixel differently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from idpgan.data.face_drawing import landmarks, render
from idpgan.data.face_looks import ATTRIBUTES, looks
from idpgan.data.images import Images, to_uint8
from idpgan.errors import DataError
from idpgan.memory import zeros
from idpgan.progress import Progress, silent

SIDE, CHANNELS = 48, 3  # where nothing else is asked for
LEAST_SIDE = 16  # px; smaller faces would lose their features
FACE_CENTER = (0.48, 0.5)  # center of a crop, as shares of height and width
_PIXELS = 1 << 17  # pixels of a batch, so that its planes stay in a core's cache
_PIXELS_GPU = 1 << 23
_GRAIN = 0.03  # largest standard deviation of the noise, for pixels in [0, 1]


def draw(
    num: int | None = None,
    size: int | tuple[int, int] = SIDE,
    channels: int = CHANNELS,
    *,
    people: int | None = None,
    per_person: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
    progress: Progress = silent,
) -> Images:
    """Draw faces, person after person.

    Args:
        num: Images; may be left out if ``people`` and ``per_person`` are given.
        size: (H, W) in px, or one number for both; each at least 16.
        channels: 1 (grey: the luma of the colors) or 3 (RGB).
        people: People with equally many images; None = num / per_person, or one image each.
        per_person: Images of each person; None = num / people.
        seed: The seed, at least 0, fixes people and pictures; with another ``num`` or ``people`` even the first images
            differ.
        batch_size: Images drawn at once; None fits the cache. Does not change the images.

    Returns:
        uint8 (num, C, H, W), with `identities` 0, 0, ..., people - 1 and the attributes `ATTRIBUTES`; no classes.

    Raises:
        DataError: If a number is out of range, or num, people and per_person contradict each other.

    Example:
        >>> draw(4, 32, 1, people=2, seed=5).identities.tolist()
        [0, 0, 1, 1]
    """
    num, people, height, width = validated(num, people, per_person, size, channels, seed)
    device = torch.device(device)
    rng = torch.Generator().manual_seed(seed)
    look, person, attributes = looks(num, people, channels, rng)
    key = int(torch.randint(1 << 62, (), generator=rng))
    images = paint(look, (height, width), channels, key, device=device, batch_size=batch_size, progress=progress)
    return Images(images, identities=person.to(device), attributes=attributes.to(device), attribute_names=ATTRIBUTES)


def paint(
    look: Mapping[str, Tensor],
    size: tuple[int, int],
    channels: int,
    key: int,
    *,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
    progress: Progress = silent,
) -> Tensor:
    """Paint the pictures of looks, uint8 (B, C, H, W), with the grain of a key; see `draw` and `face_looks.looks`."""
    (height, width), device, num = size, torch.device(device), len(look["tilt"])
    batch = batch_size or max(1, (_PIXELS if device.type == "cpu" else _PIXELS_GPU) // (height * width))
    images = zeros((num, channels, height, width), torch.uint8, device)
    for start in range(0, num, batch):
        part = slice(start, start + batch)
        here = {name: column[part].to(device) for name, column in look.items()}
        painted = render(here, height, width, channels)
        grain = here["grain"][:, None] * _GRAIN
        painted += grain * grain_noise(start, len(painted), height, width, key, device)
        images[part] = to_uint8(painted.mul_(2).sub_(1))
        progress("draw faces", min(start + batch, num), num)
    return images


def draw_landmarks(
    num: int | None = None,
    size: int | tuple[int, int] = SIDE,
    *,
    people: int | None = None,
    per_person: int | None = None,
    seed: int = 0,
) -> Tensor:
    """Return the landmarks of the faces that `draw` draws with the same arguments.

    Returns:
        float32 (num, 68, 2): x and y in px from the left upper corner, in the order of `idpgan.data.face_drawing`.

    Raises:
        DataError: As `draw` raises it.

    Example:
        >>> draw_landmarks(4, 32, people=2, seed=5).shape
        torch.Size([4, 68, 2])
    """
    num, people, height, width = validated(num, people, per_person, size, 1, seed)
    look, _, _ = looks(num, people, 1, torch.Generator().manual_seed(seed))
    return landmarks(look, height, width)


def draw_people(people: int, per_person: int, height: int, width: int, channels: int = 1, seed: int = 0) -> Images:
    """Draw ``per_person`` images of each of ``people``; see `draw`."""
    return draw(size=(height, width), channels=channels, people=people, per_person=per_person, seed=seed)


def validated(
    num: int | None, people: int | None, per_person: int | None, size: int | tuple[int, int], channels: int, seed: int
) -> tuple[int, int, int, int]:
    """Return the numbers of images and people, height and width; refuse what `draw` cannot draw."""
    if num is None:
        if people is None or per_person is None:
            raise DataError("Say how many faces to draw: num, or people and per_person.")
        num = people * per_person
    if people is None:
        people = num if per_person is None else -(-num // max(per_person, 1))
    if not 1 <= people <= num:
        raise DataError(f"{num} faces of {people} people: draw at least one person, and one image of each.")
    if per_person is not None and per_person * people != num:
        raise DataError(f"{people} people with {per_person} images each are {people * per_person} faces, not {num}.")
    height, width = (size, size) if isinstance(size, int) else size
    if min(height, width) < LEAST_SIDE:
        raise DataError(
            f"Faces of {width} x {height} pixels are too small to draw: each side must be {LEAST_SIDE} or more."
        )
    if channels not in (1, 3):
        raise DataError(f"Faces have 1 channel (grey) or 3 (RGB), not {channels}.")
    if seed < 0:
        raise DataError(f"The seed of drawn faces must be at least 0, got {seed}.")
    return num, people, height, width


def grain_noise(start: int, num: int, height: int, width: int, key: int, device: torch.device) -> Tensor:
    """Return noise of mean 0, variance 1, (num, 1, H, W): the byte sum of a hash of image and pixel."""
    pixels = height * width
    count = torch.arange(start * pixels, (start + num) * pixels, dtype=torch.int64, device=device)
    bits = (count + (key & 0xFFFFFFFF)) & 0xFFFFFFFF
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):  # "lowbias32" of C. Wellons' hash-prospector
        bits = ((bits ^ (bits >> shift)) * factor) & 0xFFFFFFFF
    bits = bits ^ (bits >> 15)
    total = (bits & 255) + (bits >> 8 & 255) + (bits >> 16 & 255) + (bits >> 24)  # nearly normal
    return ((total.float() - 510) / 147.8).view(num, 1, height, width)


def draw_cropped(
    num: int,
    size: tuple[int, int],
    channels: int,
    crop: float,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Images:
    """Draw larger pictures, and keep of each the part around the face, of this size: ``crop`` of the sides."""
    (height, width), whole = size, (round(size[0] / crop), round(size[1] / crop))
    drawn = draw(num, whole, channels, seed=seed, progress=progress)
    top, left = (
        min(max(round(center * length - side / 2), 0), length - side)
        for center, length, side in zip(FACE_CENTER, whole, size, strict=True)
    )
    part = drawn.images[:, :, top : top + height, left : left + width].contiguous()
    return dataclasses.replace(drawn, images=part)
