"""The audit of idp-gan-aggregate: one release of sums of cells, with and without a record of the largest influence.

The generator is computed from that release, so a bound for the release holds for the generator too; attacking the
release is stronger than attacking the generator.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from idpgan.audit import neighbors
from idpgan.audit.cases import AuditCase, guarantees
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import EXACT, Statistic, likelihood_ratio
from idpgan.privacy import Guarantee, Noise, Relation, Unit
from idpgan.privacy.mechanisms import Grid
from idpgan.privacy.sums import CellSums, Law
from idpgan.synthesis.aggregate.config import AggregateConfig, AggregateRun, sums_of
from idpgan.synthesis.aggregate.evolved import Voting, vote_events, voting_of
from idpgan.synthesis.evolution.audit import differing_counts
from idpgan.synthesis.evolution.votes import STEPS
from idpgan.synthesis.sums_audit import differing_totals, sums_case, taught_case
from idpgan.synthesis.teacher import Teaching, teaching_beside
from idpgan.synthesis.terms import AggregatePrivacy

_CELLS, _DIMENSIONS = 10, 64  # of the release that stands for all


def released_sums(method: AggregateConfig, privacy: AggregatePrivacy, facts: RunFacts) -> CellSums:
    """Return the mechanism of the sums that a run has released; raise an `InputError` if there are none yet."""
    cells, dimensions = facts.prepared_shape("sums")
    return sums_of(method, privacy, cells, dimensions)


def _build(request: Request) -> AuditCase:
    unit, relation = request.unit or Unit.IMAGE, request.relation or Relation.ZERO_OUT
    sums = CellSums.calibrated(
        _CELLS,
        _DIMENSIONS,
        cast(Law, request.law),
        epsilon=request.epsilon,
        delta=request.delta or 0.0,
        unit=unit,
        relation=relation,
        most_per_unit=20 if unit is Unit.PERSON else 1,
    )
    return sums_case(sums, request, method="idp-gan-aggregate")


def _of_run(config: AggregateRun, facts: RunFacts) -> AuditCase:
    sums = released_sums(config.method, config.privacy, facts)
    request = Request(config.privacy.epsilon, config.privacy.delta)
    teacher, evolution = config.method.teacher_share, config.method.evolution_share
    teaching, voting = teaching_beside(teacher, sums, evolution), voting_of(config.method, config.privacy)
    if voting is None:
        return taught_case(sums, teaching, request, facts.claimed, method="idp-gan-aggregate")
    return sums_and_votes_case(sums, voting, teacher, request, facts.claimed, teaching)


class _Both(Statistic):
    """The log-likelihood ratio of two independent releases, whose numbers follow each other."""

    name = EXACT

    def __init__(self, first: Statistic, second: Statistic, num: int) -> None:
        self._first, self._second, self._num = first, second, num

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        return self._first(outputs[:, : self._num]) + self._second(outputs[:, self._num :])


def sums_and_votes_case(
    sums: CellSums,
    voting: Voting,
    teacher: float,
    request: Request,
    claimed: Guarantee | None = None,
    teaching: Teaching | None = None,
) -> AuditCase:
    """Return the case of a release of sums and of all votes beside it: the sum of both log-likelihood ratios.

    A teacher's steps are part of what is proven, and are left out of the game.

    Args:
        teacher: Share of the budget that they got.
        claimed: None = what was asked for.
    """
    votes = voting.votes(voting.multiplier_beside(sums, teacher), 2, 2)
    first, second = differing_totals(sums), differing_counts(votes, voting.steps)
    num, of_votes = len(first[0]), Grid(1.0 / STEPS)

    def release(exact: Tensor, noise: Noise) -> Tensor:
        totals, counts = exact[:, :num], exact[:, num:]
        noisy = sums.grid.value(sums.mechanism(totals, noise)), of_votes.value(votes.mechanism(counts, noise))
        return torch.cat(noisy, dim=1)

    def ratio(data: Tensor, neighbor: Tensor) -> Statistic:
        own = likelihood_ratio(sums.mechanism, sums.grid)(data[:num], neighbor[:num])
        return _Both(own, likelihood_ratio(votes.mechanism, of_votes)(data[num:], neighbor[num:]), num)

    taught = () if teaching is None else (teaching.event,)
    events = (sums.event, *taught, *vote_events(voting, sums, teacher))
    name = neighbors.ABSENT if sums.relation is Relation.ZERO_OUT else neighbors.OPPOSITE
    pair = Pair(name, *(torch.cat(side) for side in zip(first, second, strict=True)))
    asked, proven = guarantees(request, *events)
    notes = (
        *("the teacher's steps were left out: what sums and votes show holds for all" for _ in taught),
        f"{sums.num_cells} cells of {sums.dimensions} numbers and {voting.steps} votes; numbers that do not differ get "
        "independent noise and were not simulated",
    )
    return AuditCase(
        "idp-gan-aggregate",
        pair,
        claimed or asked,
        proven,
        release,
        (ratio,),
        entrywise=True,
        notes=notes,
        events=events,
    )


AUDIT = Entry(
    _build,
    (Unit.IMAGE, Unit.PERSON),
    (Relation.ZERO_OUT, Relation.REPLACE_ONE),
    delta=1e-5,
    options={"law": ("gaussian", "laplace")},
    pure=("laplace",),
    of_run=_of_run,
)
