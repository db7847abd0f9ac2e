r"""Steps of DP-SGD by Opacus: its hooks find the gradients of single records, its optimizer clips and sums them.

Coins, noise, divisor and price are those of a `DPSGDPlan`, so the same event proves both engines. This file imports
Opacus and is therefore imported where it is used (``method.engine = "opacus"``).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from idpgan import checks
from idpgan.errors import ConfigError
from idpgan.host import unwarned
from idpgan.privacy.captured_gradients import Batch, BatchLoss
from idpgan.privacy.dpsgd import SLACK, DPSGDPlan, full_precision
from idpgan.privacy.noise import Noise

MOST_PHYSICAL = 128  # records in one product; more would ask for too much room for its rounding
_ROUNDING = 2.0**-24  # of a float32 number, relative, where it is not below
_LEAST_FACTOR = 1e-37


class OpacusSteps:
    r"""The steps of a network by `GradSampleModule` and `DPOptimizer`, in physical batches of ``physical_batch`` rows.

    As in Opacus' examples, several forward passes before one backward pass are added up row by row before the clip (its
    DCGAN pairs each image with a fake so). Physical batches are those of its `BatchMemoryManager`: all but the last are
    clipped and summed under `DPOptimizer.signal_skip_step`.

    Formal guarantee: that of `DPSGDPlan`, whose `noisy_gradients` adds the noise (`DPOptimizer.add_noise` is Opacus'
    place to override it). Sensitivity, L2, zero-out-one: C. Opacus clips rows to C' = C (1 - s). Norms and the sum over
    physical batches are float64, as in `DPSGDPlan.clipped_sum`; the product of the m clip factors and m rows is
    float32, and rounds by at most m u times the sum of norms (Higham 2002, "Accuracy and stability of numerical
    algorithms", Eq. (3.5), u = 2^-24), which is at most m C'. Neighbors differ in one row, null or not, of one product.
    So their sums differ by at most C' (1 + 2 m^2 u) and the roundings of float64 that `SLACK` covers; s is the sum of
    both. A row is set to zero before the product if its record is null, if it is not finite, or if it is so long that
    float32 cannot hold its clip factor.

    Args:
        network: Its parameters are those of ``optimizer``; hooks lie on it from now on, and work in `step` alone.
        physical_batch: m, records whose gradients are in memory at once, at most `MOST_PHYSICAL`.
        secure_mode: Whether each number of the noise is half the sum of four, as in Opacus' mode of that name.

    Raises:
        ConfigError: If Opacus refuses the network.
    """

    def __init__(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, *, physical_batch: int, secure_mode: bool = False
    ) -> None:
        refused = objections(network)
        if refused:
            raise ConfigError(f'Opacus refuses the network: {"; ".join(refused)}. Set method.engine = "idpgan".')
        self.physical_batch = min(checks.whole(physical_batch, "physical_batch", 1), MOST_PHYSICAL)
        self.secure_mode, self._failed = secure_mode, False
        self._module = GradSampleModule(network.train(), loss_reduction="sum")  # its hooks see a training mode only
        self._module.forbid_grad_accumulation()  # as under Poisson sampling: one backward pass, one clip
        self._module.disable_hooks()
        self._names = [name for name, _ in network.named_parameters()]
        self._optimizer = _PlannedOptimizer(optimizer)
        if [*map(id, self._optimizer.params)] != [*map(id, network.parameters())]:
            raise ValueError("the optimizer's parameters must be the network's, in the same order.")

    def step(self, plan: DPSGDPlan, noise: Noise, *batches: Batch) -> list[tuple[Tensor, Tensor]]:
        """Clip and sum all batches, add the plan's noise once, divide, and let the optimizer step.

        Returns:
            Of each batch: losses (B,), and norms before clipping, (B,) float64, not finite where a record counted as
            zero. For the curator.
        """
        if self._failed:
            raise RuntimeError("an earlier step failed half-way: what it left must not get into another sum.")
        chunks = [(number, *chunk) for number, batch in enumerate(batches) for chunk in self._chunks(batch)]
        self._failed = True
        self._optimizer.begin(plan, self._names, noise, self.physical_batch, self.secure_mode)
        found: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in batches]
        with self._hooked():
            for place, (number, records, counted) in enumerate(chunks, start=1):
                losses = self._differentiate(batches[number].loss, records)
                self._optimizer.counted = counted
                self._optimizer.signal_skip_step(do_skip=place < len(chunks))
                self._optimizer.step()
                self._optimizer.zero_grad(set_to_none=True)
                for kept, part in zip(found[number], (losses, self._optimizer.norms), strict=True):
                    kept.append(part)
        self._failed = False
        return [(torch.cat(losses), torch.cat(norms)) for losses, norms in found]

    def _chunks(self, batch: Batch) -> Iterator[tuple[list[Tensor], Tensor]]:
        """Yield physical batches with the mask of the records that are not null; one without rows for no records."""
        records = [*batch.records]
        num, device = len(records[0]), records[0].device
        counted = torch.ones(num, dtype=torch.bool, device=device) if batch.null is None else ~batch.null
        for *chunk, mask in zip(*(part.split(self.physical_batch) for part in (*records, counted)), strict=True):
            yield chunk, mask

    def _differentiate(self, loss: BatchLoss, records: Sequence[Tensor]) -> Tensor:
        """Leave the gradient of every record on the parameters, and return the losses."""
        if not len(records[0]):
            for weight in self._optimizer.params:
                weight.grad_sample = weight.new_zeros(0, *weight.shape)
            return records[0].new_zeros(0)
        losses = loss(self._module, *records)
        if losses.shape != (len(records[0]),):
            raise ValueError(f"{len(records[0])} records have losses of shape {tuple(losses.shape)}.")
        losses.sum().backward()
        return losses.detach()

    @contextlib.contextmanager
    def _hooked(self) -> Iterator[None]:
        # Each pass warns that no input of the network needs a gradient; the gradients of weights are complete.
        with full_precision(), unwarned(UserWarning, "Full backward hook is firing"):
            self._module.enable_hooks()
            try:
                yield
            finally:
                self._module.disable_hooks()


def objections(network: nn.Module) -> list[str]:
    """Return what Opacus has against a network, in its own words; its mode of training is not a matter here."""
    training = network.training
    try:
        found = [*ModuleValidator.validate(network.train(), strict=False), *GradSampleModule.validate(network)]
    finally:
        network.train(training)
    return [" ".join(str(error).split()).rstrip(". ") for error in found]


class _PlannedOptimizer(DPOptimizer):
    """Opacus' optimizer with float64 norms, and with the noise and the divisor of a `DPSGDPlan`.

    Attributes:
        counted: bool (B,) of the physical batch that comes next: the others' gradients are set to zero.
        norms: (B,) float64 of the last one, not finite where a record counted as zero.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(
            optimizer, noise_multiplier=0.0, max_grad_norm=0.0, expected_batch_size=None, loss_reduction="sum"
        )
        self.counted = self.norms = torch.zeros(0)

    def begin(self, plan: DPSGDPlan, names: Sequence[str], noise: Noise, physical_batch: int, secure: bool) -> None:
        """Take the plan of a step, and begin its sum in float64."""
        self._plan, self._names = plan, names
        self._normal = functools.partial(four_draws, noise) if secure else noise.normal
        slack = SLACK + 2.01 * physical_batch**2 * _ROUNDING
        self.noise_multiplier, self.max_grad_norm = plan.noise_multiplier, plan.clip_norm * (1 - slack)
        for weight in self.params:
            weight.summed_grad = torch.zeros_like(weight, dtype=torch.float64)

    @property
    def grad_samples(self) -> list[Tensor]:
        """The gradients of single records, from which Opacus takes norms: in float32 these lose small terms."""
        return [gradient.double() for gradient in super().grad_samples]

    def clip_and_accumulate(self) -> None:
        """Set the rows to zero that do not count, and let Opacus clip and sum."""
        gradients = super().grad_samples
        rows = [gradient.reshape(len(gradient), gradient[:1].numel()) for gradient in gradients]
        norms = torch.stack([torch.linalg.vector_norm(row, dim=1, dtype=torch.float64) for row in rows])
        norms = torch.linalg.vector_norm(norms, dim=0)
        counted = self.counted & (norms <= self.max_grad_norm / _LEAST_FACTOR)  # NaN fails it too
        if not bool(counted.all()):
            for gradient in gradients:
                gradient[~counted] = 0.0
            norms = norms.masked_fill(~counted, torch.nan)
        self.norms = norms
        super().clip_and_accumulate()

    def add_noise(self) -> None:
        """Set the gradients to those that the plan proves, from the sum of all physical batches."""
        weights = dict(zip(self._names, self.params, strict=True))
        sums: dict[str, Any] = {name: weight.summed_grad for name, weight in weights.items()}
        for weight in self.params:
            weight.summed_grad = None  # no sum gets noise twice
        self._plan.noisy_gradients(weights, sums, self._normal)


def four_draws(noise: Noise, shape: Sequence[int]) -> Tensor:
    """Draw standard normal numbers, each half the sum of four: the same law, and more bits for an attacker to guess.

    Opacus' secure mode does so against attacks on floating point (Holohan, Braghin 2021, "Secure random sampling in
    differential privacy"); rounding is left out of the proof all the same.
    """
    return noise.normal((4, *shape)).sum(0) / 2
