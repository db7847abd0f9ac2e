r"""The distinguishing game: which of two neighbours was released?

The mechanism runs R times on each neighbour. On the first half of the runs statistic, direction and threshold are
chosen; on the other half the guesses are counted, and the counts bound epsilon from below (`bounds`).

Runs are streamed in chunks of rows: outputs are scored and dropped. What grows with R is one float32 score per
choosing run and statistic; of the held-out half nothing is kept but two counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from idpgan.audit.bounds import AuditResult, Choice, choose
from idpgan.audit.statistics import Maker, Statistic, usual
from idpgan.checks import typed
from idpgan.errors import InputError

Play = Callable[[Tensor], Tensor]  # (R, *shape) -> (R, *out)
Progress = Callable[[int, int], None]  # called with (runs done, runs in all), both sides together
_T = TypeVar("_T")
_CHUNK_NUMBERS = {"cpu": 1 << 17, "cuda": 1 << 26}  # of float64 input per call: stays in the cache; fills the GPU
_FIT_NUMBERS = 1 << 22  # of outputs per side kept for statistics that learn
_FEWEST_RUNS = 100
_PROBE = 16
MOST_RUNS = 10**9  # per side: hours, even of one number each


@typed
def audit(
    mechanism: Play | Sequence[Play],
    data: Tensor,
    neighbour: Tensor,
    *,
    runs: int,
    delta: float = 0.0,
    confidence: float = 0.95,
    statistics: Sequence[Maker] | None = None,
    entrywise: bool = False,
    progress: Progress | None = None,
) -> AuditResult:
    """Bound a mechanism's epsilon from below by telling two neighbours apart.

    Args:
        mechanism: Maps (R, *data.shape) to (R, *out): R *independent* releases, one per row. Where a release is one of
            a whole batch, the batch is the row. Several = equal mechanisms with independent noise, one per thread.
        data: One neighbour, without the row dimension.
        neighbour: The other; same shape and dtype.
        runs: R, runs per side; half of them choose, the other half are counted.
        delta: Of the guarantee under test.
        confidence: Probability that the bound holds, over the audit's own randomness.
        statistics: Makers of statistics to choose from; None = `statistics.usual`.
        entrywise: Whether the mechanism treats every number by itself: then only those that differ are released, as
            rows of (number of differing entries,), and statistics are made for these.
        progress: Told how far it is.

    Returns:
        The bound with all that it rests on. It says nothing about how much larger epsilon is.

    Raises:
        InputError: If an argument is out of range, the neighbours do not fit each other, or rows are not independent.

    Example:
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> audit(lambda rows: rows, zero, one, runs=20_000).epsilon_lower  # no noise at all: the cap
        7.90...
    """
    _check(data, neighbour, runs, delta, confidence)
    players = [mechanism] if callable(mechanism) else list(mechanism)
    if not players or not all(map(callable, players)):
        raise InputError("mechanism must be a function, or several of them in a row.")
    if entrywise:
        differ = (data != neighbour).flatten()
        if not bool(differ.any()):
            raise InputError("the neighbours are equal, so there is nothing to tell apart.")
        data, neighbour = data.flatten()[differ], neighbour.flatten()[differ]
    output = _probe(players[0], data)
    candidates = [make(data, neighbour) for make in (statistics or usual(data, output))]

    # First half: fit, then choose.
    chunk = max(1, _CHUNK_NUMBERS.get(data.device.type, 1 << 17) // max(data.numel(), output.numel(), 1))
    game = _Game(players, (data, neighbour), chunk, 2 * runs, progress)
    held_out = runs // 2
    to_fit = 0
    if any(candidate.learns for candidate in candidates):
        to_fit = min((runs - held_out) // 2, max(_FIT_NUMBERS // max(output.numel(), 1), _PROBE))
        shown = [torch.cat(game.each(side, to_fit, lambda outputs: outputs)) for side in (0, 1)]
        candidates = [candidate for candidate in candidates if candidate.fit(*shown)]
        del shown
    if not candidates:
        raise InputError("no statistic can be used for such outputs; give one.")
    scores = [game.each(side, runs - held_out - to_fit, lambda y: _score_all(candidates, y)) for side in (0, 1)]
    best, choice = _choose_statistic([np.concatenate(side, axis=1) for side in scores], delta, confidence)
    del scores

    # Second half: count.
    said = [sum(game.each(side, held_out, lambda y: _count(candidates[best], choice, y))) for side in (0, 1)]
    return AuditResult.of_counts(
        said[1],
        said[0],
        runs=runs,
        delta=delta,
        confidence=confidence,
        statistic=candidates[best].name,
        threshold=choice.threshold,
        direction=choice.direction,
    )


def _check(data: Tensor, neighbour: Tensor, runs: int, delta: float, confidence: float) -> None:
    if data.shape != neighbour.shape or data.dtype != neighbour.dtype:
        raise InputError(
            f"neighbours must have one shape and dtype, got {tuple(data.shape)} {data.dtype} and "
            f"{tuple(neighbour.shape)} {neighbour.dtype}."
        )
    if not _FEWEST_RUNS <= runs <= MOST_RUNS:
        raise InputError(
            f"runs = {runs} must be at least {_FEWEST_RUNS} per side, and at most {MOST_RUNS:,}; 100000 is usual."
        )
    if not 0 <= delta < 1 or not 0 < confidence < 1:
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
    """Return (rows, *shape), a copy that the mechanism may do with as it likes."""
    return values.expand(rows, *values.shape).clone(memory_format=torch.contiguous_format)


class _Game:
    """Runs the mechanism on either side, chunk by chunk, on as many threads as there are players."""

    def __init__(
        self,
        players: Sequence[Play],
        sides: tuple[Tensor, Tensor],
        chunk: int,
        total: int,
        progress: Progress | None,
    ) -> None:
        self._players, self._sides, self._chunk = players, sides, chunk
        self._done, self._total, self._progress = 0, total, progress

    def each(self, side: int, runs: int, use: Callable[[Tensor], _T]) -> list[_T]:
        """Release one side ``runs`` times; return what ``use`` made of each chunk of outputs."""
        sizes = [min(self._chunk, runs - start) for start in range(0, runs, self._chunk)]
        step = len(self._players)

        def work(number: int) -> list[_T]:
            found = []
            for size in sizes[number::step]:  # fixed shares: with fixed noise the result does not depend on timing
                found.append(use(self._players[number](_rows(self._sides[side], size))))
                self._tick(size)
            return found

        if step == 1:
            return work(0)
        with ThreadPoolExecutor(step) as pool:
            return [item for part in pool.map(work, range(step)) for item in part]

    def _tick(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)


def _score(statistic: Statistic, outputs: Tensor) -> np.ndarray:
    """Return scores as float32: equal likelihood ratios stay equal whatever the last bits of their sums are."""
    scores = statistic(outputs).float().cpu().numpy()
    if np.isnan(scores).any():
        raise InputError(f"the statistic '{statistic.name}' is not a number for some output.")
    return scores


def _score_all(candidates: Sequence[Statistic], outputs: Tensor) -> np.ndarray:
    return np.stack([_score(candidate, outputs) for candidate in candidates])  # (statistics, rows)


def _choose_statistic(scores: list[np.ndarray], delta: float, confidence: float) -> tuple[int, Choice]:
    """Return the number of the best statistic, and direction and threshold for it."""
    choices = [choose(one, other, delta, confidence) for one, other in zip(*scores, strict=True)]
    best = max(range(len(choices)), key=lambda number: choices[number].bound)
    return best, choices[best]


def _count(statistic: Statistic, choice: Choice, outputs: Tensor) -> int:
    """Return of how many outputs it is said that they come from the neighbour."""
    above = int((_score(statistic, outputs).astype(np.float64) >= choice.threshold).sum())
    return above if choice.direction == 1 else len(outputs) - above
