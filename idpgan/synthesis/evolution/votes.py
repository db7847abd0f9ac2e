r"""The noisy histogram of votes: the only private read of an iteration."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from idpgan.errors import InputError
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.mechanisms import RoundedGaussian
from idpgan.privacy.noise import Noise
from idpgan.ranks import ALONE, Ranks

STEPS = 1 << 20  # grid steps of a vote
_MOST_RECORDS = 1 << 40  # their steps add up in 64 bits
_SLACK = 1e-12  # of a float64 square root


@dataclass(frozen=True)
class Votes:
    r"""Noisy counts of the votes for every candidate of every class, all at once.

    A record votes for one candidate of its own class: the nearest one, a function of that record and of the candidates,
    which are public (`nearest`). With `STEPS` = m grid steps to a vote, a vote of unit image adds m to one count. For
    unit person each of a person's k images that count adds ``floor(m / k)`` to the candidate it is nearest to. The sums
    are exact integers, and rounded Gaussian noise is added to each of them.

    Proof of the sensitivity. The votes v of one unit are a vector of whole numbers, none negative, whose sum is at most
    ``k floor(m / k) <= m`` (k = 1 for unit image). So ``||v||_2 <= ||v||_1 <= m``.

    * zero-out-one: the null record (or person) casts no vote, and every other vote stays, bit for bit: the counts
      change by v, at most m.
    * replace-one, the class may change too: by v - v' with ``||v - v'||^2 = ||v||^2 + ||v'||^2 - 2 v.v' <= 2 m^2``,
      since no coordinate is negative: at most sqrt(2) m.

    Both are reached. All classes and candidates are one vector, so the class of a record is protected as its pixels
    are. Iterations compose: the candidates of one follow from the noisy counts of those before it.

    Attributes:
        rows: Classes, 1 without.
        candidates: Of each class.
        noise_multiplier: Least noise standard deviation / sensitivity; that of `event` is rounded up to the grid.
        most_per_unit: Public cap on the images of one person; 1 for unit image.
    """

    rows: int
    candidates: int
    noise_multiplier: float
    unit: Unit
    relation: Relation
    most_per_unit: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1 or self.candidates < 1 or not 1 <= self.most_per_unit <= STEPS:
            raise InputError(
                f"classes ({self.rows}) and candidates ({self.candidates}) must be at least 1, images per unit "
                f"({self.most_per_unit}) within 1 .. {STEPS:,}."
            )
        if self.unit is Unit.IMAGE and self.most_per_unit != 1:
            raise InputError(f"unit image has one vote per unit, not {self.most_per_unit}.")

    @classmethod
    def calibrated(
        cls,
        rows: int,
        candidates: int,
        iterations: int,
        *,
        epsilon: float,
        delta: float,
        unit: Unit,
        relation: Relation,
        most_per_unit: int = 1,
    ) -> Votes:
        """Return the votes with the least noise of which so many iterations cost at most (epsilon, delta).

        Raises:
            InputError: If the budget is impossible.
        """

        def votes(multiplier: float) -> Votes:
            return cls(rows, candidates, multiplier, unit, relation, most_per_unit)

        return votes(calibrate(lambda m: [votes(m).event.repeated(iterations)], epsilon, delta))

    @property
    def distance(self) -> float:
        """Bound on the L2 norm by which neighbors' counts differ, in grid steps."""
        return float(STEPS) if self.relation is Relation.ZERO_OUT else math.sqrt(2) * STEPS * (1 + _SLACK)

    @property
    def mechanism(self) -> RoundedGaussian:
        """The noise that is added to all counts at once."""
        scale = math.ceil(self.noise_multiplier * self.distance)
        return RoundedGaussian(self.distance, scale, self.unit, self.relation)

    @property
    def event(self) -> Event:
        """Price of one iteration."""
        return self.mechanism.event

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each count, in votes."""
        return self.mechanism.scale / STEPS

    def __call__(self, chosen: Tensor, labels: Tensor, weights: Tensor, noise: Noise, ranks: Ranks = ALONE) -> Tensor:
        """Release the noisy counts, float64 (rows, candidates) on the CPU, in votes.

        Arguments and errors are those of `exact`. Several ranks count the votes of one share of the records each; rank
        0 adds them up and draws the noise, once, and the others get what is released.
        """
        counts = ranks.sum_to_first([self.exact(chosen, labels, weights)])
        released = torch.full((self.rows, self.candidates), torch.nan, dtype=torch.float64)
        if ranks.first:
            released = self.mechanism(counts[0], noise).double() / STEPS
        ranks.from_first([released])
        return released

    def exact(self, chosen: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Return the counts without noise, in grid steps, int64 (rows, candidates) on the CPU: secret.

        Args:
            chosen: The candidate of each record, int64 (N,).
            labels: The class of each record, int64 (N,).
            weights: Grid steps that its vote counts, int64 (N,), as of `steps_of`.

        Raises:
            ValueError: If a candidate, a class or a weight is out of range. Nothing is released then.
        """
        if chosen.shape != labels.shape or chosen.shape != weights.shape or len(chosen) > _MOST_RECORDS:
            raise ValueError("every record has a candidate, a class and a weight.")
        ranges = ((chosen, self.candidates - 1), (labels, self.rows - 1), (weights, STEPS))
        if any(part.dtype != torch.int64 or bool(((part < 0) | (part > most)).any()) for part, most in ranges):
            raise ValueError("a vote names a candidate, a class or a weight that does not exist.")
        counts = torch.zeros(self.rows * self.candidates, dtype=torch.int64)
        return counts.index_add_(0, labels * self.candidates + chosen, weights).view(self.rows, self.candidates)


def steps_of(counts: Tensor | None, null: Tensor | None, num: int) -> Tensor:
    """Return the grid steps that the vote of each record counts, int64 (num,).

    Args:
        counts: Images that count of each record's person, (num,), 0 for an image that does not; None for unit image.
        null: Which records are null, bool (num,): they do not vote, and no other vote counts more for it.
    """
    steps = torch.full((num,), STEPS, dtype=torch.int64)
    if counts is not None:
        steps = torch.where(counts > 0, steps // counts.clamp(min=1), 0)
    return steps if null is None else steps.masked_fill(null.cpu(), 0)
