"""A chunk of records, its clipped sum, and that as a CUDA graph: recorded once, and replayed by one call.

Recorded is what is fixed in a step: the records' gradients, their norms, clipping, and the sum of whole numbers. Coins,
choice of records, the check of the sum and all noise come before or after, so no noise is ever in a graph, and no
failure of one can leave any out. Weights, records and the mask of null records are copied into the memory that was
recorded; a chunk of other shapes is computed without the graph.

Part 1 of the proof of `idpgan.privacy.dpsgd` then also needs that a replay is a function of these copies alone, and
treats slots as the launches do. `record` looks at that before the first private record is read, bit by bit, on random
chunks. *No graph was ever recorded by this file on hardware*, so no run asks for one: `PrivateSteps.graphs` is for
`benchmarks/gpu.py`, until somebody has seen there that the check holds, and what the memory costs that a graph keeps
between steps, which no forecast counts.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from idpgan.privacy.captured_gradients import NotCapturedError, RecordLoss, Weights, record_gradients
from idpgan.privacy.clip_groups import ClipGroups
from idpgan.privacy.layer_gradients import LayerGradient, clip_and_add
from idpgan.privacy.precision import Precision, products_in
from idpgan.privacy.tiles import Tiles, Way

_WARM_UP = 3  # runs before the recording: in their first ones libraries choose kernels and take memory


class NotRecordedError(NotCapturedError):
    """A chunk cannot be recorded, or its replay gives other bits: it is launched anew in every step."""

    instead: Way = "capture"


@dataclass(frozen=True)
class Chunk:
    """How the records of a chunk become whole numbers that are added to totals; see `clip_and_add`."""

    loss: RecordLoss
    way: Way
    precision: Precision
    clip_norm: float
    grid: float
    groups: ClipGroups | None

    def add(
        self, weights: Weights, records: Sequence[Tensor], null: Tensor, total: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Add records, k rows a tensor, to totals, null ones (bool) as zeros; return losses and norms, (k,) each."""
        gradients, losses = gradients_in(self.precision, self.loss, weights, records, self.way)
        return losses, clip_and_add(gradients, ~null, self.clip_norm, self.grid, total, self.groups)


def gradients_in(
    precision: Precision, loss: RecordLoss, weights: Weights, records: Sequence[Tensor], way: Way
) -> tuple[Mapping[str, LayerGradient], Tensor]:
    """Return the gradients of every record as a step takes them; see `record_gradients`."""
    with products_in(precision):
        return record_gradients(loss, weights, records, way)


def chunk_of(
    loss: RecordLoss, tiles: Tiles, clip_norm: float, grid: float, groups: ClipGroups | None
) -> Chunk | ChunkGraph:
    """Return what adds the records of a chunk, as a graph where one was recorded for these tiles."""
    chunk = Chunk(loss, tiles.way, tiles.precision, clip_norm, grid, groups)
    replayed: ChunkGraph | None = tiles.graphs.get(chunk) if tiles.graphs else None
    return replayed or chunk


def record(chunk: Chunk | ChunkGraph, tiles: Tiles, weights: Weights, records: Sequence[Tensor]) -> None:
    """Record the chunk of these tiles for all steps, if its replay gives the chunk's bits on this device.

    Compared are sums, norms and losses of one random record in all slots, of which all count, or the first or the last
    alone; under other weights of different records, one of them not finite, every third null; and of the first again,
    where nothing may be left of the others.

    Args:
        chunk: Of `chunk_of`; its loss asks the device for nothing.
        tiles: They keep the graph.
        weights: Not changed; those of later steps may be others.
        records: One random record in all slots.

    Raises:
        NotRecordedError: If it does not, or cannot be recorded; said on stderr.
    """
    if isinstance(chunk, ChunkGraph):
        return
    trials = _trials(weights, [part[: tiles.chunk] for part in records])
    try:
        graph = ChunkGraph(chunk, *trials[0][:2])
        if all(_same(graph, *trial) for trial in (*trials, trials[0])):
            tiles.graphs[chunk] = graph
            return
        why = "a replay gives other bits"
    except Exception as error:  # noqa: BLE001 (a recording fails in many ways; what it records is the proven form)
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
    print(f"{records[0].device}: steps go without CUDA graphs ({why}).", file=sys.stderr)
    raise NotRecordedError(why)


