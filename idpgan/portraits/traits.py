"""Who is drawn, and how: the numbers of a portrait, from uniform ones.

The sampling is a choice of this package, public and the same for every data set; it follows no census, and no group is
the usual one. Sex: half and half, and how marked it is varies. Age: uniform from 18 to 80 years. Origin: MakeHuman has
shapes of Africa, Asia and Europe; each portrait mixes the three, most often mainly one, none more often than another.
Weight: uniform from MakeHuman's least to its largest. Half of the portraits smile.
Make-up, long hair and beards depend on sex, grey hair and baldness on age, skin on origin; all else is independent.
"""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import torch
from torch import Tensor

Traits = dict[str, Tensor]  # float32 (N,) by name

YES_OR_NO = ("smiling", "mouth_open", "glasses", "beard", "moustache", "bald", "fringe", "long_hair", "make_up", "male")
_RANGES = tomllib.loads(Path(__file__).with_name("ranges.toml").read_text(encoding="utf-8"))
_UNIFORM: dict[str, tuple[float, float]] = _RANGES["uniform"]
_NORMAL: dict[str, tuple[float, float]] = _RANGES["normal"]
_CHANCES = (
    "_smiling", "_mouth_open", "_glasses", "_beard", "_moustache", "_bald", "_fringe", "_long_hair", "_make_up",
    "_male", "_grey", "_african", "_asian", "_caucasian",
)  # fmt: skip
_BOUNDS = 0.005, 0.995  # no head turns further than 2.6 standard deviations
PLAIN = 48  # further uniform numbers of a portrait, of colors and patterns: no traits
ORIGINS = ("african", "asian", "caucasian")  # MakeHuman's names of its shapes
COLUMNS = (*YES_OR_NO, *ORIGINS, *_UNIFORM, *_NORMAL)
NUMBERS = len(_UNIFORM) + len(_NORMAL) + len(_CHANCES) + PLAIN


def traits_of(uniform: Tensor) -> Traits:
    """Turn numbers in [0, 1), (N, `NUMBERS` - `PLAIN`), into traits, float32 (N,) each; `YES_OR_NO` are 0 or 1."""
    parts = uniform.split([len(_UNIFORM), len(_NORMAL), len(_CHANCES)], 1)
    traits = {
        name: low + (high - low) * column
        for (name, (low, high)), column in zip(_UNIFORM.items(), parts[0].unbind(1), strict=True)
    }
    for (name, (mean, spread)), column in zip(_NORMAL.items(), parts[1].unbind(1), strict=True):
        bounded = column.clamp(*_BOUNDS)
        traits[name] = mean + spread * math.sqrt(2) * torch.erfinv(2 * bounded - 1)
    chance = dict(zip(_CHANCES, parts[2].unbind(1), strict=True))
    return traits | _decided(traits, chance)


def near(traits: Traits, step: float, rng: torch.Generator) -> Traits:
    """Return traits of other people near given ones, float32 (N,) each: what is yes or no stays, and origins do.

    Args:
        traits: All of `COLUMNS`.
        step: Standard deviation of what is added to the uniform number behind each other trait.
        rng: On the CPU.
    """
    changed = dict(traits)
    for name, bounds in (_UNIFORM | _NORMAL).items():
        noise = step * torch.randn(len(traits[name]), generator=rng)
        if name in _UNIFORM:
            (low, high), there = bounds, traits[name] != 0 if name == "hair_grey" else torch.tensor(True)
            changed[name] = torch.where(there, (traits[name] + (high - low) * noise).clamp(low, high), 0.0)
        else:
            mean, spread = bounds
            uniform = torch.special.ndtr((traits[name] - mean) / spread) + noise
            changed[name] = mean + spread * torch.special.ndtri(uniform.clamp(*_BOUNDS))
    return changed


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
