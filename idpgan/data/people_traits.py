"""Who is drawn, and how: the numbers of a portrait, from uniform ones.

The sampling is a choice of this package, public and the same for every data set; it follows no census, and no group is
the usual one. Sex: half and half, and how marked it is varies. Age: uniform from 18 to 80 years. Origin: MakeHuman has
shapes of Africa, Asia and Europe; each portrait mixes the three, most often mainly one, none more often than another.
Weight: uniform from MakeHuman's least to its largest. Half of the portraits smile.
Make-up, long hair and beards depend on sex, grey hair and baldness on age, skin on origin; all else is independent.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Traits = dict[str, Tensor]  # float32 (N,) by name

YES_OR_NO = ("smiling", "mouth_open", "glasses", "beard", "moustache", "bald", "fringe", "long_hair", "make_up", "male")
# Uniform numbers: what each lies between. Lengths are in decimeters (the mesh's), angles in radians.
_UNIFORM: dict[str, tuple[float, float]] = {
    "age": (18.0, 80.0),
    "weight": (-1.0, 1.0),
    "marked": (0.72, 1.0),  # how marked sex is: 1 is MakeHuman's extreme
    "smile": (0.6, 1.15),
    "skew": (-0.12, 0.12),  # of the smile, to one side
    "cheeks": (0.5, 1.2),
    "teeth": (0.7, 1.2),
    "open": (0.2, 0.5),
    "frown": (-0.6, 0.4),
    "press": (-1.2, 0.5),
    "blink": (-0.05, 0.18),
    "squint": (0.0, 0.5),
    "wide": (-0.5, 0.5),
    "brow_down": (-0.8, 0.4),
    "brow_up": (-0.8, 0.5),
    "light_high": (-0.15, 1.1),
    "ambient": (0.16, 0.45),
    "lamp": (0.6, 1.1),
    "fill": (0.0, 0.35),
    "gloss": (0.04, 0.22),
    "warmth": (-0.06, 0.10),
    "exposure": (0.75, 1.15),
    "gamma": (1.05, 1.65),
    "blur": (0.0, 0.6),
    "grain": (0.002, 0.012),
    "distance": (12.0, 34.0),
    "skin_light": (-1.0, 1.0),
    "ruddy": (0.0, 1.0),
    "freckles": (0.0, 1.0),
    "blotches": (0.02, 0.07),
    "hair_dark": (0.0, 1.0),
    "hair_kind": (0.0, 1.0),
    "hair_grey": (0.3, 0.85),
    "hairline": (0.42, 0.68),
    "temple": (-0.48, -0.12),
    "hair_close": (0.62, 0.95),
    "hair_high": (0.03, 0.16),
    "hair_length": (0.3, 2.2),
    "parting": (-0.45, 0.45),
    "fringe_length": (0.06, 0.28),
    "fringe_slope": (-0.25, 0.25),
    "curls": (0.0, 1.0),
    "brow_width": (0.022, 0.052),
    "brow_height": (0.145, 0.185),
    "brow_arch": (0.010, 0.045),
    "brow_dark": (0.65, 1.0),
    "beard_full": (0.0, 1.0),
    "beard_thick": (0.3, 0.95),
    "iris_tone": (0.0, 1.0),
    "iris_size": (0.44, 0.54),
    "lens_wide": (0.215, 0.285),
    "lens_high": (0.15, 0.235),
    "lens_square": (2.0, 4.5),
    "rim": (0.010, 0.034),
    "rim_tone": (0.0, 1.0),
    "glare": (0.0, 0.35),
    "lips_red": (0.0, 1.0),
    "ground": (0.05, 0.85),
    "ground_slope": (-0.35, 0.35),
    "ground_pattern": (0.0, 0.25),
    "cloth": (0.03, 0.7),
}
# Normal numbers: mean and standard deviation.
_NORMAL: dict[str, tuple[float, float]] = {
    "yaw": (0.0, 0.20),
    "pitch": (0.02, 0.11),
    "roll": (0.0, 0.03),
    "gaze_right": (0.0, 0.10),
    "gaze_up": (0.0, 0.07),
    "light_right": (0.0, 0.65),
    "scale": (0.94, 0.03),  # eyes are found that much farther apart than pupils are
    "shift_right": (0.0, 0.010),
    "shift_down": (0.0, 0.010),
}
_CHANCES = (
    "_smiling", "_mouth_open", "_glasses", "_beard", "_moustache", "_bald", "_fringe", "_long_hair", "_make_up",
    "_male", "_grey", "_african", "_asian", "_caucasian",
)  # fmt: skip
_PLAIN = 48  # further uniform numbers, of colors and patterns
ORIGINS = ("african", "asian", "caucasian")  # MakeHuman's names of its shapes
COLUMNS = (*YES_OR_NO, *ORIGINS, *_UNIFORM, *_NORMAL)
NUMBERS = len(_UNIFORM) + len(_NORMAL) + len(_CHANCES) + _PLAIN


def traits_of(uniform: Tensor) -> tuple[Traits, Tensor]:
    """Turn numbers in [0, 1), (N, `NUMBERS`), into what they mean.

    Returns:
        The traits `COLUMNS`, float32 (N,) each, where those of `YES_OR_NO` are 0 or 1; and (N, 48) numbers in [0, 1)
        for patterns and colors.
    """
    parts = uniform.split([len(_UNIFORM), len(_NORMAL), len(_CHANCES), _PLAIN], 1)
    traits = {
        name: low + (high - low) * column
        for (name, (low, high)), column in zip(_UNIFORM.items(), parts[0].unbind(1), strict=True)
    }
    for (name, (mean, spread)), column in zip(_NORMAL.items(), parts[1].unbind(1), strict=True):
        bounded = column.clamp(0.005, 0.995)  # no head turns further than 2.6 standard deviations
        traits[name] = mean + spread * math.sqrt(2) * torch.erfinv(2 * bounded - 1)
    chance = dict(zip(_CHANCES, parts[2].unbind(1), strict=True))
    return traits | _decided(traits, chance), parts[3]


def _decided(traits: Traits, chance: Traits) -> Traits:
    """Return what is yes or no, origin, and the numbers that follow from them."""
    male, old = chance["_male"] < 0.5, (traits["age"] - 25).clamp_min(0) / 65
    smiling = chance["_smiling"] < 0.5
    mouth_open = chance["_mouth_open"] < torch.where(smiling, 0.85, 0.15)
    bald = male & (chance["_bald"] < 0.05 + 0.35 * old)
    long_hair = ~bald & (chance["_long_hair"] < torch.where(male, 0.06, 0.70))
    share = torch.stack([chance[f"_{name}"] for name in ORIGINS], 1).clamp(1e-6, 1 - 1e-6)
    share = (-share.log()) ** 2.5  # a mixture in which one of the three is mostly the largest
    share = share / share.sum(1, keepdim=True)
    bits = {
        "smiling": smiling,
        "mouth_open": mouth_open,
        "glasses": chance["_glasses"] < 0.2,
        "beard": male & (chance["_beard"] < 0.3),
        "moustache": male & (chance["_moustache"] < torch.where(chance["_beard"] < 0.3, 0.85, 0.12)),
        "bald": bald,
        "fringe": ~bald & (chance["_fringe"] < 0.35),
        "long_hair": long_hair,
        "make_up": ~male & (chance["_make_up"] < 0.5),
        "male": male,
    }
    grey = (chance["_grey"] < ((traits["age"] - 38) / 30).clamp(0, 0.9)).float()
    return (
        {name: bit.float() for name, bit in bits.items()}
        | dict(zip(ORIGINS, share.unbind(1), strict=True))
        | {"hair_grey": traits["hair_grey"] * grey}
    )
