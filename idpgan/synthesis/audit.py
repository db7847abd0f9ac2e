"""Audits of methods that release sums or votes, alone or beside steps of DP-SGD.

The guarantee of a release covers everything computed from it, and attacking the release is stronger than attacking a
generator. Releases are played on their worst neighbors: one bystander, and a target that is present, absent or changed.
Steps are played with canaries (`idpgan.audit.gradient_canaries`), whose network replaces the critic. Where several
things are released, the attacker adds their log-likelihood ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from idpgan.audit import neighbors
from idpgan.audit.cases import AuditCase, asked_of, released_case
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.audit.gradient_canaries import CanarySteps, canary_case
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import EXACT, Statistic, likelihood_ratio
from idpgan.classify.scattering_linear import ScatteringLinearConfig, canaries
from idpgan.privacy import Event, Guarantee, Noise, Relation, Unit
from idpgan.privacy.mechanisms import Grid
from idpgan.privacy.sums import CellSums, Law
from idpgan.synthesis.aggregate.config import AggregatePlan, AggregateRun, Voting, voting_of
from idpgan.synthesis.evolution.method import EvolutionPlan, EvolutionRun
from idpgan.synthesis.evolution.votes import STEPS, Votes, steps_of
from idpgan.synthesis.gaussian import GaussianPlan, GaussianRun
from idpgan.synthesis.moments import count_moments
from idpgan.synthesis.people import AggregatePrivacy
from idpgan.synthesis.teacher import Teaching

Play = Callable[[Tensor, Noise], Tensor]
_CELLS, _DIMENSIONS = 10, 64  # of a release that stands for all, where no run says which
_SHAPE, _LATENT = (1, 8, 8), 10  # of gaussian
_CANDIDATES, _ITERATIONS = 200, 8  # of evolution


def _asked(request: Request) -> AggregatePrivacy:
    """Return the request as a section [privacy], with a cap of 20 images of one person."""
    return AggregatePrivacy(
        epsilon=request.epsilon,
        delta=request.delta or 0.0,
        unit=cast(Any, request.unit or Unit.IMAGE),
        relation=request.relation or Relation.ZERO_OUT,
    )


# One release of sums of cells -----------------------------------------------------------------------------------------


def sums_case(
    sums: CellSums,
    request: Request,
    claimed: Guarantee | None = None,
    *,
    method: str,
    beside: tuple[Event, ...] = (),
) -> AuditCase:
    """Return the case of one release of cell sums; claim None = the request.

    The events ``beside`` are part of the proven guarantee, but not of the game.

    The target's vector is three times too long, so that the clip is tested too. Under replace-one it turns into its
    opposite (or, where no coordinate may be negative, into an orthogonal one in another cell).
    """
    grid, mechanism = sums.grid, sums.mechanism

    def release(totals: Tensor, noise: Noise) -> Tensor:
        return grid.value(mechanism(totals, noise))

    notes = (
        *("a template or a teacher's steps were left out: what the sums show holds for all" for _ in beside[:1]),
        f"{sums.num_cells} cells of {sums.dimensions} numbers; sums that do not differ get independent noise and were "
        "not simulated",
    )
    return released_case(
        method, request, (sums.event, *beside), _neighbors(sums), release, likelihood_ratio(mechanism, grid), claimed,
        entrywise=True, notes=notes,
    )  # fmt: skip


def _neighbors(sums: CellSums) -> Pair:
    axis = torch.zeros(sums.dimensions, dtype=torch.float64)
    axis[0] = 3.0
    if sums.relation is Relation.ZERO_OUT:
        name, absent = neighbors.ABSENT, None
    elif sums.nonnegative:
        name, absent = neighbors.MOVED, (axis, sums.num_cells - 1)
    else:
        name, absent = neighbors.OPPOSITE, (-axis, 0)
    return Pair(name, _totals(sums, absent), _totals(sums, (axis, 0)))


def _totals(sums: CellSums, target: tuple[Tensor, int] | None) -> Tensor:
    """Return the exact sums of a bystander and perhaps a target, in grid steps, int64 (num_cells, dimensions)."""
    person = sums.unit.of_images
    copies = sums.most_per_unit if person and target is not None else 1
    bystander = torch.full((1, sums.dimensions), 0.5 / sums.dimensions, dtype=torch.float64)
    vectors, cells, weights = bystander, torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    if target is not None:
        vector, cell = target
        vectors = torch.cat([vectors, vector.expand(copies, -1)])
        cells = torch.cat([cells, torch.full((copies,), cell)])
        weights = torch.cat([weights, torch.full((copies,), 1 / copies, dtype=torch.float64)])
    return sums._exact_sum(vectors, cells, weights if person else None).long()  # the release without its noise


def _differing(pair: Pair) -> tuple[Tensor, Tensor]:
    """Return the numbers that differ between neighbors, (n,) each."""
    differ = pair.data != pair.neighbor
    return pair.data[differ], pair.neighbor[differ]


def _with_sums(sums: CellSums, steps: CanarySteps, taught: CanarySteps | None = None) -> Play:
    """Return the game of steps together with a release of sums and, if given, a teacher's steps."""
    absent, present = _differing(_neighbors(sums))
    ratio = likelihood_ratio(sums.mechanism, sums.grid)(absent, present)

    def play(there: Tensor, noise: Noise) -> Tensor:
        played = steps.play(there, noise)
        totals = torch.where(there.cpu()[:, None], present, absent)  # (R, numbers that differ)
        played[:, 0] += ratio(sums.grid.value(sums.mechanism(totals, noise)))
        if taught is not None:
            played[:, 0] += taught.play(there, noise)[:, 0]
        return played

    return play