def _trials(weights: Weights, records: Sequence[Tensor]) -> list[tuple[Weights, Sequence[Tensor], Tensor]]:
    """Return weights, records and which are null, as `record` says."""
    draws = torch.Generator().manual_seed(0)
    null = torch.zeros(len(records[0]), dtype=torch.bool, device=records[0].device)
    first, last, third = torch.ones_like(null), torch.ones_like(null), null.clone()
    first[0], last[-1], third[::3] = False, False, True
    one, two = moved_weights(weights, draws), moved_weights(weights, draws)
    other = [torch.rand(part.shape, generator=draws).to(part) if part.is_floating_point() else part for part in records]
    for part in other:
        if part.is_floating_point():
            part[1:2] = torch.nan
    return [(one, records, null), (one, records, first), (one, records, last), (two, other, third)]


def moved_weights(weights: Mapping[str, Tensor], draws: torch.Generator) -> dict[str, Tensor]:
    """Return the weights with random numbers added: weights of zero would hide what follows them."""
    return {
        name: weight.detach() + 0.1 * torch.randn(weight.shape, generator=draws).to(weight)
        for name, weight in weights.items()
    }


class ChunkGraph:
    """A recorded chunk.

    Args:
        chunk: What is recorded.
        weights: Like those of all calls.
        records: Likewise.
    """

    def __init__(self, chunk: Chunk, weights: Weights, records: Sequence[Tensor]) -> None:
        null = torch.zeros(len(records[0]), dtype=torch.bool, device=records[0].device)
        self.chunk, self._given = chunk, [part.clone() for part in (*weights.values(), *records, null)]
        self._sums = _zeros(weights)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device_of(null):
            stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    self._compute()
            current.wait_stream(stream)
            with torch.cuda.graph(self._graph, stream=stream):
                self._found = self._compute()

    def _compute(self) -> tuple[Tensor, Tensor]:
        """Compute the chunk in the memory that is recorded."""
        for total in self._sums.values():
            total.zero_()
        *records, null = self._given[len(self._sums) :]
        return self.chunk.add(dict(zip(self._sums, self._given, strict=False)), records, null, self._sums)

    def add(
        self, weights: Weights, records: Sequence[Tensor], null: Tensor, total: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """See `Chunk`; what is returned is no recorded memory."""
        given = *weights.values(), *records, null
        if list(weights) != list(self._sums) or [*map(_kind, given)] != [*map(_kind, self._given)]:
            return self.chunk.add(weights, records, null, total)
        for own, part in zip(self._given, given, strict=True):
            own.copy_(part)
        self._graph.replay()
        for name, part in self._sums.items():
            total[name].add_(part)
        losses, norms = self._found
        return losses.clone(), norms.clone()


def _zeros(weights: Weights) -> dict[str, Tensor]:
    return {name: torch.zeros(w.shape, dtype=torch.float64, device=w.device) for name, w in weights.items()}


def _kind(part: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return part.shape, part.dtype, part.device


def _same(graph: ChunkGraph, weights: Weights, records: Sequence[Tensor], null: Tensor) -> bool:
    """Tell whether a replay gives the bits of its chunk, those of a NaN too."""
    results = list[list[Tensor]]()
    for form in (graph, graph.chunk):
        total = _zeros(weights)
        results.append([*form.add(weights, records, null, total), *total.values()])
    as_bits = {4: torch.int32, 8: torch.int64}
    return all(
        torch.equal(*(part.view(as_bits[part.element_size()]) for part in pair)) for pair in zip(*results, strict=True)
    )
