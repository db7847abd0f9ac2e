"""Seeded initialization that leaves the caller's random state alone, and the norms that the networks share.

Exponential moving average of a network: the released weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from idpgan.device import own_random_state
from idpgan.errors import ConfigError, InputError
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
    with own_random_state("cpu"):
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


class Ema:
    """A copy of a network whose weights follow it slowly: ``average = d * average + (1 - d) * weight``.

    Floating-point buffers (BatchNorm's running statistics) are averaged too; whole-number buffers are copied. With
    ramp-up, update number t (from 1) uses ``d = min(decay, (1 + t) / (10 + t))``, so that the random start does not
    dominate a short run (as in TensorFlow's ``ExponentialMovingAverage(num_updates)``). Updates never wait for the
    device.

    Args:
        module: The network to follow. It is copied, not kept.
        decay: d in [0, 1); 0 keeps the newest weights.
        ramp_up: Whether d grows with the number of updates.

    Attributes:
        module: The averaged network, in eval mode, without gradients.
        updates: Number of updates so far.
    """

    @own_state()
    def __init__(self, module: nn.Module, decay: float = 0.999, *, ramp_up: bool = True) -> None:
        if not 0.0 <= decay < 1.0:
            raise ConfigError(f"The decay of the moving average is {decay:g}; it must be in [0, 1), for example 0.999.")
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self.decay = decay
        self.ramp_up = ramp_up
        self.updates = 0

    @own_state()
    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Step towards the weights and buffers of ``module``, which has the layout of the first one."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.ramp_up else self.decay
        # Listed anew each time: ``module.to(device)`` replaces buffers.
        average, newest = ([*each.parameters(), *each.buffers()] for each in (self.module, module))
        floating = [i for i, tensor in enumerate(average) if tensor.is_floating_point()]
        torch._foreach_lerp_([average[i] for i in floating], [newest[i] for i in floating], 1.0 - decay)
        for i in set(range(len(average))) - set(floating):
            average[i].copy_(newest[i])

    def state(self) -> dict[str, Any]:
        """Return the averaged tensors and the number of updates."""
        return {"module": self.module.state_dict(), "updates": self.updates}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state; raises `InputError` if it belongs to a network of another layout."""
        try:
            self.module.load_state_dict(state["module"])
        except RuntimeError as error:
            raise InputError(
                f"The saved moving average belongs to another network ({str(error).splitlines()[0]}). "
                "Resume with the [model] section that the run was started with."
            ) from error
        self.updates = int(state["updates"])