def taught_case(
    sums: CellSums,
    teaching: Teaching | None,
    request: Request,
    claimed: Guarantee | None = None,
    *,
    method: str,
    beside: tuple[Event, ...] = (),
) -> AuditCase:
    """Return the case of the sums and of the steps of a teacher: the sum of both log-likelihood ratios.

    The events ``beside`` are part of the proven guarantee, but not of the game.

    Without a teacher it is `sums_case`. For unit person the teacher's steps are left out of the game (their canaries
    are images), but not out of the proven guarantee: what the sums show holds for the whole release.
    """
    if teaching is None or sums.unit.of_images:
        beside = (*beside, *(() if teaching is None else (teaching.event,)))
        return sums_case(sums, request, claimed, method=method, beside=beside)
    steps = _teacher_steps(teaching)
    events = *beside, sums.event, teaching.event
    return canary_case(method, steps, request, claimed, events=events, play=_with_sums(sums, steps))


def _teacher_steps(teaching: Teaching) -> CanarySteps:
    """Return the settings that determine how much the steps of a teacher leak."""
    plan, count = teaching.plan(1), teaching.event.count
    section = ScatteringLinearConfig(clip_norm=plan.clip_norm)
    return canaries(section, plan.sample_rate, plan.noise_multiplier, count, "the teacher")


def _aggregate(request: Request) -> AuditCase:
    sums = CellSums.calibrated(_CELLS, _DIMENSIONS, cast(Law, request.law), **_asked(request).terms)
    return sums_case(sums, request, method="idp-gan-aggregate")


def _aggregate_run(config: AggregateRun, facts: RunFacts) -> AuditCase:
    plan, voting, request = (
        AggregatePlan(config, facts.shape),
        voting_of(config.method, config.privacy),
        asked_of(config),
    )
    plan.sums = plan.of_cells(*facts.prepared_shape("sums"))  # how many public features there are is not in the facts
    if voting is None:
        first = plan.template_events
        return taught_case(plan.sums, plan.teaching, request, facts.claimed, method="idp-gan-aggregate", beside=first)
    return sums_and_votes_case(plan.sums, voting, config.method.teacher_share, request, facts.claimed, plan.teaching)


def _gaussian(request: Request) -> AuditCase:
    sums = CellSums.calibrated(_CELLS, count_moments(_SHAPE, _LATENT), "gaussian", **_asked(request).terms)
    return sums_case(sums, request, method="gaussian")


def _gaussian_run(config: GaussianRun, facts: RunFacts) -> AuditCase:
    plan = GaussianPlan(config, facts.shape)
    request, first = asked_of(config), plan.template_events
    return taught_case(plan.sums, plan.teaching, request, facts.claimed, method="gaussian", beside=first)


