"""Audit case of gaussian: its release of moments, on constructed neighbors, without any data."""

from __future__ import annotations

import dataclasses

from idpgan.audit.cases import AuditCase, Entry, Request
from idpgan.data.load import DataShape
from idpgan.privacy import Guarantee, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.audits import aggregate_case
from idpgan.synthesis.gaussian.config import Config
from idpgan.synthesis.gaussian.moments import count_moments

_SHAPE, _LATENT, _CLASSES = (1, 8, 8), 10, 10  # of the release that stands for all
_CAP = 20  # images of a person


def moments_case(sums: CellSums, request: Request, claimed: Guarantee | None = None) -> AuditCase:
    """Return the case of one release of moments: that of the same sums of other vectors of norm at most 1."""
    return dataclasses.replace(aggregate_case(sums, request, claimed), method="gaussian")


def case_of(config: Config, shape: DataShape, claimed: Guarantee | None) -> AuditCase:
    """Return the case of a run."""
    request = Request(config.privacy.epsilon, config.privacy.delta)
    return moments_case(config.moment_sums(shape), request, claimed)


def _case(request: Request) -> AuditCase:
    """Return the case of a small release."""
    unit = request.unit or Unit.IMAGE
    sums = CellSums.calibrated(
        _CLASSES,
        count_moments(_SHAPE, _LATENT),
        "gaussian",
        epsilon=request.epsilon,
        delta=request.delta or 0.0,
        unit=unit,
        relation=request.relation or Relation.ZERO_OUT,
        most_per_unit=_CAP if unit is Unit.PERSON else 1,
    )
    return moments_case(sums, request)


CASES: dict[str, Entry] = {
    "gaussian": Entry(
        _case, (Unit.IMAGE, Unit.PERSON), (Relation.ZERO_OUT, Relation.REPLACE_ONE), delta=1e-5, options={}
    )
}
