r"""DP-SGD as one frozen plan: sampling, clipping, noise, divisor, and the price of a step.

Abadi et al., "Deep Learning with Differential Privacy" (2016), with Poisson sampling and a public divisor. A method
passes in its loss as a function of (weights, one record). One backward pass of all records captures inputs and output
gradients of the layers, which give norms and clipped sum (`idpgan.privacy.ghost_norms`); where a loss cannot be
captured, ``vmap(grad)`` differentiates record by record. Either way no hook is placed on a network and nothing is left
on it. (Opacus' hooks raise ``IndexError: pop from empty list`` where a loss differentiates twice, and keep
``grad_sample`` of a generator's step.)
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from idpgan import checks
from idpgan.errors import InputError
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.event import LARGEST, Event
from idpgan.privacy.ghost_norms import NotCapturedError, capture, is_out_of_memory
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.layer_gradients import LayerGradient, Materialized, clip_and_add
from idpgan.privacy.noise import Noise
from idpgan.ranks import ALONE, Ranks

Weights = Mapping[str, Tensor]
RecordLoss = Callable[..., Tensor]  # (weights, the tensors of one record) -> 0-d
BatchLoss = Callable[..., Tensor]  # (network, tensors of B rows each) -> (B,), row i a function of row i alone
Way = Literal["ghost", "vmap"]

SLACK = 1e-5  # norms are clipped to C (1 - SLACK): rounding then never reaches C


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Compute matrix products and convolutions of a CUDA device in IEEE float32 inside the block.

    A GPU's TF32 keeps 10 bits of 23: clip factors and features rounded to TF32 can exceed their norm by 2^-11. On the
    CPU nothing changes.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@dataclass(frozen=True)
class ClippedSum:
    """A sum of per-record gradients of norm at most C each, and their losses and norms (curator only).

    Attributes:
        sums: One float64 tensor per weight, without a batch dimension.
        losses: (B,).
        norms: (B,) before clipping, float64; not finite where the record counted as zero, null records among them.
        physical_batch: Records whose gradients were in memory at once; less than asked for if memory was short.
        way: How gradients were found; see `DPSGDPlan.clipped_sum`.
    """

    sums: dict[str, Tensor]
    losses: Tensor
    norms: Tensor
    physical_batch: int
    way: Way


@dataclass(frozen=True)
class Batch:
    """Records whose clipped gradients are part of a step's sum.

    Attributes:
        loss: Of the hooked network and a chunk of ``records``, (B,).
        records: Tensors of B rows each, B >= 0.
        null: bool (B,), which records are null: they keep their rows and add nothing. None = none.
    """

    loss: BatchLoss
    records: Sequence[Tensor]
    null: Tensor | None = None


@dataclass(frozen=True)
class DPSGDPlan:
    """Everything in DP-SGD that decides on privacy: `sample`, `clipped_sum`, `noisy_step` and their `event`.

    One step draws each record by a secret coin of chance q (`sample`), and moves the weights by

        (1 / B) (sum of clip_C(g_i) over the drawn i + N(0, (sigma C)^2 I))

    with a public constant B and g_i the gradient of record i's loss in all weights together.

    Formal guarantee: the Poisson-sampled Gaussian mechanism of noise multiplier sigma and sampling rate q, zero-out-one
    (Abadi et al. 2016); `event` is the price of one step. It covers the weights and what is computed from them, not the
    losses and norms of a `ClippedSum`. A batch of no records is charged, noised and stepped like any other.

    Several processes (``ranks``) take a step together: each calls all three methods, with the records of its share.
    Rank 0 alone draws the coins of all records, holds the sum over all shares and draws the noise on it, once: the
    other ranks get the noisy gradient and nothing that comes before it. The sum is that of one process, so the proof
    holds.

    The caller charges `event` before each step. Row i of every tensor must be a function of record i, of the weights
    and of record i's own coins. A null record keeps its row, and is marked in the mask ``null``.

    Attributes:
        sample_rate: q in (0, 1].
        clip_norm: C, bound on one record's gradient; a constant, never taken from private gradients.
        divisor: B, public; about q N.
        noise_multiplier: sigma = standard deviation of the noise on the sum / C.
        unit: What one record is.
        ranks: The processes that share each step; all hold the same weights, and one plan but for this.

    Example: a linear classifier of ``images`` (N, D) with ``labels`` (N,); ``weights`` are its named parameters::

        def loss(weights, image, label):
            return cross_entropy(functional_call(model, weights, (image,)), label)

        ledger.charge(plan.event)
        drawn = plan.sample(len(images), noise)
        result = plan.clipped_sum(loss, weights, [images[drawn], labels[drawn]], physical_batch=64)
        plan.noisy_step(optimizer, weights, result.sums, noise)
    """

    sample_rate: float
    clip_norm: float
    divisor: int
    noise_multiplier: float
    unit: Unit = Unit.IMAGE
    ranks: Ranks = field(default=ALONE, compare=False, repr=False)
    relation: ClassVar[Relation] = Relation.ZERO_OUT  # the only one under which Poisson sampling is accounted

    def __post_init__(self) -> None:
        value = self.clip_norm
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
            raise InputError(f"clip_norm = {value!r} of DP-SGD must be a number, positive and finite.")
        checks.whole(self.divisor, "divisor", 1)
        _ = self.event  # checks the rest

    @property
    def event(self) -> Event:
        """Price of one step."""
        multiplier, rate = self.noise_multiplier, self.sample_rate
        return Event("poisson-gaussian", self.unit, self.relation, multiplier, sample_rate=rate)

    def sample(self, num: int, noise: Noise) -> Tensor:
        """Draw the records of a step, each by an independent secret coin of chance q, and return this rank's share.

        The coins are never released, as the accounting of Poisson sampling requires. A coin compares 52 uniform bits
        and a half with q, so its chance is q to 2^-53.

        Args:
            num: Number of records, null records among them.

        Returns:
            (B,) int64, ascending; B is random, private, and may be 0. Over all ranks each drawn record occurs once.
        """
        shape = (checks.whole(num, "num"),)
        if self.ranks.first:
            drawn = (noise.uniform(shape) < self.sample_rate).byte()
        else:
            drawn = torch.zeros(shape, dtype=torch.uint8, device=noise.device)
        self.ranks.from_first([drawn])
        index = torch.nonzero(drawn)[:, 0]
        return index[self.ranks.share(len(index))]

    def clipped_sum(
        self,
        loss: RecordLoss,
        weights: Weights,
        records: Sequence[Tensor],
        *,
        physical_batch: int,
        null: Tensor | None = None,
        way: Way = "ghost",
    ) -> ClippedSum:
        r"""Sum ``g_i min(1, C / ||g_i||)`` over all records, g_i the gradient of record i in all weights together.

        Sensitivity, L2, zero-out-one: C, since every term is a function of one record (and of coins that are
        its own) and has norm at most C; that of a null record is zero. A gradient that is not finite counts as zero
        *before* the sum, so that no record can void the others' noise with a NaN. Chunks bound the memory and change
        only the order of the sum; null records keep their rows in them, so that chunks are alike for neighbors.

        Rounding. In float32 a norm loses small terms beside large ones, so that a clipped norm exceeds C, and a sum
        moves by its own rounding besides the record's term. So norms, factors and sums are float64, and clipped norms
        C (1 - 1e-5): the slack is far more than float64 rounds in a sum of 10^9 records.

        ``loss``, ``weights`` and ``records`` are those of `per_example_gradients`.

        Args:
            physical_batch: Records whose gradients are in memory at once. Where that is too many the whole sum is taken
                again with half of it: nothing has been accumulated outside, and no coin is tossed again.
            null: bool (B,), which records are null; None = none.
            way: How gradients are found, both ways exact: "ghost" by one backward pass that captures what the layers
                see (`idpgan.privacy.ghost_norms`), "vmap" by `torch.func`. Where a loss cannot be captured, "ghost"
                becomes "vmap". A caller passes on the `ClippedSum.way` of its last step, as with ``physical_batch``.

        Raises:
            RuntimeError: What `loss` raised, or that the memory does not hold the gradient of one record.
        """
        num = len(records[0])
        if any(len(part) != num for part in records) or (null is not None and null.shape != (num,)):
            raise ValueError("all tensors of the records and the mask of null records must have B rows.")
        checks.whole(physical_batch, "physical_batch", 1)
        while True:
            try:
                return self._clipped_sum(loss, weights, records, physical_batch, null, way)
            except NotCapturedError:
                way = "vmap"
                continue
            except RuntimeError as error:
                if physical_batch == 1 or not is_out_of_memory(error):
                    raise
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            physical_batch //= 2

    @full_precision()
    def _clipped_sum(
        self,
        loss: RecordLoss,
        weights: Weights,
        records: Sequence[Tensor],
        physical_batch: int,
        null: Tensor | None,
        way: Way,
    ) -> ClippedSum:
        num, device = len(records[0]), records[0].device
        total = {
            name: torch.zeros(weight.shape, dtype=torch.float64, device=device) for name, weight in weights.items()
        }
        counts = torch.ones(num, dtype=torch.bool, device=device) if null is None else ~null
        losses, norms = [], []
        for *chunk, counted in zip(*(part.split(physical_batch) for part in (*records, counts)), strict=True):
            gradients, values = record_gradients(loss, weights, chunk, way)
            norms.append(clip_and_add(gradients, counted, self.clip_norm * (1 - SLACK), total))
            losses.append(values)
        return ClippedSum(total, torch.cat(losses), torch.cat(norms), physical_batch, way)

    @full_precision()
    def clipped_outer_sum(
        self,
        residuals: Tensor,
        features: Tensor,
        *,
        null: Tensor | None = None,
        weights: Tensor | None = None,
        total: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        r"""Sum ``g_i min(1, C / ||g_i||)`` where ``g_i = r_i f_i^T``, as a linear layer has it: no g_i is ever made.

        Its norm is that of r_i times that of f_i (Goodfellow 2015, "Efficient per-example gradient computations"), so
        clipping scales r_i, and the sum is one matrix product.

        Sensitivity, L2, zero-out-one: C, as for `clipped_sum`, whose remarks on rounding and on what is not finite hold
        here too: norms, factors and products are float64. For unit person the weights of one person's rows add up to at
        most 1, so that the person's term has norm at most C (triangle inequality).

        Args:
            residuals: (B, K), row i a function of record i.
            features: (B, D), likewise.
            null: bool (B,), which records are null; None = none.
            weights: (B,) in [0, 1], each row's share of its unit; None = every row is a unit.
            total: (K, D) float64 to add to, so that records may come in parts; None = zero.

        Returns:
            The sum, (K, D) float64, and the norms (B,) before clipping, not finite where the record counted as zero.
        """
        num = len(residuals)
        if len(features) != num or any(part is not None and part.shape != (num,) for part in (null, weights)):
            raise ValueError("residuals, features, weights and the mask of null records must have B rows.")
        if weights is not None and not bool(((weights >= 0) & (weights <= 1)).all()):  # NaN fails it too
            raise ValueError("weights are shares of a unit, in 0 .. 1.")
        left, right = residuals.double(), features.double()
        norms = torch.linalg.vector_norm(left, dim=1) * torch.linalg.vector_norm(right, dim=1)
        norms = norms if null is None else norms.masked_fill(null, torch.nan)
        finite = norms.isfinite()[:, None]
        factor = (self.clip_norm * (1 - SLACK) / norms[:, None]).clamp(max=1.0)
        factor = factor if weights is None else factor * weights.double()[:, None]
        left = torch.where(finite, left * factor, 0.0)
        if not bool(finite.all()):
            right = torch.where(finite, right, 0.0)
        found = left.T @ right
        return found if total is None else total.add_(found), norms

    def statistics(self, losses: Tensor, norms: Tensor) -> dict[str, Tensor]:
        """Average over the records of a step that counted, for the curator; empty if none counted.

        Args:
            losses: (B,).
            norms: (B,) before clipping; not finite where the record counted as zero.
        """
        counted = norms.isfinite() & losses.isfinite()
        if not bool(counted.any()):
            return {}
        return {
            "loss": losses[counted].double().mean(),
            "gradient_norm": norms[counted].mean(),
            "clipped_share": (norms[counted] > self.clip_norm).double().mean(),
        }

    def noisy_step(self, optimizer: torch.optim.Optimizer, weights: Weights, sums: Weights, noise: Noise) -> None:
        """Set ``grad = (sum + N(0, (noise_multiplier clip_norm)^2)) / divisor``, and let the optimizer step.

        The noise comes from `Noise`, not from a `torch.Generator`, which on the CPU is a Mersenne Twister with 32 bits
        of seed that an attacker can try out. The noise is continuous Gaussian in floating point, drawn for all weights
        at once and added in float64: low-order bits are not covered by the proof (docs/reference/pitfalls.md).

        Args:
            optimizer: Holds exactly these weights; their gradients are cleared afterwards, so that none stays behind.
            weights: Leaf tensors by name, in the order in which the noise is drawn.
            sums: As `clipped_sum` returned them: together of L2 sensitivity `clip_norm`, over all ranks.
            noise: Drawn from on rank 0 alone.
        """
        held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        if list(weights) != list(sums) or held != {id(weight) for weight in weights.values()}:
            raise ValueError("weights, sums and the optimizer's parameters must be the same, in the same order.")
        self.noisy_gradients(weights, sums, noise.normal)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def noisy_gradients(self, weights: Weights, sums: Weights, normal: Callable[[Sequence[int]], Tensor]) -> None:
        """Set ``grad = (sum + N(0, (noise_multiplier clip_norm)^2)) / divisor``, as `noisy_step` does before it steps.

        Args:
            weights: Leaf tensors by name, in the order in which the noise is drawn.
            sums: As of `noisy_step`.
            normal: Draws standard normal numbers of a shape, float64, from a secret source; called on rank 0 alone.
        """
        sizes = [weight.numel() for weight in weights.values()]
        totals = self.ranks.sum_to_first([sums[name].double() for name in weights])
        if self.ranks.first:
            drawn = normal((sum(sizes),)) * (self.noise_multiplier * self.clip_norm)
            for weight, total, part in zip(weights.values(), totals, drawn.split(sizes), strict=True):
                noisy = total + part.to(weight.device).view_as(weight)
                weight.grad = noisy.to(weight.dtype).div_(self.divisor)
        else:  # NaN until the noisy gradient arrives: no weight moves without it
            for weight in weights.values():
                weight.grad = torch.full_like(weight, torch.nan)
        self.ranks.from_first([weight.grad for weight in weights.values() if weight.grad is not None])


def per_example_gradients(
    loss: RecordLoss, weights: Weights, records: Sequence[Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """Differentiate a loss for every record on its own: gradients, (B, *shape) each, and losses, (B,).

    Args:
        loss: Called as ``loss(weights, *record)``; may itself differentiate with `torch.func.grad`.
        weights: What is differentiated for; not changed.
        records: Tensors of B rows each, B >= 0.
    """
    weights = {name: weight.detach() for name, weight in weights.items()}
    if not len(records[0]):
        some = next(iter(weights.values()))
        return {name: weight.new_zeros(0, *weight.shape) for name, weight in weights.items()}, some.new_zeros(0)
    in_dims = (None, *[0] * len(records))
    gradients, losses = vmap(grad_and_value(loss), in_dims=in_dims)(weights, *records)
    return gradients, losses


def record_gradients(
    loss: RecordLoss, weights: Weights, records: Sequence[Tensor], way: Way
) -> tuple[Mapping[str, LayerGradient], Tensor]:
    """Return the gradients of every record by weight, in a form that can be clipped and summed, and the losses (B,).

    Raises:
        NotCapturedError: If the way is "ghost" and the loss cannot be captured.
    """
    if way == "ghost" and len(records[0]):
        return capture(loss, weights, records)
    gradients, losses = per_example_gradients(loss, weights, records)
    return {name: Materialized(gradient) for name, gradient in gradients.items()}, losses


@functools.lru_cache(maxsize=16)  # takes some seconds; both the plan of a run and its method ask for it
def least_noise(
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    spent: tuple[Event, ...] = (),
    unit: Unit = Unit.IMAGE,
) -> float:
    """Return the least noise multiplier with which ``steps`` steps after ``spent`` stay within the target.

    See `calibrate`. Raises `InputError` if ``spent`` leaves nothing.
    """
    return calibrate(
        lambda sigma: [*spent, DPSGDPlan(sample_rate, 1.0, 1, sigma, unit).event.repeated(steps)], epsilon, delta
    )
