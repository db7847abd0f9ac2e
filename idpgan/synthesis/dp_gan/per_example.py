"""What one private record adds to the critic's gradient, and the sum of those additions, each bounded in norm.

Gradients are taken record by record with ``vmap(grad)``: no hook is placed on the critic and nothing is left on it.
(Opacus' hooks raise ``IndexError: pop from empty list`` where a loss differentiates twice, and keep ``grad_sample`` of
the generator's step.) Measured: 1.0 to 1.5 times the plain backward pass on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap
from torch.nn.functional import softplus

from idpgan.models.losses import interpolate
from idpgan.privacy.noise import Noise
from idpgan.privacy.precision import full_precision

Weights = Mapping[str, Tensor]
RecordLoss = Callable[..., Tensor]  # (weights, the tensors of one record) -> 0-d
T = TypeVar("T")

_SLACK = 1e-5  # norms are clipped to C (1 - _SLACK): rounding then never reaches C


def poisson_sample(num: int, sample_rate: float, noise: Noise) -> Tensor:
    """Return the records that are in: an independent secret coin each.

    Args:
        num: Number of records.
        sample_rate: q. A coin compares 52 uniform bits and a half with q, so its chance is q to 2^-53.
        noise: Where the coins come from. They are never released: the accounting of Poisson sampling needs that.

    Returns:
        (B,) int64, ascending; B is random, private, and may be 0.
    """
    return torch.nonzero(noise.uniform((num,)) < sample_rate)[:, 0]


class CriticLoss:
    """The critic's loss as a function of its weights and of one record.

    Args:
        critic: Scores of a record depend on that record alone.
        kind: "non-saturating": ``softplus(-D(x)) + softplus(D(G(z)))`` (Goodfellow et al. 2014); "wgan-gp":
            ``D(G(z)) - D(x) + penalty * (||grad D(x^)|| - 1)^2`` (Gulrajani et al. 2017).
        penalty: Weight of the gradient penalty, "wgan-gp" only.
        paired: Whether the fake's term belongs to its record.
        mismatch: Weight of the record under a wrong class as one more fake (GAN-CLS, Reed et al. 2016), which teaches
            the critic classes; 0 = none.
    """

    def __init__(
        self,
        critic: nn.Module,
        kind: Literal["non-saturating", "wgan-gp"],
        *,
        penalty: float,
        paired: bool,
        mismatch: float = 0.0,
    ) -> None:
        self.critic, self.kind, self.penalty, self.paired, self.mismatch = critic, kind, penalty, paired, mismatch
        self.conditional = bool(getattr(critic, "num_classes", 0))

    def of_record(
        self, weights: Weights, real: Tensor, label: Tensor, fake: Tensor, alpha: Tensor, wrong: Tensor
    ) -> Tensor:
        """Return all terms that one private record has a part in, 0-d.

        Args:
            weights: Of the critic.
            real: (C, H, W), the record.
            label: 0-d, its class; of the fake too.
            fake: (C, H, W), not used where it is neither paired nor interpolated.
            alpha: 0-d in [0, 1], where between real and fake the penalty is taken.
            wrong: 0-d, another class than the record's, not used without mismatch.
        """
        images, labels = [real], [label]
        if self.paired:
            images, labels = [real, fake], [label, label]
        if self.mismatch:
            images, labels = [*images, real], [*labels, wrong]
        scores = self._scores(weights, torch.stack(images), torch.stack(labels))
        loss = self._real_term(scores[0])
        if self.paired:
            loss = loss + self._fake_term(scores[1])
        if self.mismatch:
            loss = loss + self.mismatch * self._fake_term(scores[-1])
        if self.kind == "wgan-gp":
            mixed = interpolate(real[None], fake[None], alpha[None])
            slope = grad(lambda images: self._scores(weights, images, label[None])[0])(mixed)
            loss = loss + self.penalty * (torch.linalg.vector_norm(slope) - 1).square()
        return loss

    def of_fake(self, weights: Weights, fake: Tensor, label: Tensor) -> Tensor:
        """Return the term of one fake, 0-d."""
        return self._fake_term(self._scores(weights, fake[None], label[None])[0])

    def of_generator(self, scores: Tensor) -> Tensor:
        """Return the generator's loss on scores (B,) of fakes, 0-d."""
        return softplus(-scores).mean() if self.kind == "non-saturating" else -scores.mean()

    def _scores(self, weights: Weights, images: Tensor, labels: Tensor) -> Tensor:
        scores: Tensor = functional_call(
            self.critic, dict(weights), (images, labels) if self.conditional else (images,)
        )
        return scores

    def _real_term(self, score: Tensor) -> Tensor:
        return softplus(-score) if self.kind == "non-saturating" else -score

    def _fake_term(self, score: Tensor) -> Tensor:
        return softplus(score) if self.kind == "non-saturating" else score


