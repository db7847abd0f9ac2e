"""One joint release of the sums of bounded vectors, cell by cell: the only private read of `idp-gan-aggregate`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

import torch

from idpgan.errors import InputError
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.mechanisms import DiscreteLaplace, Grid, RoundedGaussian
from idpgan.privacy.noise import Noise

Law = Literal["gaussian", "laplace"]
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Vectors (B, D), their cells (B,) and their weights (B,), if any."""
NORMS: dict[Law, int] = {"gaussian": 2, "laplace": 1}  # order of the norm that bounds a record
_MOST = 2.0**53  # beyond this float64 skips whole numbers
_NORM_SLACK = 1e-12  # rounding of a float64 normalization


class PartialSums(Protocol):
    """Exact sums over the first records, which somebody keeps for a later call.

    Attributes:
        done: Records that are in them.
        total: int64 (num_cells, dimensions), in grid steps; None where none are.
    """

    done: int
    total: torch.Tensor | None

    def keep(self, done: int, total: torch.Tensor) -> None:
        """Keep the sums over so many records, float64."""


@dataclasses.dataclass(frozen=True)
class CellSums:
    r"""Noisy sums ``T_c = sum over records of cell c of v(x)``, with ``||v(x)|| <= 1``, for a fixed list of cells.

    Every record is brought to norm at most 1 (L2 for Gaussian, L1 for Laplace noise), rounded to the grid, and added
    to exactly one cell, which may be any function of that record alone. The sums are exact integers.

    Proof of the sensitivity. Let ``r(x)`` be a rounded record, d = `dimensions`. Rounding moves each coordinate by at
    most half a step, so in steps ``||r||_2 <= S_2 = 1/step + sqrt(d)/2`` and ``||r||_1 <= S_1 = 1/step + d/2``.

    * zero-out-one: the joint vector of all cells changes by one ``r(x)`` in one cell: S.
    * replace-one, the cell may change too: by ``r(x)`` and ``r(x')``, in one cell or in two: at most 2 S. Where no
      coordinate is negative, L2 is at most sqrt(2) S: ``||r - r'||^2 = ||r||^2 + ||r'||^2 - 2 r.r' <= 2 S^2``.

    Unit person: a record is a person, and enters as the average over that person's images of their vectors, each in its
    own cell (``weights`` = 1 / number of that person's images). The norm of the average is at most 1 (triangle
    inequality), so the same bounds hold, with the rounding term k times as large for at most k = `most_per_unit` images
    (their errors may all point the same way).

    Attributes:
        num_cells: Cells of the fixed public list, empty ones included.
        dimensions: Length of a vector.
        law: "gaussian" (L2 norm, (epsilon, delta)) or "laplace" (L1 norm, pure).
        noise_multiplier: Least noise scale / sensitivity; `event` has the multiplier rounded up to the grid.
        nonnegative: Whether no vector has a negative coordinate; checked.
        most_per_unit: Public cap on the images of one person; 1 for unit image.
    """

    num_cells: int
    dimensions: int
    law: Law
    noise_multiplier: float
    unit: Unit
    relation: Relation
    nonnegative: bool = False
    most_per_unit: int = 1

    def __post_init__(self) -> None:
        if self.num_cells < 1 or self.dimensions < 1 or self.most_per_unit < 1:
            raise InputError(
                f"cells ({self.num_cells}), dimensions ({self.dimensions}) and images per unit ({self.most_per_unit}) "
                "must be at least 1."
            )
        if self.unit is Unit.IMAGE and self.most_per_unit != 1:
            raise InputError(f"unit image has one image per unit, not {self.most_per_unit}.")

    @classmethod
    def calibrated(
        cls,
        num_cells: int,
        dimensions: int,
        law: Law,
        *,
        epsilon: float,
        delta: float,
        unit: Unit,
        relation: Relation,
        nonnegative: bool = False,
        most_per_unit: int = 1,
        factor: float = 1.0,
        beside: Callable[[float], Sequence[Event]] = lambda multiplier: (),
    ) -> CellSums:
        """Return the release with the least noise that costs at most (epsilon, delta).

        Args:
            factor: Noise multiplier of this release, as a multiple of the multiplier that is sought.
            beside: Maps the multiplier to what else is released from the same records and budget.

        Raises:
            InputError: If the budget is impossible, above all delta = 0 with Gaussian noise.
        """
        if law == "gaussian" and delta <= 0:
            raise InputError("Gaussian noise has no pure guarantee: set delta above 0, or the noise to laplace.")
        made = cls(num_cells, dimensions, law, 1.0, unit, relation, nonnegative, most_per_unit)

        def events(multiplier: float) -> list[Event]:
            return [dataclasses.replace(made, noise_multiplier=factor * multiplier).event, *beside(multiplier)]

        return dataclasses.replace(made, noise_multiplier=factor * calibrate(events, epsilon, delta))

    @property
    def grid(self) -> Grid:
        """The public grid; rounding costs 0.1 to 0.2 % of the sensitivity."""
        images = self.most_per_unit
        if self.law == "gaussian":
            return Grid.fine(1.0, self.dimensions * images**2, norm=2)
        return Grid.fine(1.0, self.dimensions * images, norm=1)

    @property
    def distance(self) -> float:
        """Bound on the norm (`NORMS`) by which neighbors' sums differ, in grid steps; whole for Laplace noise."""
        whole, images = (1 + _NORM_SLACK) / self.grid.step, self.most_per_unit
        if self.law == "laplace":
            moved = 1 if self.relation is Relation.ZERO_OUT else 2
            return moved * math.ceil(whole + images * self.dimensions / 2)
        moved_l2 = 1.0 if self.relation is Relation.ZERO_OUT else math.sqrt(2) if self.nonnegative else 2.0
        return moved_l2 * (whole + images * math.sqrt(self.dimensions) / 2)

    @property
    def mechanism(self) -> RoundedGaussian | DiscreteLaplace:
        """The noise that is added to all sums at once."""
        scale = math.ceil(self.noise_multiplier * self.distance)
        if self.law == "laplace":
            return DiscreteLaplace(math.ceil(self.distance), scale, self.unit, self.relation)
        return RoundedGaussian(self.distance, scale, self.unit, self.relation)

    @property
    def event(self) -> Event:
        """Price of the release."""
        return self.mechanism.event

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each number, in the unit of the vectors."""
        scale = self.mechanism.scale * self.grid.step
        return scale * math.sqrt(2) if self.law == "laplace" else scale

    @property
    def noise_length(self) -> float:
        """Expected length of the noise on one cell's sum, in the norm that bounds a record by 1."""
        if self.law == "laplace":
            return self.dimensions * self.noise_std / math.sqrt(2)  # L1
        return math.sqrt(self.dimensions) * self.noise_std

    def release(
        self,
        batches: Iterable[Batch],
        noise: Noise,
        kept: PartialSums | None = None,
    ) -> torch.Tensor:
        """Release the noisy sums, float64 (num_cells, dimensions) on the CPU.

        Args:
            batches: (vectors (B, dimensions) floating point, cells (B,) int64, weights (B,) or None), every record
                once, but those that are in ``kept``. A vector of norm above 1 is scaled down to 1.
            kept: Sums without noise to go on from: secret.

        Raises:
            ValueError: If a vector is not finite or (where declared) negative, a cell is not on the list, or weights
                are given for unit image or are not shares, or there are too many records. Nothing is released then.
        """
        return self.grid.value(self.mechanism(self.exact(batches, kept), noise))

    def exact(
        self,
        batches: Iterable[Batch],
        kept: PartialSums | None = None,
    ) -> torch.Tensor:
        """Return the sums without noise, in grid steps, int64 (num_cells, dimensions) on the CPU: secret."""
        total, rows = torch.zeros(self.num_cells, self.dimensions, dtype=torch.float64), 0
        if kept is not None and kept.total is not None:
            total, rows = total + kept.total, kept.done
        for vectors, cells, weights in batches:
            rows += len(vectors)
            if rows * (1 / self.grid.step + 1) >= _MOST:  # a sum of fewer rows cannot reach it
                raise ValueError(
                    f"{rows:,} records in steps of {self.grid.step:g} do not add up exactly; lower the images per unit."
                )
            total += self._exact_sum(vectors, cells, weights).cpu()
            if kept is not None:
                kept.keep(rows, total)
        return total.long()

    def _exact_sum(self, vectors: torch.Tensor, cells: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        """Return the sums of one batch in grid steps, float64 (num_cells, dimensions), whole numbers below 2^53."""
        if vectors.ndim != 2 or vectors.shape[1] != self.dimensions or cells.shape != vectors.shape[:1]:
            raise ValueError(f"vectors must be (B, {self.dimensions}) and cells (B,), got {tuple(vectors.shape)}.")
        if (weights is None) != (self.unit is Unit.IMAGE):
            raise ValueError("weights belong to unit person, and unit person needs them.")
        if weights is not None and not bool(((weights >= 0) & (weights <= 1)).all()):  # NaN fails it too
            raise ValueError("weights are shares of a person, in 0 .. 1.")
        exact = vectors.double()
        norms = torch.linalg.vector_norm(exact, ord=2 if self.law == "gaussian" else 1, dim=1)
        # The norm of a vector is not finite where one of its numbers is not.
        inside = norms.isfinite().all() & (cells >= 0).all() & (cells < self.num_cells).all()
        if self.nonnegative:
            inside &= (vectors >= 0).all()
        if not bool(inside):
            raise ValueError(
                "a vector is not finite or is negative where it must not be, or a cell is not on the list."
            )
        scale = norms.clamp(min=1).reciprocal() if weights is None else weights.double() / norms.clamp(min=1)
        steps = (exact * (scale / self.grid.step)[:, None]).round_()
        # A matrix product adds whole numbers exactly as long as every partial sum stays below 2^53.
        members = torch.nn.functional.one_hot(cells, self.num_cells).to(steps.dtype)  # (B, num_cells)
        return members.T @ steps
