"""`faces`: people drawn by the program itself, in any number and size, without files and without real people.

A drawn person has a head, skin, hair, eyes, brows, nose, mouth, maybe glasses, a beard or a hat; a picture adds pose,
expression, light, clothes and noise (`looks`, `face_drawing`). Labels: the person (`Images.identities`) and the
binary attributes `ATTRIBUTES` (`data.label` makes classes of them). A seed gives the same images for every batch size;
another device may round a pixel differently.

The appearance of drawn faces: the numbers of each person, and of each picture of that person, from a seed.

People have a shape, skin, hair and habits (`PERSON`); a picture adds pose, expression, light and clothes (`PICTURE`).
All numbers are drawn on the CPU before anything is painted, so that they depend only on the seed.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from idpgan.data.face_drawing import colored, landmarks, render
from idpgan.data.images import Images, to_uint8
from idpgan.device import zeros
from idpgan.errors import DataError
from idpgan.progress import Progress, silent

ATTRIBUTES = (
    "glasses",
    "smiling",
    "mouth_open",
    "beard",
    "moustache",
    "dark_hair",
    "long_hair",
    "bald",
    "hat",
    "light_from_left",
    "facing_left",
)
_RANGES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PERSON: Mapping[str, tuple[float, float]] = _RANGES["person"]
PICTURE: Mapping[str, tuple[float, float]] = _RANGES["picture"]
NUMBERS = len(PERSON) + len(PICTURE)
_SKIN = (
    (0.98, 0.86, 0.77),
    (0.94, 0.78, 0.66),
    (0.86, 0.67, 0.52),
    (0.73, 0.53, 0.39),
    (0.55, 0.38, 0.27),
    (0.37, 0.25, 0.18),
)
_HAIR = (
    (0.06, 0.05, 0.05), (0.14, 0.09, 0.07), (0.25, 0.16, 0.10), (0.38, 0.25, 0.14), (0.52, 0.26, 0.12),
    (0.74, 0.56, 0.30), (0.88, 0.76, 0.50), (0.62, 0.61, 0.60), (0.86, 0.86, 0.85),
)  # fmt: skip
_DARK_TONES = 0.36  # of the palette above, from black to brown
_IRIS = ((0.20, 0.12, 0.07), (0.34, 0.21, 0.11), (0.28, 0.38, 0.24), (0.30, 0.48, 0.62), (0.45, 0.50, 0.54))
_LIPS = ((0.78, 0.45, 0.42), (0.70, 0.30, 0.30), (0.62, 0.16, 0.20))
_RIMS = ((0.06, 0.05, 0.05), (0.30, 0.18, 0.10), (0.55, 0.48, 0.36), (0.62, 0.62, 0.64))


def looks(num: int, people: int, channels: int, rng: torch.Generator) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Draw the numbers of all pictures; picture i shows person ``i * people // num``.

    Returns:
        The look: float32 (num, 1, 1) by name, and colors (num, channels, 1, 1); the person of each picture, int64
        (num,); the attributes, uint8 (num, len(ATTRIBUTES)).
    """
    person = torch.arange(num) * people // num
    of_people = torch.rand(people, len(PERSON), generator=rng)
    of_pictures = torch.rand(num, len(PICTURE), generator=rng)
    look, attributes = look_of(torch.cat([of_people[person], of_pictures], 1), channels)
    return look, person, attributes


