r"""The distinguishing game: which of two neighbors was released?

The mechanism runs R times on each neighbor. The first half of the runs chooses statistic, direction and threshold; the
guesses on the other half are counted, and the counts bound epsilon from below (`bounds`). One call plays both
neighbors, in rows.

Runs are streamed in chunks of rows: outputs are scored and dropped. Memory grows with R only by one float32 score per
choosing run and statistic; the held-out half leaves only two counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from idpgan.audit.bounds import AuditResult, Choice, Separation, choose
from idpgan.audit.statistics import Maker, Statistic, usual
from idpgan.device import by_device
from idpgan.errors import InputError
from idpgan.progress import Progress, silent

Play = Callable[[Tensor], Tensor]  # (R, *shape) -> (R, *out)
_T = TypeVar("_T")
_CHUNK_NUMBERS = 1 << 17, 1 << 26  # `by_device`: float64 inputs per call fit the cache; fill the GPU
_FIT_NUMBERS = 1 << 22  # numbers of outputs per side kept for statistics that learn
_FEWEST_RUNS = 100
_PROBE = 16
MOST_RUNS = 10**9  # runs per side: hours, even with one number per run


def audit(
    mechanism: Play | Sequence[Play],
    data: Tensor,
    neighbor: Tensor,
    *,
    runs: int,
    delta: float = 0.0,
    confidence: float = 0.95,
    statistics: Sequence[Maker] | None = None,
    entrywise: bool = False,
    rows: int | None = None,
    progress: Progress = silent,
) -> AuditResult:
    """Bound a mechanism's epsilon from below by telling two neighbors apart.

    Args:
        mechanism: Maps (R, *data.shape) to (R, *out): R *independent* releases, one per row. If a release covers a
            whole batch, the batch is the row. A sequence = equal mechanisms with independent noise, one per thread.
        data: One neighbor, without the row dimension.
        neighbor: The other; same shape and dtype.
        runs: R, runs per side; half of them choose, the other half are counted.
        confidence: Probability that the bound holds, over the audit's own randomness.
        statistics: Makers of statistics to choose from; None = `statistics.usual`.
        entrywise: Whether the mechanism treats every number separately: then only differing numbers are released, as
            rows of (number of differing entries,), and statistics are made for these.
        rows: Most rows of one call, both sides together; None = by the size of the data. Set it for mechanisms whose
            call is a whole training: rows are then assumed independent without a test.

    Returns:
        The bound with the counts and choices behind it. Epsilon may be much larger.

    Raises:
        InputError: If an argument is out of range, the neighbors do not fit each other, or rows are not independent.

    Example:
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> audit(lambda rows: rows, zero, one, runs=20_000).epsilon_lower  # no noise at all: the cap
        7.90...
    """
    check_runs(runs, delta, confidence)
    data, neighbor = _neighbors(data, neighbor, entrywise)
    players = [mechanism] if callable(mechanism) else list(mechanism)
    if not players or not all(map(callable, players)):
        raise InputError("mechanism must be a function, or several of them in a row.")
    output = data if rows is not None else _probe(players[0], data)
    candidates = [make(data, neighbor) for make in (statistics or usual(data, output))]

    # First half: fit, then choose.
    size, held_out = max(data.numel(), output.numel(), 1), runs // 2
    chunk = (rows or by_device(data.device, *_CHUNK_NUMBERS) // size) // 2
    game = _Game(players, (data, neighbor), max(1, chunk), runs, progress)
    candidates, fitted = _fit(game, candidates, output, runs - held_out)
    best = _choose(game, candidates, runs - held_out - fitted, delta, confidence)

    # Second half: count, for both bounds.
    answers = game.play(held_out, lambda y: [_count(candidates[number], choice, y) for number, choice in best])
    counts = [[sum(part[number] for part in side) for side in answers] for number in (0, 1)]
    (first, for_epsilon), (second, for_separation) = best
    return AuditResult.of_counts(
        counts[0][1],
        counts[0][0],
        runs=runs,
        delta=delta,
        confidence=confidence,
        statistic=candidates[first].name,
        threshold=for_epsilon.threshold,
        direction=for_epsilon.direction,
        separation=Separation.of_counts(
            (counts[1][0], counts[1][1]),
            held_out,
            confidence,
            candidates[second].name,
            for_separation.threshold,
            for_separation.direction,
        ),
    )


def _neighbors(data: Tensor, neighbor: Tensor, entrywise: bool) -> tuple[Tensor, Tensor]:
    """Return two compatible neighbors; if entrywise, only the numbers that differ."""
    if data.shape != neighbor.shape or data.dtype != neighbor.dtype:
        raise InputError(
            f"neighbors must have one shape and dtype, got {tuple(data.shape)} {data.dtype} and "
            f"{tuple(neighbor.shape)} {neighbor.dtype}."
        )
    if entrywise:
        differ = (data != neighbor).flatten()
        if not bool(differ.any()):
            raise InputError("the neighbors are equal, so there is nothing to tell apart.")
        data, neighbor = data.flatten()[differ], neighbor.flatten()[differ]
    return data, neighbor


def _fit(game: _Game, candidates: list[Statistic], output: Tensor, choosing: int) -> tuple[list[Statistic], int]:
    """Fit the statistics that learn; return the usable statistics, and the number of runs used for fitting."""
    runs = 0
    if any(candidate.learns for candidate in candidates):
        runs = min(choosing // 2, max(_FIT_NUMBERS // max(output.numel(), 1), _PROBE))
        played = game.play(runs, lambda outputs: outputs)
        whole = [_joined(side, output) for side in played]
        candidates = [candidate for candidate in candidates if candidate.fit(*whole)]
    if not candidates:
        raise InputError("no statistic can be used for such outputs; give one.")
    return candidates, runs


def _choose(
    game: _Game, candidates: list[Statistic], runs: int, delta: float, confidence: float
) -> list[tuple[int, Choice]]:
    """Return index, direction and threshold of the best statistic, once for each bound."""

    def score(outputs: Tensor) -> Tensor:  # (rows, statistics)
        return torch.from_numpy(np.stack([_score(candidate, outputs) for candidate in candidates], axis=1))

    scores = [_joined(side, torch.empty(len(candidates))) for side in game.play(runs, score)]
    columns = zip(*(side.numpy().T for side in scores), strict=True)
    choices = [choose(one, other, delta, confidence) for one, other in columns]
    best: list[tuple[int, Choice]] = []
    for which in (0, 1):
        number = max(range(len(choices)), key=lambda number: choices[number][which].bound)
        best.append((number, choices[number][which]))
    return best


def check_runs(runs: int, delta: float, confidence: float) -> None:
    """Raise an `InputError` for numbers that are invalid for an audit."""
    if isinstance(runs, bool) or not isinstance(runs, int) or not _FEWEST_RUNS <= runs <= MOST_RUNS:
        raise InputError(
            f"runs = {str(runs)[:40]} must be a whole number of {_FEWEST_RUNS} .. {MOST_RUNS:,} per side; "
            "100000 is usual."
        )
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (delta, confidence))
    if not numbers or not 0 <= delta < 1 or not 0 < confidence < 1:
        raise InputError(f"delta = {delta} must lie in [0, 1) and confidence = {confidence} in (0, 1).")


def _probe(play: Play, data: Tensor) -> Tensor:
    """Return one output; refuse a mechanism whose rows are not independent releases."""
    first, second = (play(_rows(data, _PROBE)) for _ in range(2))
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        raise InputError(f"a mechanism must return a tensor, one row per release, got {type(first).__name__}.")
    if first.ndim == 0 or len(first) != _PROBE or second.shape != first.shape:
        raise InputError(f"a mechanism must return one output per row: {_PROBE} rows gave shape {tuple(first.shape)}.")
    shared = [bool((outputs == outputs[:1]).all()) for outputs in (first, second)]
    if all(shared) and not torch.equal(first, second):
        raise InputError(
            "all rows of one call got the same noise, so they are not independent releases. If that is what the "
            "mechanism does to a batch, make the batch the row: data of shape (batch, ...)."
        )
    return first[0]


def _rows(values: Tensor, rows: int) -> Tensor:
    """Return a copy (rows, *shape) that the mechanism may modify."""
    return values.expand(rows, *values.shape).clone(memory_format=torch.contiguous_format)


@dataclasses.dataclass
class _Game:
    """Runs the mechanism on both sides, chunk by chunk, on as many threads as there are players."""

    players: Sequence[Play]
    sides: tuple[Tensor, Tensor]
    chunk: int
    total: int
    progress: Progress
    done: int = 0

    def play(self, runs: int, use: Callable[[Tensor], _T]) -> tuple[list[_T], list[_T]]:
        """Release each side ``runs`` times; return the results of ``use`` on each chunk of outputs, for each side."""
        sizes = [min(self.chunk, runs - start) for start in range(0, runs, self.chunk)]
        step = len(self.players)

        def work(number: int) -> list[tuple[_T, _T]]:
            outputs = []
            for size in sizes[number::step]:  # fixed shares: with fixed noise the result does not depend on timing
                rows = torch.cat([_rows(side, size) for side in self.sides])
                data, neighbor = self.players[number](rows).split(size)
                outputs.append((use(data), use(neighbor)))
                self.done += size
                self.progress("runs", min(self.done, self.total), self.total)
            return outputs

        if step == 1:
            parts = [work(0)]
        else:
            with ThreadPoolExecutor(step) as pool:
                parts = list(pool.map(work, range(step)))
        pairs = [pair for part in parts for pair in part]
        return [data for data, _ in pairs], [neighbor for _, neighbor in pairs]


def _joined(parts: Sequence[Tensor], row: Tensor) -> Tensor:
    """Return the rows, each like ``row``, of all chunks of a side, which may be none."""
    return torch.cat([row.new_empty((0, *row.shape)), *parts])


def _score(statistic: Statistic, outputs: Tensor) -> np.ndarray:
    """Return scores as float32, so that equal likelihood ratios stay equal despite rounding of their sums."""
    scores = statistic(outputs).float().cpu().numpy()
    if np.isnan(scores).any():
        raise InputError(f"the statistic '{statistic.name}' is not a number for some output.")
    return scores


def _count(statistic: Statistic, choice: Choice, outputs: Tensor) -> int:
    """Return the number of outputs that are called "neighbor"."""
    above = int((_score(statistic, outputs).astype(np.float64) >= choice.threshold).sum())
    return above if choice.direction == 1 else len(outputs) - above