# The votes that a record can change, in all iterations ----------------------------------------------------------------


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


class _Both(Statistic):
    """The log-likelihood ratio of two independent releases, whose numbers are concatenated."""

    name = EXACT

    def __init__(self, first: Statistic, second: Statistic, num: int) -> None:
        self._first, self._second, self._num = first, second, num

    def __call__(self, outputs: Tensor) -> Tensor:
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

    A teacher's steps are part of the proven guarantee, but not of the game.

    Args:
        teacher: The teacher's share of the budget.
        claimed: None = the request.
    """
    votes = voting.votes(voting.multiplier_beside(sums, teacher), 2, 2)
    first, second = _differing(_neighbors(sums)), _differing(_voting_neighbors(votes, voting.steps))
    num, of_votes = len(first[0]), Grid(1.0 / STEPS)

    def release(exact: Tensor, noise: Noise) -> Tensor:
        totals, counts = exact[:, :num], exact[:, num:]
        noisy = sums.grid.value(sums.mechanism(totals, noise)), of_votes.value(votes.mechanism(counts, noise))
        return torch.cat(noisy, dim=1)

    def ratio(data: Tensor, neighbor: Tensor) -> Statistic:
        own = likelihood_ratio(sums.mechanism, sums.grid)(data[:num], neighbor[:num])
        return _Both(own, likelihood_ratio(votes.mechanism, of_votes)(data[num:], neighbor[num:]), num)

    taught = () if teaching is None else (teaching.event,)
    name = neighbors.ABSENT if sums.relation is Relation.ZERO_OUT else neighbors.OPPOSITE
    pair = Pair(name, *(torch.cat(side) for side in zip(first, second, strict=True)))
    notes = (
        *("the teacher's steps were left out: what sums and votes show holds for all" for _ in taught),
        f"{sums.num_cells} cells of {sums.dimensions} numbers and {voting.steps} votes; numbers that do not differ get "
        "independent noise and were not simulated",
    )
    events = (sums.event, *taught, voting.event(voting.multiplier_beside(sums, teacher)))
    return released_case(
        "idp-gan-aggregate", request, events, pair, release, ratio, claimed, entrywise=True, notes=notes
    )


def _evolution(request: Request) -> AuditCase:
    votes = Votes.calibrated(_CELLS, _CANDIDATES, _ITERATIONS, **_asked(request).terms)
    return votes_case(votes, _ITERATIONS, request)


def _evolution_run(config: EvolutionRun, facts: RunFacts) -> AuditCase:
    return votes_case(EvolutionPlan(config, facts.shape).votes, config.training.steps, asked_of(config), facts.claimed)


# Sums and steps -------------------------------------------------------------------------------------------------------


def sums_and_steps_case(
    sums: CellSums,
    steps: CanarySteps,
    request: Request,
    claimed: Guarantee | None = None,
    teaching: Teaching | None = None,
    *,
    method: str = "hybrid",
    beside: tuple[Event, ...] = (),
) -> AuditCase:
    """Return the case of the release of sums, a teacher perhaps, and steps of DP-SGD: all log-likelihood ratios added.

    The steps are those of a run or of a plan; claim None = the request. The events ``beside`` (of a template) are part
    of the proven guarantee, but not of the game.
    """
    taught = None if teaching is None else _teacher_steps(teaching)
    events = (*beside, sums.event, *(() if teaching is None else (teaching.event,)), steps.event)
    return canary_case(method, steps, request, claimed, events=events, play=_with_sums(sums, steps, taught))


_UNITS, _BOTH = (Unit.IMAGE, Unit.PERSON, Unit.PHOTO), (Relation.ZERO_OUT, Relation.REPLACE_ONE)
AUDITS = {
    "idp-gan-aggregate": Entry(
        _aggregate,
        _UNITS,
        _BOTH,
        delta=1e-5,
        options={"law": ("gaussian", "laplace")},
        pure=("laplace",),
        of_run=_aggregate_run,
    ),
    "gaussian": Entry(_gaussian, _UNITS, _BOTH, delta=1e-5, of_run=_gaussian_run),
    "evolution": Entry(_evolution, _UNITS, _BOTH, delta=1e-5, of_run=_evolution_run),
}
