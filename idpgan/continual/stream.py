r"""A counter that releases every running count of a growing collection under one pure epsilon.

Mechanism. Values arrive one after the other; node t of the Fenwick tree is the sum of the values t - lowbit(t) + 1 to
t, released once with discrete Laplace noise of scale 1 / (epsilon lambda_t), and the running count of t is the sum of
its nodes (`fenwick`). The state is the chain of prefixes that later counts need: O(log t) numbers.

Proof, unit event, zero-out-one. One event adds at most 1 to one value a_t (with ``integer=False``: at most 1 in
absolute value; rounding to the grid makes that at most D steps, D = 1 for whole counts). N and the times are public;
the neighbor lacks the event, so a_t differs by at most D steps and all other values are equal. Node p holds a_t for
those p with M[p, t] = 1, each once, and `fenwick.shares` splits the whole budget so that ``sum_p M[p, t] s_p`` is at
most the budget, exactly: the condition of `NodeNoise`. Values may be chosen after seeing earlier answers: given these
answers, each node is one release of a sum that the neighbor moves by at most D.

Unknown horizon: block k holds the values 2^k .. 2^(k+1) - 1 and has a tree of its own with the whole epsilon. An event
lies in one block, so all blocks together cost epsilon once. Every later answer contains the block's total, so the
block's tree is weighted for 4 * 2^k further answers (`_LATER`; without them the error of the totals dominates).
"""

from __future__ import annotations

import collections
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from idpgan.checks import typed
from idpgan.continual import fenwick
from idpgan.continual.settings import StreamPlan, StreamTable, check_name
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.lazy import torch
from idpgan.privacy import Grid, Ledger, Noise, PrivacyReport
from idpgan.release.answers import AnswersArtifact
from idpgan.release.folder import write_release

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "idpgan stream 1"
_LATER = 4  # further answers per value of a block that build on its total; found best of 1/2 .. 8 at 10^4 to 10^6 steps
_REAL_STEP = 2.0**-10  # grid of real values: rounding costs 0.1 % of epsilon
_MOST = 1 << 60  # largest sum, in grid steps
_AHEAD = 1 << 14  # most noise values that `push` draws ahead


