"""Opacus' optimizer, fed with clipped sums and with our noise."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor

from idpgan.privacy.noise import Noise


class NoisyOptimizer(DPOptimizer):
    """``p.grad = (sum of clipped gradients + N(0, (noise_multiplier * clip_norm)^2)) / divisor``, then a plain step.

    Opacus adds noise, scales and steps; what is ours, and why:

    1. The noise comes from `privacy.noise`. Opacus draws from a `torch.Generator`, on the CPU a Mersenne Twister with
       32 bits of seed, which an attacker can try out. Numbers are continuous Gaussian in floating point on every
       device, and added in float64: low-order bits are not covered by the proof (docs/pitfalls.md).
    2. Clipping is `per_example.clipped_sum`, chunk by chunk: a chunk that does not fit in memory is taken again before
       anything is accumulated here, and non-finite records count as zero.
    3. The divisor is a public constant, never the number of records that were drawn.

    Args:
        optimizer: Takes the plain step.
        noise_multiplier: Standard deviation / clip_norm.
        clip_norm: C, the sensitivity of the sums.
        divisor: Public; about q N.
        noise: Source.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        noise_multiplier: float,
        clip_norm: float,
        divisor: int,
        noise: Noise,
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=clip_norm,
            expected_batch_size=divisor,
            loss_reduction="mean",
        )
        self.noise = noise

    def noisy_step(self, sums: Iterable[Tensor]) -> None:
        """Take one step; a batch of no records steps too, on noise alone.

        Args:
            sums: In the order of the parameters, of L2 sensitivity ``clip_norm`` together.
        """
        for parameter, total in zip(self.params, sums, strict=True):
            parameter.grad_sample = total[None]  # to Opacus: one record that is clipped already
        self.step()
        self.zero_grad(set_to_none=True)  # nothing stays on the critic

    def clip_and_accumulate(self) -> None:
        """Take over what `noisy_step` was given."""
        for parameter in self.params:
            parameter.summed_grad = parameter.grad_sample[0]

    def add_noise(self) -> None:
        """Draw for all parameters at once, and add."""
        sizes = [parameter.numel() for parameter in self.params]
        noise = self.noise.normal((sum(sizes),)) * (self.noise_multiplier * self.max_grad_norm)
        for parameter, part in zip(self.params, noise.split(sizes), strict=True):
            noisy = parameter.summed_grad.double() + part.to(parameter.device).view_as(parameter)
            parameter.grad = noisy.to(parameter.dtype)
