"""The audit of hybrid: its release of sums and its critic steps, seen by one attacker."""

from __future__ import annotations

from torch import Tensor

from idpgan.audit.cases import AuditCase
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.data.load import known_shape
from idpgan.privacy import Guarantee, Noise, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.aggregate.audit import released_sums
from idpgan.synthesis.dp_gan.audit import Steps, canary_case, planned_steps, steps_of
from idpgan.synthesis.hybrid.method import HybridRun
from idpgan.synthesis.sums_audit import played_ratio, teacher_steps
from idpgan.synthesis.teacher import Teaching, teaching_beside

_SHARE = 0.1  # of epsilon for the release of sums, the default
_CELLS, _DIMENSIONS = 10, 64  # of that release


def sums_and_steps_case(
    sums: CellSums,
    steps: Steps,
    request: Request,
    claimed: Guarantee | None = None,
    teaching: Teaching | None = None,
) -> AuditCase:
    """Return the case of the release of sums, a teacher perhaps, and the critic steps: all log-likelihood ratios added.

    The steps are those of a run or of a plan; None as claim = what was asked for.
    """
    taught = None if teaching is None else teacher_steps(teaching)
    of_sums = played_ratio(sums)

    def play(there: Tensor, noise: Noise) -> Tensor:
        played = steps.play(there, noise)
        played[:, 0] += of_sums(there, noise)
        if taught is not None:
            played[:, 0] += taught.play(there, noise)[:, 0]
        return played

    events = (sums.event, *(() if teaching is None else (teaching.event,)), steps.event)
    return canary_case("hybrid", steps, events, play, request, claimed)


def _build(request: Request) -> AuditCase:
    sums = CellSums.calibrated(
        _CELLS, _DIMENSIONS, "gaussian", epsilon=_SHARE * request.epsilon, delta=request.delta or 0.0,
        unit=Unit.IMAGE, relation=Relation.ZERO_OUT,
    )  # fmt: skip
    return sums_and_steps_case(sums, planned_steps(request, (sums.event,)), request)


def _of_run(config: HybridRun, facts: RunFacts) -> AuditCase:
    first, second = config.aggregate_part(), config.dp_gan_part(known_shape(config.data))
    sums = released_sums(first.method, first.privacy, facts)
    request = Request(config.privacy.epsilon, config.privacy.delta)
    teaching = teaching_beside(first.method.teacher_share, sums)
    return sums_and_steps_case(sums, steps_of(second), request, facts.claimed, teaching)


AUDIT = Entry(_build, (Unit.IMAGE,), (Relation.ZERO_OUT,), delta=1e-5, of_run=_of_run)
