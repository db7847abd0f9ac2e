r"""The noisy histogram of votes, the only private read of an iteration; and its audit.

The embedding that defines near images: principal components of scattering features, learned on drawn images only.

The nearest candidate of each record is found exactly, since vectors are whole numbers, whose products add up without
rounding in any order. With numbers of at most 127 and at most 256 coordinates, ``2 q.c - |c|^2`` is a whole number
below 2^24 in size, and so is every partial sum: float32 holds them all, on the CPU and on a GPU. So which candidate is
nearest depends on the record and on the candidates alone, never on the batch, the other records, or the machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from idpgan.audit import neighbors
from idpgan.audit.cases import AuditCase, released_case
from idpgan.audit.entry import Request
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import likelihood_ratio
from idpgan.data.images import Images, to_float
from idpgan.device import by_device
from idpgan.errors import InputError
from idpgan.models.scattering import Scattering, scales_of
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.dpsgd import full_precision
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, Relation, Unit
from idpgan.privacy.mechanisms import Grid, RoundedGaussian
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

    def release(self, chosen: Tensor, labels: Tensor, weights: Tensor, noise: Noise, ranks: Ranks = ALONE) -> Tensor:
        """Release the noisy counts, float64 (rows, candidates) on the CPU, in votes.

        Arguments and errors are those of `exact`. Several ranks count the votes of one share of the records each; rank
        0 draws the noise, once, on its own counts, before all are added up.
        """
        counts = self.exact(chosen, labels, weights)
        if ranks.first:
            counts = self.mechanism(counts, noise)
        noised = torch.full((1,), int(ranks.first))
        return ranks.noisy_sum(counts.flatten(), noised).view_as(counts) / STEPS

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


# The audit: the votes that a record can change, in all iterations -----------------------------------------------------


def votes_case(votes: Votes, iterations: int, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    """Return the case of so many iterations; claim None = the request.

    The candidates, hence the generator, are computed from the noisy counts. The target votes for another candidate than
    the bystander in every iteration; which one does not matter, since the noise on all of them is alike and
    independent. Under replace-one it moves from a candidate of the first class to one of the last.
    """
    grid, mechanism, event = Grid(1.0 / STEPS), votes.mechanism, votes.event.repeated(iterations)

    def release(counts: Tensor, noise: Noise) -> Tensor:
        return grid.value(mechanism(counts, noise))

    notes = (
        f"{iterations} iterations of {votes.rows} x {votes.candidates} counts; counts that do not differ get "
        "independent noise and were not simulated",
    )
    return released_case(
        "evolution", request, (event,), _voting_neighbors(votes, iterations), release,
        likelihood_ratio(mechanism, grid), claimed, entrywise=True, notes=notes,
    )  # fmt: skip


def _voting_neighbors(votes: Votes, iterations: int) -> Pair:
    """Return the exact counts of both neighbors, in grid steps, int64 (iterations, rows, candidates) each."""

    def counts(target: tuple[int, int] | None) -> Tensor:
        rows, chosen, images = [0], [votes.candidates // 2], [1]
        if target is not None:
            copies = votes.most_per_unit
            rows, chosen = rows + [target[0]] * copies, chosen + [target[1]] * copies
            images += [copies] * copies
        weights = steps_of(torch.tensor(images) if votes.unit.of_images else None, None, len(rows))
        return votes.exact(torch.tensor(chosen), torch.tensor(rows), weights).expand(iterations, -1, -1).contiguous()

    if votes.relation is Relation.ZERO_OUT:
        return Pair(neighbors.ABSENT, counts(None), counts((0, 0)))
    return Pair(neighbors.MOVED, counts((votes.rows - 1, votes.candidates - 1)), counts((0, 0)))


DRAWN = 1000  # images that the components are learned on
LEAST_SIDE = 8  # px, of an image
LEVELS = 127  # largest absolute value of a coordinate
MOST_DIMENSIONS = 256
_DIRECTIONS = 4  # of wavelets: twice as many take three times as long
_SMALL_SIDE = 16  # px, below which two scales leave too few places
_IMAGES = 256  # of a call, always: fewer are padded
_TILE = (512, 2048), (16_384, 8192)  # `by_device`: records and candidates at once, 4 MiB of scores on the CPU


class Embedding:
    """Images -> vectors of whole numbers, fixed before any private image is read.

    Normalized scattering features (`idpgan.models.scattering`) are centered at the mean of the drawn images and
    projected on their first principal components. A step of the grid is so small that the drawn images just fit into
    `LEVELS` steps on each side; what lies beyond is cut off.

    Args:
        image_shape: (C, H, W), each side at least 8 pixels.
        draw: Returns so many images of the simulator, or fewer, (B, C, H, W) in [-1, 1]; called with `DRAWN`.
        features: Of the user, in place of scattering: images -> (B, D), each vector a function of its image alone.

    Attributes:
        size: Coordinates, at most 256.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        draw: Callable[[int], Tensor],
        device: torch.device,
        features: nn.Module | None = None,
    ) -> None:
        height, width = image_shape[1:]
        scales = 1 if min(height, width) < _SMALL_SIDE else scales_of(height, width)
        self._device = device
        self._features: Callable[[Tensor], Tensor] = (
            Scattering(image_shape, scales, _DIRECTIONS).to(device).normalized
            if features is None
            else features.to(device)
        )
        drawn = draw(DRAWN).split(_IMAGES)
        with torch.no_grad(), full_precision():
            found = torch.cat([self._features(part.to(device)) for part in drawn]).double()
        self._mean = found.mean(0)
        centered = found - self._mean
        wide = centered.shape[0] < centered.shape[1]
        variances, vectors = torch.linalg.eigh(centered @ centered.T if wide else centered.T @ centered)
        self.size = min(MOST_DIMENSIONS, int((variances > 1e-9 * variances[-1]).sum()))
        variances, vectors = variances[-self.size :], vectors[:, -self.size :]
        axes = centered.T @ vectors / variances.sqrt() if wide else vectors  # orthonormal, (D, size)
        self._axes = (axes * (LEVELS / (centered @ axes).abs().max())).float()
        self._mean = self._mean.float()

    @property
    def fixed(self) -> tuple[Tensor, Tensor]:
        """The tensors by which it maps images, beside its settings."""
        return self._mean, self._axes

    def __call__(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) in [-1, 1] to int8 (B, size) on the device; what is not a number becomes 0."""
        with torch.no_grad(), full_precision():
            coordinates = torch.cat([self._projected(part)[: len(part)] for part in images.split(_IMAGES)])
        return coordinates.nan_to_num(0.0).round().clamp(-LEVELS, LEVELS).to(torch.int8)

    def _projected(self, part: Tensor) -> Tensor:
        """Project one tile, padded: the arithmetic of a row is a function of its image and its place."""
        padded = torch.cat([part, part.new_zeros(_IMAGES - len(part), *part.shape[1:])]).to(self._device)
        return (self._features(padded) - self._mean) @ self._axes


def private_vectors(private: Images, embedding: Embedding, share: slice | None = None) -> Iterator[Tensor]:
    """Yield the vectors of the private images in their order, int8: the one place here that reads private pixels.

    Every call has the same number of rows and null records keep theirs, so that a row, down to the last bit, is a
    function of that row's image and place. Called after the first iteration was charged; the vectors stay with the
    curator, and only `votes` sees them. ``share`` are the positions of this rank; None = all.
    """
    first, last = (0, len(private)) if share is None else (share.start, share.stop)
    for start in range(first, last, _IMAGES):
        index = torch.arange(start, min(start + _IMAGES, last), device=private.images.device)
        yield embedding(to_float(private.select(index).images))


def nearest(records: Tensor, candidates: Tensor) -> Tensor:
    """Return the number of the nearest candidate of each record, int64 (N,), the first among equals.

    No N x M matrix is ever held.

    Args:
        records: int8 (N, D), D <= `MOST_DIMENSIONS`, any device.
        candidates: int8 (M, D), M >= 1, on the same device.
    """
    if records.dtype != torch.int8 or candidates.dtype != torch.int8 or records.shape[1] != candidates.shape[1]:
        raise ValueError(f"records and candidates are int8 of one length, got {records.shape} and {candidates.shape}.")
    if records.shape[1] > MOST_DIMENSIONS or not len(candidates):
        raise ValueError(f"there are 1 to {MOST_DIMENSIONS} coordinates and at least one candidate.")
    rows, columns = by_device(records.device, *_TILE)
    parts = [(part.float(), part.float().square().sum(1)) for part in candidates.split(columns)]
    chosen = torch.empty(len(records), dtype=torch.int64, device=records.device)
    with full_precision():
        for start in range(0, len(records), rows):
            queries = 2 * records[start : start + rows].float()
            best, index = queries.new_full((len(queries),), -torch.inf), chosen[start : start + rows]
            for number, (values, squares) in enumerate(parts):
                score, column = torch.addmm(-squares, queries, values.T).max(1)
                better = score > best
                index[better] = column[better] + number * columns
                best = torch.where(better, score, best)
    return chosen