def per_example_gradients(
    loss: RecordLoss, weights: Weights, records: Sequence[Tensor]
) -> tuple[dict[str, Tensor], Tensor]:
    """Differentiate a loss for every record on its own.

    Args:
        loss: Called as ``loss(weights, *record)``; may itself differentiate with `torch.func.grad`.
        weights: What is differentiated for; not changed.
        records: Tensors of B rows each, B >= 0.

    Returns:
        Gradients, (B, *shape) each, and losses, (B,).
    """
    weights = {name: weight.detach() for name, weight in weights.items()}
    if not len(records[0]):
        some = next(iter(weights.values()))
        return {name: weight.new_zeros(0, *weight.shape) for name, weight in weights.items()}, some.new_zeros(0)
    in_dims = (None, *[0] * len(records))
    gradients, losses = vmap(grad_and_value(loss), in_dims=in_dims)(weights, *records)
    return gradients, losses


@dataclass(frozen=True)
class ClippedSum:
    """A sum of per-record gradients of norm at most C each, and what it was made of (curator only).

    Attributes:
        sums: One float64 tensor per weight, without a batch dimension.
        losses: (B,).
        norms: (B,) before clipping, float64; not finite where the record counted as zero, null records among them.
    """

    sums: dict[str, Tensor]
    losses: Tensor
    norms: Tensor


@full_precision()
def clipped_sum(
    loss: RecordLoss,
    weights: Weights,
    records: Sequence[Tensor],
    *,
    clip_norm: float,
    physical_batch: int,
    null: Tensor | None = None,
) -> ClippedSum:
    r"""Sum ``g_i min(1, C / ||g_i||)`` over all records, g_i the gradient of record i in all weights together.

    Sensitivity, L2, zero-out-one: C, since every term is a function of one record (and of coins that are
    its own) and has norm at most C; that of a null record is zero. A gradient that is not finite counts as zero
    *before* the sum, so that no record can void the others' noise with a NaN. Chunks bound the memory and change only
    the order of the sum; null records keep their rows in them.

    Rounding. In float32 a norm loses what is small beside what is large, so that a clipped one exceeds C, and a sum
    moves by its own rounding beside the record's term. So norms, factors and sums are float64, and clipped norms
    C (1 - 1e-5): the slack is far more than float64 rounds in a sum of 10^9 records.

    Args:
        loss: See `per_example_gradients`.
        weights: See there.
        records: See there.
        clip_norm: C > 0.
        physical_batch: Records whose gradients are in memory at once.
        null: bool (B,), which records are null; None = none.
    """
    num, device = len(records[0]), records[0].device
    sizes = [weight.numel() for weight in weights.values()]
    rows = torch.empty(min(num, physical_batch), sum(sizes), dtype=torch.float64, device=device)  # of all chunks
    total = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
    counts = torch.ones(num, dtype=torch.bool, device=device) if null is None else ~null
    losses, norms = [], []
    for *chunk, counted in zip(*(part.split(physical_batch) for part in (*records, counts)), strict=True):
        gradients, values = per_example_gradients(loss, weights, chunk)
        row = rows[: len(counted)]
        for part, gradient in zip(row.split(sizes, 1), gradients.values(), strict=True):
            part.copy_(gradient.flatten(1))
        norm = torch.linalg.vector_norm(row, dim=1).masked_fill(~counted, torch.nan)  # (B,)
        finite = norm.isfinite()
        if not bool(finite.all()):
            row.masked_fill_(~finite[:, None], 0.0)
        factor = torch.where(finite, (clip_norm * (1 - _SLACK) / norm).clamp(max=1.0), 0.0)
        total += factor @ row
        losses.append(values)
        norms.append(norm)
    sums = {name: part.view_as(weights[name]) for name, part in zip(weights, total.split(sizes), strict=True)}
    return ClippedSum(sums, torch.cat(losses), torch.cat(norms))


def halving_on_out_of_memory(compute: Callable[[int], T], physical_batch: int) -> tuple[T, int]:
    """Call ``compute(physical_batch)``, with half as many records at once each time the memory does not suffice.

    Returns:
        The result, and the number that sufficed.

    Raises:
        RuntimeError: What `compute` raised, if it is something else, or one record is too many.
    """
    while True:
        try:
            return compute(physical_batch), physical_batch
        except RuntimeError as error:  # torch.OutOfMemoryError is one; on the CPU there is none of its own
            if physical_batch == 1 or not _is_out_of_memory(error):
                raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        physical_batch //= 2


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
