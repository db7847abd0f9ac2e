"""Exponential moving average of a network: the released weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from idpgan.errors import ConfigError, InputError
from idpgan.host import own_state


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