class ContinualCounter:
    """Running counts with pure epsilon over the whole stream; see the module for mechanism and proof.

    Attributes:
        event: The charge for the whole stream.

    Formal guarantee: epsilon, unit event, zero-out-one: one event of size at most 1 in one value. Moving an event to
    another time costs 2 epsilon; a person with k events costs k epsilon. Several series (leading dimensions of
    `release`) cost epsilon once if every event is in one series only. Using a saved state twice makes two releases.

    The counter writes no file: the caller keeps `state` secret, and saves it before showing an answer.

    Example:
        >>> counter = ContinualCounter(epsilon=1.0, horizon=365)
        >>> today = counter.push(12)  # a noisy count of 12, a whole number
        >>> counter.release([3, 0, 5]).shape  # the three days after it
        torch.Size([3])
    """

    def __init__(
        self,
        epsilon: float,
        horizon: int | None = None,
        integer: bool = True,
        *,
        keep: int = 0,
        ledger: Ledger | None = None,
        noise: Noise | None = None,
    ) -> None:
        """Start a stream.

        Args:
            epsilon: Price of the whole stream, positive and finite.
            horizon: Largest number of values; None = not known, which increases the error by about a quarter.
            integer: True for whole counts >= 0 and whole answers; False for finite real values, rounded to 2^-10.
            keep: Number of past answers that `answer` can repeat, besides those that the state always holds.
            ledger: Ledger that is charged once, before the first value is read; None = a ledger in memory.
            noise: None = fresh from the operating system. A fixed source marks the stream as not private.
        """
        if horizon is not None:
            fenwick.check_steps(horizon, name="horizon")
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 0:
            raise InputError(f"keep = {keep!r} must be a whole number >= 0.")
        self._grid = Grid(1.0) if integer else Grid(_REAL_STEP)
        self._largest = 2.0**53 * self._grid.step  # above this, float64 skips grid steps
        self._law = fenwick.NodeNoise(epsilon, moved=1 if integer else self._grid.l1(1.0, 1))
        self.event: Final = self._law.event
        self.epsilon, self.horizon, self.integer = float(epsilon), horizon, bool(integer)
        self._ledger = Ledger(*fenwick.ADJACENCY) if ledger is None else ledger
        self._noise = Noise.system() if noise is None else noise
        self._private = self._noise.private
        self._paid = False
        self._count, self._before = 0, 0  # number of all values, and of those before the current block
        self._length = 1 if horizon is None else horizon  # of the current block
        # The prefixes that later counts need: index in the block, true and noisy count (a tensor for several series).
        self._indices: list[int] = [0]
        self._true: list[Any] = [0]
        self._noisy: list[Any] = [0]
        self._shape: tuple[int, ...] | None = None  # shape of the series, known with the first value
        self._kept: collections.deque[Any] = collections.deque(maxlen=keep)
        self._ahead: list[int] = []  # noise of the next nodes in reverse order; never saved
        self._owner = os.getpid()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse `copy` and `pickle`, as its noise does."""
        self._noise.__reduce_ex__(protocol)

    # Releasing -------------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of values so far."""
        return self._count

    def push(self, value: float, index: int | None = None) -> float:
        """Add the next value of a single series and return the noisy running count.

        Args:
            value: Number of events since the last value: an integer >= 0, or a real number with ``integer=False``.
            index: Index of the value, from 1; None = the next. For an old index the stored answer is returned and
                ``value`` is not read: a second answer would be a second release.

        Returns:
            int, or float with ``integer=False``. The count may be negative and may decrease: see `isotonic`.

        Raises:
            InputError: If the value is invalid, the horizon is reached, or the answer for an old index is not stored.
                Nothing is released then.
        """
        if index is not None and index != self._count + 1:
            return self.answer(index)
        if self._shape:
            raise InputError(
                f"this stream has series of shape {self._shape}; push takes one number, release all series."
            )
        steps = value if type(value) is int and self.integer else self._steps_of(value)
        total = self._true[-1] + steps
        if (self.integer and steps < 0) or abs(total) >= _MOST:
            raise InputError(f"value = {value} must be a count >= 0, and the sum stay below 2^60.")
        if not self._ahead or self._owner != os.getpid():
            self._draw_ahead()
        index = self._count - self._before + 1
        above = index & (index - 1)
        while self._indices[-1] > above:
            for numbers in (self._indices, self._true, self._noisy):
                numbers.pop()
        answer = self._noisy[-1] + (total - self._true[-1]) + self._ahead.pop()
        self._indices.append(index)
        self._true.append(total)
        self._noisy.append(answer)
        self._count += 1
        self._shape = ()
        if self._kept.maxlen:
            self._kept.append(answer)
        if index == self._length:
            self._next_block()
        return self._value(answer)

    @own_state()
    def release(self, values: Any) -> Tensor:
        """Add the next values of one series, or of many at once, and return all noisy running counts.

        The release is the same as by successive calls of `push`, without a loop over values.

        Args:
            values: Tensor, array or list (..., T). Leading dimensions are series, the same in every call; every event
                must be in one series only.

        Returns:
            (..., T) on the device of ``values``: int64, or float64 with ``integer=False``.

        Raises:
            InputError: If a value is invalid, the horizon would be exceeded, or the series changed in number.
                Nothing is released then.
        """
        steps = self._checked(values)
        if steps.shape[-1] == 0:
            return self._value(steps)
        self._pay()
        self._ahead.clear()
        parts, done = [], 0
        while done < steps.shape[-1]:
            room = self._length - (self._count - self._before)
            part = steps[..., done : done + room]
            parts.append(self._release_in_block(part))
            done += part.shape[-1]
        answers = torch.cat(parts, -1)
        if self._kept.maxlen:
            recent = answers[..., -self._kept.maxlen :].cpu()
            self._kept.extend(recent.unbind(-1) if self._shape else recent.tolist())
        return self._value(answers)

    def answer(self, index: int) -> Any:
        """Return a stored answer by its index: the last one, those that later answers need, and those of ``keep``.

        Raises:
            InputError: If no answer is stored for the index.
        """
        if isinstance(index, int) and 1 <= index <= self._count:
            if index - self._before in self._indices:
                return self._value(self._noisy[self._indices.index(index - self._before)])
            if self._count - index < len(self._kept):
                return self._value(self._kept[index - self._count - 1])
        raise InputError(
            f"no answer of index {index} is kept (the stream stands at {self._count}, keep = {self._kept.maxlen}). "
            "A second answer would be a second release."
        )

    def _value(self, steps: Any) -> Any:
        if self.integer:
            return steps
        return self._grid.value(steps) if isinstance(steps, torch.Tensor) else steps * self._grid.step

    def _steps_of(self, value: Any) -> int:
        if not self.integer and type(value) is float and abs(value) < self._largest:  # a faster `Grid.round`
            return round(value / self._grid.step)
        return int(self._to_steps(_tensor(value).reshape(())))

    def _to_steps(self, values: Tensor) -> Tensor:
        if not bool(values.isfinite().all()):
            raise InputError("values must be finite numbers (NaN + noise is still NaN); nothing was released.")
        if not self.integer:
            if bool((values.abs() >= self._largest).any()):
                raise InputError(f"real values must be below {self._largest:g}. Nothing was released.")
            return self._grid.round(values)
        if values.is_floating_point() and not bool(((values == values.round()) & (values.abs() < 2**53)).all()):
            raise InputError("counts must be whole numbers; use integer=False for real values. Nothing was released.")
        steps = values.long()
        if bool((steps < 0).any()):
            raise InputError("counts must be at least 0; use integer=False for values that fall. Nothing was released.")
        return steps

    def _checked(self, values: Any) -> Tensor:
        """Return values (..., T) in grid steps; refuse every value that could fail later."""
        values = _tensor(values)
        if values.ndim == 0:
            raise InputError("release takes series (..., T); push takes a single value.")
        shape, coming = tuple(values.shape[:-1]), values.shape[-1]
        if 0 in shape:
            raise InputError(f"values of shape {tuple(values.shape)} hold no series.")
        if self._shape is not None and shape != self._shape:
            raise InputError(f"this stream has series of shape {self._shape}, got {shape}.")
        if self.horizon is not None and self._count + coming > self.horizon:
            raise InputError(
                f"{coming} more values after {self._count} exceed the horizon = {self.horizon}. Nothing was released. "
                "Start a stream with a longer horizon, or with none."
            )
        steps = self._to_steps(values)
        largest = max(float(torch.as_tensor(true).abs().double().max()) for true in self._true)
        if coming and steps.numel() and float(steps.abs().double().sum(-1).max()) + largest >= _MOST:
            raise InputError("the sum of the values must stay below 2^60 (grid steps). Nothing was released.")
        return steps

    def _pay(self) -> None:
        if not self._paid:
            self._ledger.charge(self.event)
            self._paid = True

    def _divisors(self, first: int, last: int) -> Tensor:
        """Return s_p of the nodes first .. last of the current block."""
        later = _LATER * self._length if self.horizon is None else 0
        return fenwick.shares(first, last, self._length, self._law.budget, later=later)

    @own_state()
    def _draw_ahead(self) -> None:
        """Draw the noise of the next nodes of the block; the charge comes first."""
        if self._count == self.horizon:
            raise InputError(
                f"the horizon = {self.horizon} is reached: nothing was released. Start a stream with a longer one."
            )
        self._rekey()
        self._pay()
        answered = self._count - self._before
        divisors = self._divisors(answered + 1, min(answered + min(answered + 64, _AHEAD), self._length))
        self._ahead = self._law.draw(divisors, self._noise).tolist()[::-1]

    def _rekey(self) -> None:
        """Rekey the noise of a forked process: two processes must not share future noise."""
        if self._owner != os.getpid():
            self._owner, self._ahead = os.getpid(), []
            self._noise = Noise.system() if self._noise.private else self._noise

    def _next_block(self) -> None:
        """Begin the next block; only the total of the old block is kept. A known horizon has one block."""
        if self.horizon is None:
            self._before = self._count
            self._length *= 2
            self._indices, self._true, self._noisy = [0], self._true[-1:], self._noisy[-1:]

    def _release_in_block(self, steps: Tensor) -> Tensor:
        """Release values (..., T) of the current block, in grid steps."""
        self._rekey()
        shape, device = tuple(steps.shape[:-1]), steps.device
        first = self._count - self._before + 1
        last = first + steps.shape[-1] - 1
        true, noisy = (  # (..., K)
            torch.stack([torch.as_tensor(number).to(device).expand(shape) for number in numbers], -1)
            for numbers in (self._true, self._noisy)
        )
        above = fenwick.parents(first, last, self._indices).to(device)
        totals = torch.cat([true, steps.cumsum(-1) + true[..., -1:]], -1)
        nodes = totals[..., len(self._indices) :] - totals[..., above]
        drawn = self._law.draw(self._divisors(first, last).expand(nodes.shape), self._noise)
        answers = fenwick.accumulate(nodes + drawn.to(device), noisy, first, above)
        keep = fenwick.chain(last)
        known = len(self._indices)
        places = [index - first + known if index >= first else self._indices.index(index) for index in keep]
        self._indices = keep
        self._true, self._noisy = (
            numbers.tolist() if numbers.ndim == 1 else [part.clone() for part in numbers.unbind(-1)]
            for numbers in (totals[..., places], answers[..., places])
        )
        self._count, self._shape = self._count + steps.shape[-1], shape
        if last == self._length:
            self._next_block()
        return answers[..., known:]

    # What it costs and how far off it is ----------------------------------------------------------------------------

    @own_state()
    def variance(self, count: int) -> Tensor:
        """Return the exact variance of the answers 1 .. count, float64 (count,): public and equal for all series."""
        fenwick.check_steps(count, self.horizon or fenwick.MOST_STEPS, "count")
        parts, done, base, length = [], 0, 0.0, self._length if self.horizon else 1
        while done < count:
            size = min(count - done, length)
            later = _LATER * length if self.horizon is None else 0
            nodes = self._law.variance(fenwick.shares(1, size, length, self._law.budget, later=later))
            parts.append(base + fenwick.prefix_sums(nodes))
            base, done, length = float(parts[-1][-1]), done + size, 2 * length
        return torch.cat(parts) * self._grid.step**2

    @property
    def privacy(self) -> PrivacyReport:
        """The guarantee of all answers of this stream, past and future."""
        return StreamPlan(self.epsilon).report(self.event.pure, self._private)

    @typed
    def write(self, folder: Path, answers: torch.Tensor, data: str = "a stream") -> None:
        """Write the released folder: all answers so far as a table, settings, privacy.json and card.

        Args:
            folder: A new folder; `idpgan verify` reads it.
            answers: (..., T), all answers of this stream from the first value on.
            data: Name of the stream on the card.

        Raises:
            InputError: If the folder exists, or ``answers`` contradicts the answers in the state.
        """
        known = [self._before + index for index in self._indices if self._before + index]
        if tuple(answers.shape) != (*(self._shape or ()), self._count) or not all(
            bool((answers[..., index - 1].cpu() == torch.as_tensor(self.answer(index)).cpu()).all()) for index in known
        ):
            raise InputError(f"numbers of shape {tuple(answers.shape)} are not the {self._count} answers given so far.")
        series = math.prod(self._shape or ())
        check_name(data)
        table = StreamTable(
            data=data, mechanism="fenwick", epsilon=self.epsilon, horizon=self.horizon, integer=self.integer
        )
        settings = table.settings(self._count * series)
        write_release(folder, AnswersArtifact.of(answers), settings, self.privacy, [self.event])

    # State -----------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the JSON-able state: O(log count) numbers and the kept answers. Secret: it holds true counts.

        The noise of future nodes is not in the state: a loaded stream draws fresh noise.
        """
        true, noisy, kept = (
            [number.tolist() if isinstance(number, torch.Tensor) else number for number in numbers]
            for numbers in (self._true, self._noisy, self._kept)
        )
        return {
            "format": FORMAT,
            "epsilon": self.epsilon,
            "horizon": self.horizon,
            "integer": self.integer,
            "count": self._count,
            "series": None if self._shape is None else list(self._shape),
            "prefixes": [list(row) for row in zip(self._indices, true, noisy, strict=True)],
            "kept": kept,
            "keep": self._kept.maxlen,
            "private": self._private,
        }

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any],
        epsilon: float,
        horizon: int | None = None,
        integer: bool = True,
        *,
        ledger: Ledger | None = None,
        noise: Noise | None = None,
    ) -> Self:
        """Continue the stream of `state`, with fresh noise for future nodes.

        ``epsilon``, ``horizon`` and ``integer`` must equal those of the stream; they are only checked. The ledger must
        already hold the charge; None = a ledger in memory.

        Raises:
            InputError: If the state is damaged, not a state of this class, or has another epsilon, horizon or kind of
                values.
        """
        names = {"format", "epsilon", "horizon", "integer", "count", "series", "prefixes", "kept", "keep", "private"}
        if not isinstance(state, dict) or state.get("format") != FORMAT or set(state) != names:
            raise InputError(f"not the state of a stream (format {FORMAT!r}).")
        for name, expected in (("epsilon", float(epsilon)), ("horizon", horizon), ("integer", bool(integer))):
            if state[name] != expected:
                raise InputError(
                    f"the state is of a stream with {name} = {state[name]}, not {expected}: it cannot go on otherwise. "
                    "Give the stream's own, or start a new stream, which is a new release."
                )
        counter = cls(state["epsilon"], horizon, integer, keep=state["keep"], ledger=ledger, noise=noise)
        counter._load(state)
        if counter._count:
            if ledger is not None and counter.event not in [event.single for event in ledger.events]:
                raise InputError("the ledger does not hold this stream's charge: it is another one's, or older.")
            if ledger is None:
                counter._ledger.charge(counter.event)
            counter._paid = True
        return counter

    def _load(self, state: dict[str, Any]) -> None:
        count, private, series = state["count"], state["private"], state["series"]
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= (self.horizon or 1 << 62):
            raise InputError(f"the state is damaged: {count!r} values.")
        if self.horizon is None:
            self._length = 1 << ((count + 1).bit_length() - 1)
            self._before = self._length - 1
        self._count, self._private = count, self._private and private is True
        self._indices = fenwick.chain(count - self._before)
        prefixes = state["prefixes"]
        shape = tuple(series) if isinstance(series, list) else None
        whole = isinstance(prefixes, list) and all(isinstance(row, list) and len(row) == 3 for row in prefixes)
        if not whole or [row[0] for row in prefixes] != self._indices or (count > 0) != (shape is not None):
            raise InputError("the state is damaged: its prefixes do not fit its number of values.")
        self._shape = shape
        self._true, self._noisy = ([_number(row[column], shape) for row in prefixes] for column in (1, 2))
        self._kept.extend(_number(answer, shape) for answer in state["kept"])


def _tensor(values: Any) -> Tensor:
    """Return numbers as a tensor whose type converts to 64 bits without loss."""
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"values must be numbers: {error}. Nothing was released.") from error
    whole = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if not tensor.is_floating_point() and tensor.dtype not in whole:
        raise InputError(f"values must be real numbers, not {tensor.dtype}. Nothing was released.")
    return tensor


def _number(plain: Any, shape: tuple[int, ...] | None) -> Any:
    """Return a count of a saved state, or of all series, checked."""
    if not shape:
        if isinstance(plain, bool) or not isinstance(plain, int):
            raise InputError(f"the state is damaged: {plain!r} is not a count.")
        return plain
    number = torch.as_tensor(plain)
    if number.dtype != torch.int64 or number.shape != shape:
        raise InputError(f"the state is damaged: counts of shape {tuple(number.shape)} for series {shape}.")
    return number
