"""The audit of idp-gan-aggregate: one release of sums of cells, with and without a record of the largest influence.

The generator is computed from that release, so a bound for the release holds for the generator too; attacking the
release is stronger than attacking the generator.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from idpgan.audit import neighbors
from idpgan.audit.cases import AuditCase, Entry, Request, guarantees
from idpgan.audit.neighbors import Pair
from idpgan.audit.run_facts import RunFacts
from idpgan.audit.statistics import likelihood_ratio
from idpgan.privacy import Guarantee, Noise, Relation, Unit
from idpgan.privacy.sums import CellSums, Law
from idpgan.synthesis.aggregate.config import AggregateConfig, AggregatePrivacy, Config, sums_of

_CELLS, _DIMENSIONS = 10, 64  # of the release that stands for all


def sums_case(
    sums: CellSums, request: Request, claimed: Guarantee | None = None, *, method: str = "idp-gan-aggregate"
) -> AuditCase:
    """Return the case of one release of cell sums; None as claim = what was asked for.

    One bystander; the target's vector is three times too long, so that the clip is tested too. Under replace-one it
    turns into its opposite (or, where no coordinate may be negative, into an orthogonal one in another cell).
    """
    grid, mechanism = sums.grid, sums.mechanism

    def release(totals: Tensor, noise: Noise) -> Tensor:
        return grid.value(mechanism(totals, noise))

    asked, proven = guarantees(request, sums.event)
    notes = (
        f"{sums.num_cells} cells of {sums.dimensions} numbers; sums that do not differ get independent noise and were "
        "not simulated",
    )
    return AuditCase(
        method, _neighbors(sums), claimed or asked, proven, release, (likelihood_ratio(mechanism, grid),),
        entrywise=True, notes=notes, events=(sums.event,),
    )  # fmt: skip


def differing_totals(sums: CellSums) -> tuple[Tensor, Tensor]:
    """Return the sums that differ between the neighbors of `sums_case`, in grid steps, int64 (n,) each."""
    pair = _neighbors(sums)
    differ = pair.data != pair.neighbor
    return pair.data[differ], pair.neighbor[differ]


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
    return sums_case(sums, request)


def _of_run(config: Config, facts: RunFacts) -> AuditCase:
    sums = released_sums(config.method, config.privacy, facts)
    return sums_case(sums, Request(config.privacy.epsilon, config.privacy.delta), facts.claimed)


AUDIT = Entry(
    _build,
    (Unit.IMAGE, Unit.PERSON),
    (Relation.ZERO_OUT, Relation.REPLACE_ONE),
    delta=1e-5,
    options={"law": ("gaussian", "laplace")},
    pure=("laplace",),
    of_run=_of_run,
)