def look_of(uniform: Tensor, channels: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return look and attributes, as `looks` does, of pictures whose numbers are given on [0, 1].

    Args:
        uniform: (num, `NUMBERS`) on the CPU: where each number lies in its range, those of `PERSON` first.
    """
    look = _scaled(PERSON, uniform[:, : len(PERSON)]) | _scaled(PICTURE, uniform[:, len(PERSON) :])
    bits = _expressed(look)
    colors = {name: colored(rgb, channels) for name, rgb in _colors(look).items()}
    shaped = {name: column[:, None, None] for name, column in look.items()}
    return shaped | colors, torch.stack([bits[name] for name in ATTRIBUTES], 1).to(torch.uint8)


def _scaled(ranges: Mapping[str, tuple[float, float]], uniform: Tensor) -> dict[str, Tensor]:
    """Scale numbers from [0, 1], (num, names), to their ranges, (num,) by name."""
    low, high = torch.tensor(list(ranges.values())).unbind(1)
    return dict(zip(ranges, (low + (high - low) * uniform).unbind(1), strict=True))


def _expressed(look: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn habits and moods into numbers to paint; return the attributes, bool (num,) by name."""
    # A third of the people always wear glasses, and a tenth sometimes do.
    glasses = (look["spectacles"] < 0.32) | ((look["spectacles"] < 0.42) & (look["puts_on"] < 0.5))
    smiling = look["mood"] < 0.15 + 0.60 * look["cheerful"]
    mouth_open = look["talk"] < torch.where(smiling, 0.55, 0.15)
    bald = look["balding"] < 0.10
    hat = (look["hatted"] < 0.16) & (look["cover"] < 0.6)
    long_hair = (look["long"] < 0.42) & ~bald
    beard = (look["bearded"] < 0.24) & ~long_hair
    moustache = (look["shaven"] < torch.where(beard, 0.8, 0.10)) & ~long_hair
    left = look["light"] < 0.5
    amount = (look["mood"] * 7.31) % 1  # strength of the mood
    look["smile"] = torch.where(smiling, 0.65 + 0.75 * amount, 0.45 * amount - 0.30)
    look["mouth_open"] = mouth_open * (0.025 + 0.045 * ((look["talk"] * 9.7) % 1))
    look["teeth"] = torch.where(smiling, 0.95, 0.35)
    look["light_x"] = torch.where(left, -1.0, 1.0) * (0.18 + 0.52 * ((look["light"] * 2) % 1))
    look["has_hair"] = (~bald).float()
    look["hair_length"] = torch.where(
        long_hair, 0.40 + 0.55 * look["length"], look["eye_y"] - 0.10 + 0.20 * look["length"]
    )
    look["hair_inner"] = torch.where(long_hair, look["head_width"] * 0.90, look["head_width"] * 0.97)
    look["beard"] = beard * 0.88
    look["moustache"] = moustache * 0.92
    look["glasses"] = glasses.float()
    look["hat"] = hat.float()
    look["hat_y"] = look["hairline"] + 0.10
    return {
        "glasses": glasses,
        "smiling": smiling,
        "mouth_open": mouth_open,
        "beard": beard,
        "moustache": moustache,
        "dark_hair": (look["hair_tone"] < _DARK_TONES) & ~bald,
        "long_hair": long_hair,
        "bald": bald,
        "hat": hat,
        "light_from_left": left,
        "facing_left": look["yaw"] < 0,
    }


def _colors(look: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Choose the colors, RGB (num, 3) in [0, 1] by name."""
    skin = palette(_SKIN, look["skin_tone"])
    skin = skin * (1 + 0.05 * look["skin_warmth"][:, None] * torch.tensor([1.0, 0.0, -1.0]))
    hair = palette(_HAIR, look["hair_tone"])
    hat = torch.stack([look["wardrobe_b"], look["wardrobe_r"], look["wardrobe_g"]], 1)
    usual = torch.stack([look["wardrobe_r"], look["wardrobe_g"], look["wardrobe_b"]], 1)
    today = torch.stack([look["red"], look["green"], look["blue"]], 1)
    clothes = torch.where(look["dressed"][:, None] < 0.6, usual, today)
    wall = 0.25 + 0.55 * (0.7 * look["room"] + 0.3 * look["wall"])
    tinge = 0.10 * (today - 0.5)
    return {
        "skin": skin,
        "hair": hair,
        "clothes": 0.10 + 0.75 * _muted(clothes),
        "hat_color": 0.08 + 0.70 * _muted(hat),
        "background": wall[:, None] + tinge,
        "lip_color": palette(_LIPS, look["lip_tone"]) * (0.35 + 0.65 * skin[:, :1]),
        "iris_color": palette(_IRIS, look["iris_tone"]),
        "rim_color": palette(_RIMS, look["rim_tone"]),
        "brow_color": 0.75 * hair * (hair.mean(1, keepdim=True) < 0.6)
        + 0.55 * skin * (hair.mean(1, keepdim=True) >= 0.6),
        "beard_color": 0.9 * hair,
    }


def _muted(colors: Tensor) -> Tensor:
    """Reduce the saturation of colors (N, 3) by a third."""
    return torch.lerp(colors.mean(1, keepdim=True), colors, 0.67)


def palette(colors: Sequence[tuple[float, float, float]], position: Tensor) -> Tensor:
    """Return the color at a position in [0, 1] of a palette, between its neighbors, (N, 3)."""
    table = torch.tensor(colors)
    place = position * (len(table) - 1)
    first = place.long().clamp(max=len(table) - 2)
    return torch.lerp(table[first], table[first + 1], (place - first)[:, None])


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
    """Paint the pictures of looks, uint8 (B, C, H, W), with the grain of a key; see `draw` and `looks`."""
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
