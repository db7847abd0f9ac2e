"""The audit of idp-gan-aggregate: one release of sums of cells, with and without a record of the largest influence.

The generator is computed from that release, so a bound for the release holds for the generator too; attacking the
release is stronger than attacking the generator.
"""

from __future__ import annotations

from typing import cast

from idpgan.audit.cases import AuditCase, Entry, Request
from idpgan.audit.run_facts import RunFacts
from idpgan.privacy import Relation, Unit
from idpgan.privacy.sums import CellSums, Law
from idpgan.synthesis.aggregate import INFO
from idpgan.synthesis.aggregate.config import AggregateConfig, AggregatePrivacy, Config, sums_of
from idpgan.synthesis.sums_audit import sums_case, taught_case
from idpgan.synthesis.teacher import teaching_beside

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
    return sums_case(sums, request, method=INFO.name)


def _of_run(config: Config, facts: RunFacts) -> AuditCase:
    sums = released_sums(config.method, config.privacy, facts)
    request = Request(config.privacy.epsilon, config.privacy.delta)
    teaching = teaching_beside(config.method.teacher_share, sums)
    return taught_case(sums, teaching, request, facts.claimed, method=INFO.name)


AUDIT = Entry(
    _build,
    (Unit.IMAGE, Unit.PERSON),
    (Relation.ZERO_OUT, Relation.REPLACE_ONE),
    delta=1e-5,
    options={"law": ("gaussian", "laplace")},
    pure=("laplace",),
    of_run=_of_run,
)
