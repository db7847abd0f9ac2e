"""Audit case of gaussian: its release of moments, on constructed neighbors, without any data."""

from __future__ import annotations

from idpgan.audit.cases import AuditCase
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.data.load import DataShape, Sizes
from idpgan.privacy import Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.gaussian.config import GaussianRun
from idpgan.synthesis.gaussian.moments import count_moments
from idpgan.synthesis.sums_audit import sums_case, taught_case
from idpgan.synthesis.teacher import teaching_beside

_SHAPE, _LATENT, _CLASSES = (1, 8, 8), 10, 10  # of the release that stands for all
_CAP = 20  # images of a person


def _of_run(config: GaussianRun, facts: RunFacts) -> AuditCase:
    classes = tuple(map(str, range(facts.num_classes)))
    shape = DataShape(Sizes(0, facts.num_private, 0, 0), facts.image_shape, classes)
    request = Request(config.privacy.epsilon, config.privacy.delta)
    sums = config.moment_sums(shape)
    teaching = teaching_beside(config.method.teacher_share, sums)
    return taught_case(sums, teaching, request, facts.claimed, method="gaussian")


def _case(request: Request) -> AuditCase:
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
    return sums_case(sums, request, method="gaussian")


AUDIT = Entry(_case, (Unit.IMAGE, Unit.PERSON), (Relation.ZERO_OUT, Relation.REPLACE_ONE), delta=1e-5, of_run=_of_run)
