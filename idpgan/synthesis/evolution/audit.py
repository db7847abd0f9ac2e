"""Audit case of evolution: the votes that a record can change, in all iterations, on constructed neighbors.

The candidates, hence the generator, are computed from the noisy counts, so a bound for the counts holds for them too.
The target votes for another candidate than anybody else in every iteration; which one does not matter, since the noise
on all of them is alike and independent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.audit import neighbors
from idpgan.audit.cases import AuditCase, guarantees
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import likelihood_ratio
from idpgan.privacy import Guarantee, Noise, Relation, Unit
from idpgan.privacy.mechanisms import Grid
from idpgan.synthesis.evolution.config import EvolutionRun
from idpgan.synthesis.evolution.votes import STEPS, Votes, steps_of

_CLASSES, _CANDIDATES, _ITERATIONS = 10, 200, 8  # of the run that stands for all
_CAP = 20  # images of a person


def votes_case(votes: Votes, iterations: int, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    """Return the case of so many iterations; None as claim = what was asked for.

    One bystander votes. Under replace-one the target moves from a candidate of the first class to one of the last.
    """
    grid, mechanism, event = Grid(1.0 / STEPS), votes.mechanism, votes.event.repeated(iterations)

    def release(counts: Tensor, noise: Noise) -> Tensor:
        return grid.value(mechanism(counts, noise))

    name = neighbors.ABSENT if votes.relation is Relation.ZERO_OUT else neighbors.MOVED
    pair = Pair(name, *_sides(votes, iterations))
    asked, proven = guarantees(request, event)
    notes = (
        f"{iterations} iterations of {votes.rows} x {votes.candidates} counts; counts that do not differ get "
        "independent noise and were not simulated",
    )
    return AuditCase(
        "evolution", pair, claimed or asked, proven, release, (likelihood_ratio(mechanism, grid),),
        entrywise=True, notes=notes, events=(event,),
    )  # fmt: skip


def _sides(votes: Votes, iterations: int) -> tuple[Tensor, Tensor]:
    """Return the counts of both neighbors, in grid steps, int64 (iterations, rows, candidates) each."""
    first, last = (0, 0), (votes.rows - 1, votes.candidates - 1)
    absent = None if votes.relation is Relation.ZERO_OUT else last
    return _counts(votes, absent, iterations), _counts(votes, first, iterations)


def differing_counts(votes: Votes, iterations: int) -> tuple[Tensor, Tensor]:
    """Return the counts that differ between the neighbors of `votes_case`, in grid steps, int64 (n,) each."""
    data, neighbor = _sides(votes, iterations)
    differ = data != neighbor
    return data[differ], neighbor[differ]


def _counts(votes: Votes, target: tuple[int, int] | None, iterations: int) -> Tensor:
    """Return the exact counts of a bystander and perhaps a target, int64 (iterations, rows, candidates)."""
    rows, chosen, images = [0], [votes.candidates // 2], [1]
    if target is not None:
        copies = votes.most_per_unit
        rows, chosen, images = rows + [target[0]] * copies, chosen + [target[1]] * copies, images + [copies] * copies
    weights = steps_of(torch.tensor(images) if votes.unit is Unit.PERSON else None, None, len(rows))
    return votes.exact(torch.tensor(chosen), torch.tensor(rows), weights).expand(iterations, -1, -1).contiguous()


def _case(request: Request) -> AuditCase:
    unit = request.unit or Unit.IMAGE
    votes = Votes.calibrated(
        _CLASSES,
        _CANDIDATES,
        _ITERATIONS,
        epsilon=request.epsilon,
        delta=request.delta or 0.0,
        unit=unit,
        relation=request.relation or Relation.ZERO_OUT,
        most_per_unit=_CAP if unit is Unit.PERSON else 1,
    )
    return votes_case(votes, _ITERATIONS, request)


def _of_run(config: EvolutionRun, facts: RunFacts) -> AuditCase:
    request = Request(config.privacy.epsilon, config.privacy.delta)
    return votes_case(config.votes(facts.num_classes), config.training.steps, request, facts.claimed)


AUDIT = Entry(_case, (Unit.IMAGE, Unit.PERSON), (Relation.ZERO_OUT, Relation.REPLACE_ONE), delta=1e-5, of_run=_of_run)
