"""The audit of one release of sums of cells, alone or with a teacher beside it, for the methods that are made of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from idpgan.audit import neighbors
from idpgan.audit.cases import AuditCase, guarantees
from idpgan.audit.entry import Request
from idpgan.audit.gradient_canaries import canary_case
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import likelihood_ratio
from idpgan.classify.audit import ClassifierSteps, watched_linear
from idpgan.privacy import Event, Guarantee, Noise, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.teacher import Teaching


def sums_case(
    sums: CellSums,
    request: Request,
    claimed: Guarantee | None = None,
    *,
    method: str,
    beside: tuple[Event, ...] = (),
) -> AuditCase:
    """Return the case of one release of cell sums; None as claim = what was asked for.

    ``beside`` is released too and part of what is proven, but not played.

    One bystander; the target's vector is three times too long, so that the clip is tested too. Under replace-one it
    turns into its opposite (or, where no coordinate may be negative, into an orthogonal one in another cell).
    """
    grid, mechanism = sums.grid, sums.mechanism

    def release(totals: Tensor, noise: Noise) -> Tensor:
        return grid.value(mechanism(totals, noise))

    asked, proven = guarantees(request, sums.event, *beside)
    notes = (
        *("the teacher's steps were left out: what the sums show holds for both" for _ in beside[:1]),
        f"{sums.num_cells} cells of {sums.dimensions} numbers; sums that do not differ get independent noise and were "
        "not simulated",
    )
    return AuditCase(
        method, _neighbors(sums), claimed or asked, proven, release, (likelihood_ratio(mechanism, grid),),
        entrywise=True, notes=notes, events=(sums.event, *beside),
    )  # fmt: skip


def differing_totals(sums: CellSums) -> tuple[Tensor, Tensor]:
    """Return the sums that differ between the neighbors of `sums_case`, in grid steps, int64 (n,) each."""
    pair = _neighbors(sums)
    differ = pair.data != pair.neighbor
    return pair.data[differ], pair.neighbor[differ]


def played_ratio(sums: CellSums) -> Callable[[Tensor, Noise], Tensor]:
    """Return what plays the release: from who is there, bool (R,), to the log-likelihood ratio of each round, (R,)."""
    absent, present = differing_totals(sums)
    ratio = likelihood_ratio(sums.mechanism, sums.grid)(absent, present)

    def play(there: Tensor, noise: Noise) -> Tensor:
        totals = torch.where(there.cpu()[:, None], present, absent)  # (R, numbers that differ)
        return ratio(sums.grid.value(sums.mechanism(totals, noise)))

    return play


def _neighbors(sums: CellSums) -> Pair:
    axis = torch.zeros(sums.dimensions, dtype=torch.float64)
    axis[0] = 3.0
    if sums.relation is Relation.ZERO_OUT:
        name, absent, present = neighbors.ABSENT, None, (axis, 0)
    elif sums.nonnegative:
        name, absent, present = neighbors.MOVED, (axis, sums.num_cells - 1), (axis, 0)
    else:
        name, absent, present = neighbors.OPPOSITE, (-axis, 0), (axis, 0)
    return Pair(name, _totals(sums, absent), _totals(sums, present))


def _totals(sums: CellSums, target: tuple[Tensor, int] | None) -> Tensor:
    """Return the exact sums of a bystander and perhaps a target, in grid steps, int64 (num_cells, dimensions)."""
    person = sums.unit is Unit.PERSON
    copies = sums.most_per_unit if person and target is not None else 1
    bystander = torch.full((1, sums.dimensions), 0.5 / sums.dimensions, dtype=torch.float64)
    vectors, cells, weights = bystander, torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)
    if target is not None:
        vector, cell = target
        vectors = torch.cat([vectors, vector.expand(copies, -1)])
        cells = torch.cat([cells, torch.full((copies,), cell)])
        weights = torch.cat([weights, torch.full((copies,), 1 / copies, dtype=torch.float64)])
    return sums._exact_sum(vectors, cells, weights if person else None).long()  # all of the release but its noise


def taught_case(
    sums: CellSums, teaching: Teaching | None, request: Request, claimed: Guarantee | None = None, *, method: str
) -> AuditCase:
    """Return the case of the sums and of the steps of a teacher: the sum of both log-likelihood ratios.

    Without a teacher it is `sums_case`. For unit person the teacher's steps are left out of the game (a canary of
    theirs is an image), and not out of what is proven: what the sums show holds for all of the release.
    """
    if teaching is None:
        return sums_case(sums, request, claimed, method=method)
    if sums.unit is Unit.PERSON:
        return sums_case(sums, request, claimed, method=method, beside=(teaching.event,))
    steps, of_sums = teacher_steps(teaching), played_ratio(sums)

    def play(there: Tensor, noise: Noise) -> Tensor:
        played = steps.play(there, noise)
        played[:, 0] += of_sums(there, noise)
        return played

    return canary_case(method, steps, (sums.event, teaching.event), play, request, claimed)


def teacher_steps(teaching: Teaching) -> ClassifierSteps:
    """Return what decides how much the steps of a teacher tell."""
    plan, count = teaching.plan(1), teaching.event.count
    return ClassifierSteps(
        "the teacher", watched_linear, plan.sample_rate, plan.noise_multiplier, count, plan.clip_norm
    )
