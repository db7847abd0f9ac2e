"""Seeded initialization that leaves the caller's random state alone, and the norms that the networks share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from idpgan.errors import InputError
from idpgan.host import own_state

GROUPS = 8  # channels are split in at most so many groups


def torch_seed(seed: int, stream: int = 0) -> int:
    """Mix an integer >= 0 of any length into the 32 bits that torch's CPU generator really uses.

    ``stream`` >= 0 chooses one of the independent streams of this seed. Raises `InputError` for another seed.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed = {seed!r} must be an integer of at least 0. Choose one, for example 0.")
    return int(np.random.SeedSequence((int(seed), stream)).generate_state(1)[0])


@contextmanager
def seeded_init(seed: int, stream: int = 0) -> Iterator[None]:
    """Build modules reproducibly: torch's CPU random state is seeded inside and restored afterwards.

    Modules have to be built on the CPU; the state of a GPU is not touched. The seed is for initial weights only, never
    for privacy noise. Networks of one seed get independent weights by different streams.

    Example:
        >>> with seeded_init(7):
        ...     first = torch.nn.Linear(2, 2)
        >>> with seeded_init(7):
        ...     second = torch.nn.Linear(2, 2)
        >>> torch.equal(first.weight, second.weight)
        True
    """
    mixed = torch_seed(seed, stream)
    with torch.random.fork_rng(devices=[]):  # CPU only
        torch.default_generator.manual_seed(mixed)
        yield


class _Undrawn(TorchFunctionMode):
    """Leaves normal numbers undrawn: on the meta device PyTorch "draws" them by its compiler, a second to import."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        if function in (Tensor.normal_, nn.init.normal_):
            return arguments[0] if arguments else options["tensor"]
        return (torch.empty if function is torch.randn else function)(*arguments, **options)


@contextmanager
def without_weights() -> Iterator[None]:
    """Build modules on torch's meta device: their tensors have a shape, and take no memory whatever their size."""
    with own_state(), torch.device("meta"), _Undrawn():
        yield


def group_norm(channels: int, groups: int = GROUPS) -> nn.GroupNorm:
    """Build a GroupNorm with the most groups up to ``groups`` that divide the channels."""
    return nn.GroupNorm(math.gcd(channels, groups), channels)
