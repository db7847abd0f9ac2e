r"""DP-SGD as one frozen plan: sampling, clipping, noise, divisor, and the price of a step. Exact to the last bit.

Abadi et al., "Deep Learning with Differential Privacy" (2016), with Poisson sampling and a public divisor. A method
passes in its loss as a function of (weights, one record). One backward pass of all records captures inputs and output
gradients of the layers, which give each record's gradient (`idpgan.privacy.captured_gradients`); where a loss cannot be
captured, ``vmap(grad)`` differentiates record by record. Either way no hook is placed on a network and nothing is left
on it. (Opacus' hooks raise ``IndexError: pop from empty list`` where a loss differentiates twice, and keep
``grad_sample`` of a generator's step.)

**Proof**, zero-out-one, for what the processor computes, not for real numbers. S = 1 / `DPSGDPlan.grid` whole steps
stand for the clip norm C. Let D' hold the null record where D holds record i; fix the weights and everybody's coins.

1. *Isolation.* What a record j adds is a function of that record, its own coins, the weights and the kind of its slot,
   which follows from j alone (`idpgan.privacy.tiles`): tiles have one shape, kernels are chosen by shape and number of
   threads, and rows, way, threads and kinds are decided before the first private step on records that are drawn at
   random. Nothing that is decided later hangs on content: where memory is short, a step fails. So the others add the
   same sum s, whether record i is there, is null, or was not drawn. What this takes from the libraries is that code of
   one shape treats each row by itself, and slots of one kind alike. Of loops over single numbers the second is proven
   there; both are tested, bit by bit, over our layers, on processors of several kinds and with 1 to 16 threads, and
   the second on random records before each run. *On a GPU neither is tested.*
2. *Norm.* What record i adds is a row of whole numbers of L2 norm at most R, R a power of two up to S, by
   `layer_gradients.cut`, and each stands for S / R steps. A gradient becomes W numbers g of float32 first, and their
   norm n is measured: pieces of 128 in float32, off by at most a share of 131 / 2^25, the pieces in float64, W 2^-53;
   numbers below 2^-63, whose squares float32 loses, have a norm below sqrt(W) 2^-63. The factor
   ``f = min(1, C (1 - 1e-5) / n) R / C`` is rounded to float32, 2^-23, a product ``f g`` too, 2^-24, and the
   conversion to integers makes no number larger. For W below 2^35 and C from 1e-6 on, the norm of the row is at most
   R (1 - 1e-5) (1 + 8.2e-6) < R. A number of g that is not finite, or whose square is not, makes the row zero. Of G
   groups of weights (`ClipGroups`) each has norm at most R / sqrt(G) so, by its own bound; together they have R.
3. *Exact addition.* Rows of a chunk of B are added as integers of 32 bits: R is at most 2^30 / B, so no partial sum
   leaves them. Chunks are added in float64: a sum of at most 2^53 / S records has no partial sum beyond 2^53 steps, so
   it is exact in any order of blocks, tiles, processes, atomic additions. More are refused (`DPSGDPlan.most_rows`).
4. *Exact noise.* ``round(Z)``, Z exactly normal of standard deviation ``ceil(sigma S)`` steps, is added to the whole
   sum: with whole numbers x, ``x + round(Z) = round(x + Z)`` but for ties, which have probability 0
   (`idpgan.privacy.discrete.rounded_gaussian`; integers only). Of several processes each adds the noise of its blocks
   of numbers to its *own* part of the sum, and all parts add up as integers of 64 bits: the same total, whoever draws,
   and none ever holds s. All draw under one key, from disjoint places of its stream (`Noise.handed_on`), so as one
   process would; a count of each block's noise adds up with it, and all is NaN but where it is 1 (`Ranks.noisy_sum`).
   Given the others' coins the released law of D' is ``round(N(s))``, that of D ``(1 - q) round(N(s)) + q round(N(s +
   g))`` with ``||g|| <= S``: rounding a Poisson-sampled Gaussian of multiplier at least sigma, at the same price. The
   coins of the others have the same law for both; a coin falls with chance floor(q 2^52) / 2^52, and a record's own
   coins are made of words of its own.

Division, learning rate and everything after are post-processing, in floating point.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from idpgan import checks
from idpgan.device import is_gpu, sent
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.privacy import discrete, graphs
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.captured_gradients import NotCapturedError, RecordLoss, Weights, is_out_of_memory
from idpgan.privacy.clip_groups import CLIP_NORMS, ClipGroups
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.layer_gradients import SLACK, Features, blocks, clip_factors, norms
from idpgan.privacy.noise import PLACE_BYTES, Noise
from idpgan.privacy.precision import Precision, full_precision
from idpgan.privacy.tiles import Rows, Tiles, Way, alike, all_threads, random_like, sizes, spare, threads_of
from idpgan.ranks import ALONE, Ranks

_GRID_BITS = 32  # a clip norm has 2^32 grid steps, and the noise at most 2^50
_NOISE_BITS = 50
_FEATURE_BITS = 17  # of these, for the norm of features; see `DPSGDPlan.clipped_outer_sum`
_CACHE = 4 << 20  # bytes of features in float64 at once on a processor: all of them take five times as long
_HALF_STEP = 2.0**-53  # between a uniform number of `Noise` and the end of its interval

ClipNorm = Annotated[float, Field(ge=CLIP_NORMS[0], le=CLIP_NORMS[1])]  # of a config


@dataclass(frozen=True)
class ClippedSum:
    """A sum of per-record gradients of norm at most C each, and their losses and norms (curator only).

    Attributes:
        sums: One float64 tensor of whole grid steps per weight, without a batch dimension.
        losses: (B,), those of null records and of empty slots among them.
        norms: (B,) before clipping, float64; not finite where the record counted as zero, null records among them.
    """

    sums: dict[str, Tensor]
    losses: Tensor
    norms: Tensor


@dataclass(frozen=True)
class DPSGDPlan:
    """Everything in DP-SGD that decides on privacy: `tiles`, `sample`, `clipped_sum`, `noisy_step` and their `event`.

    One step draws each record by a secret coin of chance q (`sample`), and moves the weights by

        (1 / B) (sum of clip_C(g_i) over the drawn i + N(0, (sigma C)^2 I))

    with a public constant B and g_i the gradient of record i's loss in all weights together. Sum and noise are whole
    steps of a public grid.

    Formal guarantee: the Poisson-sampled Gaussian mechanism of noise multiplier sigma and sampling rate q, zero-out-one
    (Abadi et al. 2016), for the numbers that are computed; `event` is the price of one step, and the module has the
    proof. It covers the weights and what is computed from them, not the losses and norms of a `ClippedSum`. A batch of
    no records is charged, noised and stepped like any other.

    Several processes (``ranks``) take a step together: each calls all methods, with the records of its share. Rank 0
    draws all coins. Each rank adds the noise of its blocks of numbers before parts add up, as the module says.

    The caller charges `event` before each step. Row r of every tensor of a tile must be a function of the record in
    slot r, of the weights and of that record's own coins. A null record keeps its row, and is marked.

    Attributes:
        sample_rate: q in (0, 1].
        clip_norm: C, bound on one record's gradient; a constant, never taken from private gradients.
        divisor: B, public; about q N.
        noise_multiplier: sigma = standard deviation of the noise on the sum / C.
        unit: What one record is.
        exact: Whether steps are exact on the grid; False for steps in floating point, as Opacus takes them.
        groups: Of weights that are clipped by themselves in the place of all together; exact steps only.
        ranks: The processes that share each step; all hold the same weights, and one plan but for this.

    Example: a linear classifier of ``images`` (N, D) with ``labels`` (N,); ``weights`` are its named parameters::

        def loss(weights, image, label):
            return cross_entropy(functional_call(model, weights, (image,)), label)

        zero = [torch.zeros(1, D), torch.zeros(1, dtype=torch.int64)]
        tiles = plan.tiles(loss, weights, zero, num=len(images), most=64)
        ledger.charge(plan.event)
        drawn = plan.sample(len(images), noise, tiles)  # (tiles, T): in a slot with -1 stands any record, as null
        result = plan.clipped_sum(loss, weights, (([images[i], labels[i]], i < 0) for i in drawn), tiles)
        plan.noisy_step(optimizer, weights, result.sums, noise)
    """

    sample_rate: float
    clip_norm: float
    divisor: int
    noise_multiplier: float
    unit: Unit = Unit.IMAGE
    exact: bool = True
    groups: ClipGroups | None = field(default=None, compare=False, repr=False)
    ranks: Ranks = field(default=ALONE, compare=False, repr=False)
    relation: ClassVar[Relation] = Relation.ZERO_OUT  # the only one under which Poisson sampling is accounted

    def __post_init__(self) -> None:
        value, (least, most) = self.clip_norm, CLIP_NORMS
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise InputError(f"clip_norm = {value!r} of DP-SGD must be a number in {least:g} .. {most:g}.")
        checks.whole(self.divisor, "divisor", 1)
        if self.groups is not None and not self.exact:
            raise InputError("groups of weights are clipped in exact steps only.")
        _ = self.event  # checks the rest

    @property
    def event(self) -> Event:
        """Price of one step."""
        multiplier, rate = self.noise_multiplier, self.sample_rate
        grid = self.grid if self.exact else None
        return Event("poisson-gaussian", self.unit, self.relation, multiplier, sample_rate=rate, grid=grid)

    @property
    def grid(self) -> float:
        """Step of the public grid as a share of the clip norm: 2^-32, coarser only for multipliers above 2^18."""
        above = math.frexp(self.noise_multiplier)[1]  # sigma < 2^above
        return 2.0 ** -max(0, min(_GRID_BITS, _NOISE_BITS - above))

    @property
    def step(self) -> float:
        """Step of the grid in the unit of the gradient."""
        return self.grid * self.clip_norm

    @property
    def most_rows(self) -> int:
        """Records, and as many public ones, whose sum stays below 2^53 steps whatever they are."""
        return int(2.0**52 * self.grid)

    # Before the first private step ------------------------------------------------------------------------------------

    @own_state()
    def tiles(
        self,
        loss: RecordLoss,
        weights: Weights,
        record: Sequence[Tensor],
        *,
        num: int,
        most: int,
        way: Way = "capture",
        prepare: Callable[..., Sequence[Tensor]] | None = None,
        precision: Precision = "float32",
        saved: Tiles | None = None,
    ) -> Tiles:
        """Decide how the records of all steps are computed, on random records: rows, chunks, way, threads, kinds.

        Chunks are halved until memory holds them; where a loss cannot be captured, "capture" becomes "vmap", and
        "graph" becomes "capture" where a replay is not proven (`graphs.record`).

        Args:
            record: One record that is public, tensors of 1 row each: floating-point numbers are replaced by random ones
                in [0, 1), others stay.
            num: N, null records among them.
            most: Records whose gradients may be in memory at once.
            prepare: Makes the tensors that the loss takes of T rows like ``record``; None = they are those.
            precision: Of the products of a record's gradient.
            saved: What was decided before, for steps that are repeated: returned itself if it still works here.

        Raises:
            RuntimeError: What `loss` raised, or that the memory does not hold the gradient of one record.
        """
        many, device = self.ranks.rows(num), record[0].device
        rows, chunk = sizes(self.sample_rate, many, checks.whole(most, "most", 1), device)
        rows, chunk, way = (saved.rows, saved.chunk, saved.way) if saved else (rows, chunk, way)

        def prepared(draws: torch.Generator) -> list[Tensor]:
            given = [random_like(part, draws).expand(rows, *part.shape[1:]).contiguous() for part in record]
            return [*(given if prepare is None else prepare(*given))]

        def inputs(draws: torch.Generator) -> Rows:
            yield slice(0, rows), torch.cat([part.double().view(rows, -1) for part in prepared(draws)], 1)

        def gradients(draws: torch.Generator) -> Rows:
            moved, some = graphs.moved_weights(weights, draws), [part[:chunk] for part in prepared(draws)]
            found, losses = graphs.gradients_in(precision, loss, moved, some, way)
            for place, part in blocks(found, len(losses)):
                yield place, torch.cat([*part, norms(part, losses[place])[:, None]], 1)

        def whole_step() -> None:
            """Take all the memory of a step, with that of its noise and optimizer, which comes after a charge."""
            _spare = spare(weights)
            records, null = prepared(torch.Generator().manual_seed(0)), torch.zeros(rows, dtype=torch.bool)
            self.clipped_sum(loss, weights, [(records, null.to(device))], found)

        while True:
            threads = 0 if self.sample_rate == 1 else threads_of(chunk, device)
            found = saved or Tiles(rows, torch.arange(rows), chunk, way, threads or all_threads(), precision)
            try:
                with found.computing():
                    whole_step()
                    if found is not saved and threads:
                        found = replace(found, kinds=alike(rows, (rows, inputs), (chunk, gradients)))
                    if way == "graph":
                        own = graphs.chunk_of(loss, found, self.clip_norm, self.grid, self.groups)
                        graphs.record(own, found, weights, prepared(torch.Generator().manual_seed(0)))
                        whole_step()  # in the memory that the graph leaves
                    return found
            except NotCapturedError as error:
                way, saved = error.instead, None
                continue
            except RuntimeError as error:
                if chunk == 1 or not is_out_of_memory(error):
                    raise
            torch.cuda.empty_cache()  # nothing where no GPU was used
            (rows, chunk), saved = sizes(self.sample_rate, many, chunk // 2, device), None

    # A step -----------------------------------------------------------------------------------------------------------

    def poisson_sample(self, num: int, noise: Noise) -> Tensor:
        """Draw the records of a step, each by an independent secret coin of chance q, and return this rank's share.

        The coins are never released, as the accounting of Poisson sampling requires. A coin compares 52 uniform bits
        with q, and falls with the largest chance of so many bits that is at most q.

        Args:
            num: Number of records, null records among them.

        Returns:
            (B,) int64, ascending; B is random, private, and may be 0. Over all ranks each drawn record occurs once, and
            a record's rank follows from its position and ``num``.
        """
        shape = (checks.whole(num, "num"),)
        if self.ranks.first:
            drawn = (noise.uniform(shape) + _HALF_STEP <= self.sample_rate).byte()
        else:
            drawn = torch.zeros(shape, dtype=torch.uint8, device=noise.device)
        self.ranks.from_first([drawn])
        if int(drawn.sum(dtype=torch.int64)) > self.most_rows:
            raise InputError(f"a step of DP-SGD adds up {self.most_rows:,} records at most; lower the sampling rate.")
        share = self.ranks.share(num)
        return torch.nonzero(drawn[share])[:, 0] + share.start

    def sample(self, num: int, noise: Noise, tiles: Tiles) -> Tensor:
        """Return where `poisson_sample`'s records are computed: positions, int64 (tiles, T), -1 in an empty slot."""
        return tiles.places(self.poisson_sample(num, noise))

    @own_state()
    def clipped_sum(
        self,
        loss: RecordLoss,
        weights: Weights,
        batches: Iterable[tuple[Sequence[Tensor], Tensor]],
        tiles: Tiles,
    ) -> ClippedSum:
        r"""Sum ``g_i min(1, C / ||g_i||)`` over all records, g_i the gradient of record i in all weights together.

        Sensitivity, L2, zero-out-one: S steps, see the module. A gradient that is not finite counts as zero *before*
        the sum, so that no record can void the others' noise with a NaN.

        Args:
            loss: As of `per_example_gradients`.
            weights: Likewise.
            batches: Records of the positions that `sample` gave, tile by tile, as tensors of T rows each, and bool
                (T,), which of the slots hold a null record or none. `idpgan.privacy.tiles.tiled` makes them of others.
            tiles: As of `sample`. Their way is "capture" by one backward pass that captures what the layers see, or
                "vmap" by `torch.func`.

        Raises:
            NotCapturedError: If the way is "capture" and the loss cannot be captured.
            ValueError: If a tile has another number of rows, or there are more records than are added exactly.
        """
        weights = {name: weight.detach() for name, weight in weights.items()}
        device = next(iter(weights.values())).device
        total = {name: torch.zeros(w.shape, dtype=torch.float64, device=device) for name, w in weights.items()}
        room, adding = self.most_rows, graphs.chunk_of(loss, tiles, self.clip_norm, self.grid, self.groups)
        losses, lengths = [torch.zeros(0, device=device)], [torch.zeros(0, dtype=torch.float64, device=device)]
        with tiles.computing():  # the batches too, which are made one after the other
            for records, null in batches:
                room -= tiles.rows
                if room < 0 or any(len(part) != tiles.rows for part in (*records, null)):
                    raise ValueError(f"a tile has {tiles.rows} rows, and a sum {self.most_rows:,} at most.")
                for *chunk, no in zip(*(part.split(tiles.chunk) for part in (*records, null)), strict=True):
                    if is_gpu(no.device) or not bool(no.all()):  # a GPU would wait for the answer
                        values, norms = adding.add(weights, chunk, no, total)
                        lengths.append(norms)
                        losses.append(values)
        return ClippedSum(total, torch.cat(losses), torch.cat(lengths))

    @property
    def _feature_steps(self) -> float:
        """Steps of the unit of features; the product with those of residuals is 1 / grid."""
        return 2.0 ** round(-math.log2(self.grid) * _FEATURE_BITS / _GRID_BITS)

    def features(self, features: Tensor) -> Features:
        """Round features (B, D) to whole numbers, toward zero, for any number of `clipped_outer_sum`."""
        exact = features.double()
        norms = torch.linalg.vector_norm(exact, dim=1)
        scale = self._feature_steps * (1 - SLACK) / norms.clamp(min=torch.finfo(torch.float32).tiny)
        whole = torch.where(norms.isfinite()[:, None], exact * scale[:, None], 0.0).trunc_()
        return Features(whole.float(), torch.where(norms.isfinite(), 1 / scale, torch.nan))

    @own_state()
    @full_precision()
    def clipped_outer_sum(
        self,
        residuals: Tensor,
        features: Features,
        *,
        null: Tensor | None = None,
        weights: Tensor | None = None,
        total: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        r"""Sum ``g_i min(1, C / ||g_i||)`` where ``g_i = r_i f_i^T``, as a linear layer has it: no g_i is ever made.

        Its norm is that of r_i times that of f_i (Goodfellow 2015, "Efficient per-example gradient computations"), so
        clipping scales r_i, and the sum is one matrix product.

        Sensitivity, L2, zero-out-one: S steps. Both factors are whole numbers, rounded toward zero: a row of features
        of norm at most 2^17, and one of residuals of norm at most S / 2^17, by part 2 of the module's proof. The norm
        of their product is at most S, the product is exact, and so is the sum. For unit person the weights of one
        person's rows add up to at most 1, so that the person's term has norm at most S (triangle inequality).

        Args:
            residuals: (B, K), row i a function of record i.
            features: Of B rows, likewise.
            null: bool (B,), which records are null; None = none.
            weights: (B,) in [0, 1], each row's share of its unit; None = every row is a unit.
            total: (K, D) float64 to add to, so that records may come in parts; None = zero.

        Returns:
            The sum in grid steps, (K, D) float64, and the norms (B,) before clipping, not finite where the record
            counted as zero.
        """
        num = len(residuals)
        if len(features.whole) != num or any(part is not None and part.shape != (num,) for part in (null, weights)):
            raise ValueError("residuals, features, weights and the mask of null records must have B rows.")
        if weights is not None and not bool(((weights >= 0) & (weights <= 1)).all()):  # NaN fails it too
            raise ValueError("weights are shares of a unit, in 0 .. 1.")
        left = residuals.double() * (features.unit * self._feature_steps)[:, None]  # of the norm of g_i
        norms = torch.linalg.vector_norm(left, dim=1)
        norms = norms if null is None else norms.masked_fill(null, torch.nan)
        factor = clip_factors(norms, self.clip_norm) / (self.step * self._feature_steps)
        factor = factor if weights is None else factor * weights.double()
        left = torch.where(norms.isfinite()[:, None], left * factor[:, None], 0.0).trunc_()
        width = features.whole.shape[1]
        total = left.new_zeros(left.shape[1], width) if total is None else total
        rows = max(8, _CACHE // (8 * max(1, width))) if total.device.type == "cpu" else max(1, num)
        for some, whole in zip(left.split(rows), features.whole.split(rows), strict=True):
            total.addmm_(some.T, whole.double())
        return total, norms

    def statistics(self, losses: Tensor, norms: Tensor) -> dict[str, Tensor]:
        """Average over the records of a step that counted, for the curator; no host waits.

        Args:
            losses: (B,).
            norms: (B,) before clipping; not finite where the record counted as zero.

        Returns:
            Each statistic as (value, 1), or zeros if no record counted: see `idpgan.training.stats.Recorder`.
        """
        losses, norms = losses.detach().double(), norms.double()
        counted = norms.isfinite() & losses.isfinite()
        values = {"loss": losses, "gradient_norm": norms, "clipped_share": (norms > self.clip_norm).double()}
        num, some = counted.sum().clamp(min=1), counted.any().double()
        return {name: torch.stack([torch.where(counted, v, 0.0).sum() / num, some]) for name, v in values.items()}

    def noisy_step(self, optimizer: torch.optim.Optimizer, weights: Weights, sums: Weights, noise: Noise) -> None:
        """Set ``grad = (sum + N(0, (noise_multiplier clip_norm)^2)) / divisor``, and let the optimizer step.

        The noise is rounded to the grid, and drawn for all weights at once, from no `torch.Generator` (see `Noise`).

        Args:
            optimizer: Holds exactly these weights; their gradients are cleared afterwards, so that none stays behind.
            weights: Leaf tensors by name, in the order in which the noise is drawn.
            sums: As `clipped_sum` returned them, whole grid steps: together of L2 sensitivity S, over all ranks.
            noise: Rank 0's is drawn from.

        Raises:
            ValueError: If the tensors do not fit together, or a sum is not whole below 2^53 (on a GPU: NaN weights).
        """
        held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        if list(weights) != list(sums) or held != {*map(id, weights.values())}:
            raise ValueError("weights, sums and the optimizer's parameters must be the same, in the same order.")

        total = torch.cat([sums[name].double().flatten() for name in weights])
        holds = (total.abs() <= 2.0**53).all() & (total == total.trunc()).all()  # NaN fails it too
        if not is_gpu(total.device) and not bool(holds):  # a GPU would wait for the answer
            raise ValueError("a sum of DP-SGD is not whole grid steps below 2^53: nothing is released.")
        whole, blocks = total.long(), discrete.num_blocks(len(total))
        own, noised = self.ranks.share(blocks), torch.zeros(blocks, dtype=torch.int64, device=whole.device)
        drawn = sent(self.grid_noise(len(whole), noise), whole.device)
        whole[own.start * discrete.BLOCK : own.stop * discrete.BLOCK] += drawn
        noised[own] = 1
        noisy = self.ranks.noisy_sum(whole, torch.where(holds, noised, -1))
        self._set_gradients(weights, noisy * self.step)
        for name, weight in weights.items():
            if self.groups is not None and weight.grad is not None:
                weight.grad.mul_(self.groups.stretch(name, self.clip_norm))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def grid_noise(self, count: int, noise: Noise) -> Tensor:
        """Draw this rank's blocks of ``round(Z)``, Z normal of deviation ``ceil(noise_multiplier / grid)`` steps.

        All ranks draw from rank 0's source, whose key and place it sends. Alone: all, (count,).
        """
        parts = discrete.num_blocks(count)
        if not self.ranks.alone and parts > 1:
            place = noise.handed_on(parts) if self.ranks.first else torch.zeros(PLACE_BYTES, dtype=torch.uint8)
            self.ranks.from_first([place])
            noise = Noise.taken_over(place, parts, private=noise.private)
        scale = math.ceil(self.noise_multiplier / self.grid)
        return discrete.rounded_gaussian(scale, count, noise, self.ranks.share(parts))

    def noisy_gradients(self, weights: Weights, sums: Weights, normal: Callable[[Sequence[int]], Tensor]) -> None:
        """Set ``grad = (sum + N(0, (noise_multiplier clip_norm)^2)) / divisor`` in floating point, as Opacus does.

        Args:
            weights: Leaf tensors by name, in the order in which the noise is drawn.
            sums: In the unit of the gradient: together of L2 sensitivity `clip_norm`, over all ranks.
            normal: Draws standard normal numbers of a shape, float64, from a secret source; called on rank 0 alone.
        """
        total = torch.cat([sums[name].double().flatten() for name in weights])
        if self.ranks.first:
            total += normal((len(total),)).to(total) * (self.noise_multiplier * self.clip_norm)
        self._set_gradients(weights, self.ranks.noisy_sum(total, total.new_full((1,), int(self.ranks.first))))

    def _set_gradients(self, weights: Weights, noisy: Tensor) -> None:
        """Divide the noisy sum, (P,) float64, and give each weight its part as gradient."""
        sizes = [weight.numel() for weight in weights.values()]
        for weight, part in zip(weights.values(), noisy.split(sizes), strict=True):
            weight.grad = part.to(weight).view_as(weight).div_(self.divisor)


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
