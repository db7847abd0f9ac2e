"""The appearance of drawn faces: the numbers of each person, and of each picture of that person, from a seed.

People have a shape, skin, hair and habits (`PERSON`); a picture adds pose, expression, light and clothes (`PICTURE`).
All numbers are drawn on the CPU before anything is painted, so that they depend only on the seed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from idpgan.data.face_drawing import colored

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
