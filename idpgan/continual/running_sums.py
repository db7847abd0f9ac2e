r"""Running sums of bounded vectors, released under one guarantee after each part of the records arrives.

Part t brings records; their vectors add up to X_t, cell by cell (`privacy.sums.CellSums`). After every part the sum of
all parts so far is released. With a public lower-triangular matrix M of whole numbers the mechanism is ``Y = M X + Z``
and the answers are ``W M^-1 Y``, W the lower triangle of ones. Row t of Y uses only the parts up to t, and its noise is
drawn when part t arrives.

Proof, zero-out-one. A record arrives once, in part s. Its rounded vector r has norm at most S grid steps
(`CellSums.distance`), so X changes by r in row s alone, and M X by ``M[t, s] r`` in row t: together by
``||M_s|| ||r|| <= max_s ||M_s|| S``, in L2 for Gaussian and L1 for Laplace noise, M_s a column of M. M and X hold whole
numbers, so nothing is rounded. One release of M X with the noise for that distance is one event of `CellSums`' own
mechanism. The guarantee also holds if later parts are chosen after seeing earlier answers: for Laplace noise because
the privacy loss is bounded row by row, for Gaussian noise by Denisov, McMahan, Rush, Smith, Thakurta (2022), theorem
2.1. Under replace-one a record and its replacement arrive in the same part: the same proof with S for replace-one.

Unit person: the images of one person may arrive in different parts. With the fixed weight 1 / cap for every image (not
1 / number of that person's images, which changes as they arrive) the norms of that person's rows of X sum to at most S,
and ``||M X - M X'|| <= sum_s ||M_s|| ||r_s|| <= max_s ||M_s|| S``.

For Gaussian noise M is the square root of W (Fichtenberger, Henzinger, Upadhyay 2023), for Laplace noise the Fenwick
tree with its best weights (`fenwick.fast_diagonal`), each scaled and rounded to whole numbers; W M^-1 is that of the
rounded matrix.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import torch
from torch import Tensor

from idpgan.continual import fenwick
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.privacy import DiscreteLaplace, Event, Ledger, Noise, RoundedGaussian
from idpgan.privacy.sums import NORMS, CellSums

Batches = Iterable[tuple[Tensor, Tensor, Tensor | None]]  # see `CellSums.release`
FORMAT = "idpgan running sums 1"
MOST_PARTS = 1024
_SCALE = 1 << 12  # entries of the strategy are multiples of 1 / _SCALE
_MOST = 1 << 53  # largest exact integer in float64


@dataclass(frozen=True)
class RunningSums:
    """The mechanism of running sums; see the module for its proof.

    Formal guarantee: `event`, for unit and relation of ``cells``, whatever the number of parts that arrive.

    Attributes:
        cells: Bound of a record, law and noise multiplier.
        parts: Largest number of parts, 1 .. 1,024.
    """

    cells: CellSums
    parts: int

    def __post_init__(self) -> None:
        fenwick.check_steps(self.parts, MOST_PARTS, "parts")

    @functools.cached_property
    def strategy(self) -> Tensor:
        """M, int64 (parts, parts), lower triangular."""
        n = self.parts
        if self.cells.law == "gaussian":
            lag = torch.arange(n)[:, None] - torch.arange(n)
            real = square_root_coefficients(n)[lag.clamp(min=0)] * (lag >= 0)
        else:
            weights, _ = fenwick.fast_diagonal(n)
            real = weights[:, None] * fenwick.matrices(n)[1]
        return (real * _SCALE).round().long()

    @functools.cached_property
    def decoder(self) -> Tensor:
        """W M^-1, float64 (parts, parts), lower triangular."""
        triangle = torch.ones(self.parts, self.parts, dtype=torch.float64).tril()
        return torch.linalg.solve_triangular(self.strategy.double(), triangle, upper=False, left=False)

    @property
    def mechanism(self) -> RoundedGaussian | DiscreteLaplace:
        """The noise on M X."""
        columns = self.strategy.double().norm(p=NORMS[self.cells.law], dim=0)
        return self.cells.noise_for(self.cells.distance * float(columns.max()) * (1 + 1e-12))

    @property
    def event(self) -> Event:
        """The charge for all parts together."""
        return self.mechanism.event

    @own_state()
    def noise_std(self, part: int) -> float:
        """Return the standard deviation of the noise on each number of answer ``part`` (from 1), in vector units."""
        scale = self.mechanism.scale * self.cells.grid.step * float(self.decoder[part - 1].norm())
        return scale * 2**0.5 if self.cells.law == "laplace" else scale


def square_root_coefficients(n: int) -> Tensor:
    """Return the first n coefficients of ``1 / sqrt(1 - x)``, float64: ``f_k = f_(k-1) (1 - 1 / (2 k))``, f_0 = 1.

    Example:
        >>> square_root_coefficients(4).tolist()
        [1.0, 0.5, 0.375, 0.3125]
    """
    ratios = 1 - 0.5 / torch.arange(n, dtype=torch.float64)
    ratios[0] = 1.0
    return ratios.cumprod(0)


class SumsStream:
    """Releases the running sums of a growing collection, part by part.

    Formal guarantee: that of `RunningSums`, for one stream. Using a saved state twice makes two releases. The stream
    writes no file: the caller keeps `state` secret, and saves it before showing an answer.

    Args:
        ledger: Ledger that is charged once, before the first part is read; None = a ledger in memory.
        noise: None = fresh from the operating system.
    """

    @own_state()
    def __init__(self, mechanism: RunningSums, *, ledger: Ledger | None = None, noise: Noise | None = None) -> None:
        cells = mechanism.cells
        self.mechanism = mechanism
        self.ledger = Ledger(cells.unit, cells.relation) if ledger is None else ledger
        self._noise = Noise.system() if noise is None else noise
        self._private, self._paid = self._noise.private, False
        shape = (0, cells.num_cells, cells.dimensions)
        self._parts = torch.zeros(shape, dtype=torch.int64)  # X: secret
        self._noisy = torch.zeros(shape, dtype=torch.int64)  # Y: released

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse `copy` and `pickle`, as its noise does."""
        self._noise.__reduce_ex__(protocol)

    @property
    def count(self) -> int:
        """Number of parts so far."""
        return len(self._noisy)

    @property
    def private(self) -> bool:
        """Whether all noise came from the operating system."""
        return self._private

    @own_state()
    def push(self, batches: Batches) -> Tensor:
        """Add the next part and return the noisy sums of all parts so far, float64 (num_cells, dimensions).

        For unit person every weight in ``batches`` (see `CellSums`) is at most 1 / cap, and a person has at most cap
        images in all parts together: the second condition cannot be checked here, and the proof requires it.

        Raises:
            InputError: If all parts have already arrived. Nothing is read then.
            BudgetError: If the ledger cannot pay for the stream.
            ValueError: If a vector is invalid. Nothing is released then, and the part may be pushed again.
        """
        mechanism = self.mechanism
        if self.count == mechanism.parts:
            raise InputError(
                f"all {mechanism.parts} parts have arrived; a further one is a new stream, with its own epsilon."
            )
        if not self._paid:
            self.ledger.charge(mechanism.event)
            self._paid = True
        cap = mechanism.cells.most_per_unit

        def checked() -> Batches:  # checks the weights, since all parts share a person's bound
            for vectors, cells, weights in batches:
                if weights is not None and bool((weights.double() > (1 + 1e-12) / cap).any()):
                    raise ValueError(f"weights above 1 / {cap} are not a fixed share of a person with {cap} images.")
                yield vectors, cells, weights

        parts = torch.cat([self._parts, mechanism.cells.exact(checked())[None]])
        row = mechanism.strategy[self.count, : len(parts)]
        answer = (row[:, None, None] * parts).sum(0)
        if float((row.double()[:, None, None] * parts.double().abs()).sum(0).max()) >= _MOST:
            raise InputError("the sums are too large for exact arithmetic; make fewer parts or a coarser grid.")
        self._noisy = torch.cat([self._noisy, mechanism.mechanism(answer, self._noise)[None]])
        self._parts = parts
        return self.answer(self.count)

    def answer(self, part: int) -> Tensor:
        """Return the noisy sums of the first ``part`` parts again: the same numbers at every call."""
        if isinstance(part, bool) or not isinstance(part, int) or not 1 <= part <= self.count:
            raise InputError(f"part = {part!r} must be a whole number in 1 .. {self.count}, the parts so far.")
        row = self.mechanism.decoder[part - 1, :part]
        return self.mechanism.cells.grid.value(torch.tensordot(row, self._noisy[:part].double(), 1))

    # State -----------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the state of the stream, plain values and tensors. Secret: it holds the true sums."""
        return {"format": FORMAT, "mechanism": self._identity(), "parts": self._parts, "noisy": self._noisy,
                "private": self._private, "paid": self._paid}  # fmt: skip

    @classmethod
    @own_state()
    def from_state(
        cls, mechanism: RunningSums, state: Mapping[str, Any], *, ledger: Ledger, noise: Noise | None = None
    ) -> Self:
        """Continue a stream; noise of later parts is freshly keyed.

        Args:
            mechanism: The mechanism with which the stream began.
            state: What `state` returned.
            ledger: The ledger that was charged.
            noise: None = fresh from the operating system.

        Raises:
            InputError: If the state is of another format or mechanism, is damaged, or the ledger was not charged.
        """
        stream = cls(mechanism, ledger=ledger, noise=noise)
        if state.get("format") != FORMAT or state.get("mechanism") != stream._identity():
            raise InputError(
                "the state is of another stream: its parts, cells, law or noise differ. Use its own settings."
            )
        tensors: tuple[Any, Any] = state.get("parts"), state.get("noisy")
        (parts, noisy), shape = tensors, stream._parts.shape[1:]
        if (
            not all(isinstance(part, Tensor) and part.dtype == torch.int64 for part in tensors)
            or not parts.shape[1:] == noisy.shape[1:] == shape
            or not len(parts) == len(noisy) <= mechanism.parts
            or (len(noisy) and not state.get("paid"))
        ):
            raise InputError("the state of the stream is damaged. Restore it from a copy, or start a new stream.")
        if state.get("paid") and mechanism.event not in [event.single for event in ledger.events]:
            raise InputError("the ledger was not charged for this stream. Name the stream's own ledger.")
        stream._parts, stream._noisy = parts, noisy
        stream._private = stream._private and bool(state.get("private"))
        stream._paid = bool(state.get("paid"))
        return stream

    def _identity(self) -> dict[str, Any]:
        """Return the settings that every continuation must share."""
        cells = self.mechanism.cells
        return {
            "parts": self.mechanism.parts, "cells": cells.num_cells, "dimensions": cells.dimensions, "law": cells.law,
            "noise_multiplier": cells.noise_multiplier, "unit": str(cells.unit), "relation": str(cells.relation),
            "most_per_unit": cells.most_per_unit, "nonnegative": cells.nonnegative,
        }  # fmt: skip
