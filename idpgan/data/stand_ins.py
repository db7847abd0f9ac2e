"""Public stand-ins for a data set: faces or written digits of its shape, number and classes, and of nobody.

Which of the two follows from declared facts: digits of a pen where the classes are digits or the images are too small
for a face, else faces: drawn ones, or portraits (`people`) where the config draws such. Classes of faces are
combinations of looks: laughing or not, then those of `_LOOKS` or `_PORTRAYED`, or people where there are more classes
than combinations. All classes are equally frequent.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from idpgan.data import faces, fonts, people
from idpgan.data.eyes import Places
from idpgan.data.face_drawing import closer, with_eyes_at
from idpgan.data.face_looks import ATTRIBUTES, looks
from idpgan.data.images import Images
from idpgan.data.load import DataShape, Split
from idpgan.progress import Progress, renamed, silent

_LOOKS = ("glasses", "beard", "dark_hair", "hat", "long_hair")  # beside laughing, which makes the first two classes
_PORTRAYED = ("glasses", "male", "fringe", "make_up", "long_hair")  # beside smiling
_NEITHER = -1  # smiling with a closed mouth, or an open one that does not smile
_SEEDS = {"private": 7_101, "public": 7_102, "test": 7_103}  # constants of the package: the same in every rehearsal
_CROP = 0.6  # of a drawn picture's sides: the face, as photos show it whose eyes are in no fixed places
_DIGITS = 10
_SPARE = 3  # faces to choose from for each one that is drawn
_PER_PERSON = 4.0  # images, where it is not declared
LEAST_TEST, MOST_TEST = 1_000, 2_000


def are_digits(shape: DataShape) -> bool:
    """Whether digits stand in for such images: by classes and size alone."""
    channels, height, width = shape.image_shape
    written = channels == 1 and set(shape.classes) <= set(fonts.CLASSES) and bool(shape.classes)
    return written or min(height, width) < faces.LEAST_SIDE


def kind_of(shape: DataShape, portraits: bool) -> str:
    """Return what stands in for such images, in words; see `stand_ins`."""
    if are_digits(shape):
        return "digits of a pen"
    tells = _bits(shape) <= len(_PORTRAYED) + 1
    return "portraits of people who do not exist" if portraits and tells else "drawn faces"


def stand_ins(
    shape: DataShape,
    progress: Progress = silent,
    *,
    portraits: bool = False,
    eyes: Places | None = None,
    per_person: float | None = None,
) -> Split:
    """Draw private, public and test images in the place of those of a data set; there is no holdout.

    Args:
        shape: What is public of the data set. People, where it knows them, have equally many images each, all of them
            in one part, as unit person demands.
        portraits: Whether the run draws portraits, so that faces are aligned to them: then faces are portraits,
            unless classes are people.
        eyes: Where the eyes of all drawn faces are; None = here and there.
        per_person: Mean number of images of a person, as declared: so many people carry what is released of them.

    Raises:
        InputError: If the package that portraits are drawn from is not installed.
    """
    per_person = per_person or _PER_PERSON
    sizes = shape.sizes
    numbers = {"private": sizes.private, "public": sizes.public}
    numbers["test"] = min(max(sizes.test, LEAST_TEST), MOST_TEST)
    parts: Any = {
        name: _drawn(
            shape, portraits, eyes, per_person, num, _SEEDS[name], renamed(progress, f"draw stand-ins, {name}")
        )
        for name, num in numbers.items()
    }
    return Split(holdout=parts["test"].select(torch.arange(0)), **parts)


def _drawn(
    shape: DataShape,
    portraits: bool,
    eyes: Places | None,
    per_person: float,
    num: int,
    seed: int,
    progress: Progress,
) -> Images:
    """Draw one part, with the labels and, where the set has them, the people."""
    channels, height, width = shape.image_shape
    digits, count = are_digits(shape), len(shape.classes)
    labels = torch.arange(num) % max(count, 1)
    if not num:
        pixels = torch.zeros(0, channels, height, width, dtype=torch.uint8)
    elif digits:
        drawn = fonts.draw(
            max(num * _DIGITS // min(max(count, 1), _DIGITS), num) + 100,
            (height, width),
            channels,
            seed=seed,
            progress=progress,
        )
        kinds = drawn.labels if count and drawn.labels is not None else torch.zeros(len(drawn), dtype=torch.int64)
        pixels = drawn.images[_of_kinds(kinds, labels % _DIGITS)]
    elif kind_of(shape, portraits) == "drawn faces":
        pixels = _faces(shape, eyes, seed, labels, progress)
    else:
        pixels = _portraits(shape, seed, labels, progress)
    who = torch.arange(num) * max(round(num / per_person), 1) // max(num, 1) + (seed << 32)
    named = labels if count else None
    order = torch.randperm(num, generator=torch.Generator().manual_seed(seed))
    made = Images(pixels.contiguous(), named, shape.classes if count else ())
    return dataclasses.replace(made.select(order), identities=who if shape.has_people else None)


def _bits(shape: DataShape) -> int:
    """Return how many looks tell the classes apart."""
    return math.ceil(math.log2(len(shape.classes))) if len(shape.classes) > 1 else 0


def _portraits(shape: DataShape, seed: int, labels: Tensor, progress: Progress) -> Tensor:
    """Draw portraits that look like their classes; half of all smile, so that one look needs none to spare."""
    channels, size, _ = shape.image_shape
    bits = _bits(shape)
    drawn = people.draw(len(labels) * (_SPARE if bits > 1 else 1), size, channels, seed, progress=progress)
    kinds = torch.zeros(len(drawn.images), dtype=torch.int64)
    for bit, name in enumerate(("smiling", *_PORTRAYED)[:bits]):
        kinds += drawn.table[name].long() << bit
    return drawn.images.images[_of_kinds(kinds, labels)]


def _faces(shape: DataShape, eyes: Places | None, seed: int, labels: Tensor, progress: Progress) -> Tensor:
    """Draw faces that look like their classes: looks, or people where classes are many.

    Numbers of more faces are drawn than faces, so that rare looks are not repeated often.
    """
    (channels, *size), num, count = shape.image_shape, len(labels), len(shape.classes)
    bits, rng = _bits(shape), torch.Generator().manual_seed(seed)
    if bits > len(_LOOKS) + 1:
        look, kinds, _ = looks(num, min(count, num), channels, rng.manual_seed(_SEEDS["private"]))
    else:
        drawn = num * _SPARE if bits else num
        look, _, found = looks(drawn, drawn, channels, rng)
        kinds = _kinds_of_looks(found, bits)
    chosen = _of_kinds(kinds, labels if count else torch.zeros_like(labels))
    look = {name: numbers[chosen] for name, numbers in look.items()}
    placed = closer(look, *size, _CROP, faces.FACE_CENTER) if eyes is None else with_eyes_at(look, *size, *eyes)
    return faces.paint(placed, (size[0], size[1]), channels, seed, progress=progress)


def _kinds_of_looks(found: Tensor, bits: int) -> Tensor:
    """Return the class of each face, (num,), by its looks, uint8 (num, attributes): 2^bits classes, or `_NEITHER`."""
    if not bits:
        return torch.zeros(len(found), dtype=torch.int64)
    smiling, open_mouth = (found[:, ATTRIBUTES.index(name)].long() for name in ("smiling", "mouth_open"))
    others = (found[:, ATTRIBUTES.index(name)].long() << bit for bit, name in enumerate(_LOOKS[: bits - 1], 1))
    return torch.where(smiling == open_mouth, sum(others, smiling), _NEITHER)


def _of_kinds(kinds: Tensor, wanted: Tensor) -> Tensor:
    """Return positions whose kinds are those that are wanted, each kind's in turn; one that is missing takes any."""
    chosen = torch.empty_like(wanted)
    for kind in wanted.unique().tolist():
        places, alike = wanted == kind, torch.nonzero(kinds == kind)[:, 0]
        alike = alike if len(alike) else torch.arange(len(kinds))
        chosen[places] = alike[torch.arange(int(places.sum())) % len(alike)]
    return chosen
