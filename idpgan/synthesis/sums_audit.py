"""The audit of a release of sums, with a teacher and with steps of DP-SGD where there are any.

The guarantee of a release covers everything computed from it, and attacking the release is stronger than attacking a
generator. It is played on its worst neighbors: one bystander, and a target that is present, absent or changed. Steps
are played with canaries (`idpgan.audit.gradient_canaries`), and the attacker adds all log-likelihood ratios.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from idpgan.audit import neighbors
from idpgan.audit.cases import AuditCase, released_case
from idpgan.audit.entry import Request
from idpgan.audit.gradient_canaries import CanarySteps, canary_case
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import likelihood_ratio
from idpgan.classify import scattering_linear
from idpgan.privacy import Guarantee, Noise, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.sums import SumsRelease
from idpgan.training.config import section_of

UNITS = (Unit.IMAGE, Unit.PERSON, Unit.PHOTO)  # of sums and of votes
RELATIONS = (Relation.ZERO_OUT, Relation.REPLACE_ONE)
CLASSES = 10  # where no run says how many


def terms_of(request: Request) -> dict[str, Any]:
    """Return what a request calibrates a release to, with a cap of 20 images of one person."""
    unit, relation = request.unit or Unit.IMAGE, request.relation or Relation.ZERO_OUT
    most = 20 if unit.of_images else 1
    return {"epsilon": request.epsilon, "delta": request.delta or 0.0, "unit": unit, "relation": relation} | {
        "most_per_unit": most
    }


def sums_case(
    method: str,
    sums: CellSums,
    request: Request,
    claimed: Guarantee | None = None,
    *,
    beside: SumsRelease | None = None,
    steps: CanarySteps | None = None,
) -> AuditCase:
    """Return the case of one release of cell sums, and of what is released beside it; claim None = the request.

    The target's vector is three times too long, so that the clip is tested too. Under replace-one it turns into its
    opposite (or, where no coordinate may be negative, into an orthogonal one in another cell). The rounds of a template
    are part of the proven guarantee, but not of the game; nor are a teacher's steps for a larger unit than image, whose
    canaries would be images: what the sums show holds for the whole release.
    """
    template, teacher = ((), None) if beside is None else (beside.template_events, beside.teacher)
    teacher_events = () if teacher is None else (teacher.event,)
    played = [] if steps is None else [steps]
    if teacher is not None and not sums.unit.of_images:
        plan, count = teacher.plan(1), teacher.event.count
        section = section_of(scattering_linear.Settings, "method")(clip_norm=plan.clip_norm)
        rate, noise_multiplier = plan.sample_rate, plan.noise_multiplier
        played.append(scattering_linear.canaries(section, rate, noise_multiplier, count, "the teacher"))
    pair, ratio = _neighbors(sums), likelihood_ratio(sums.mechanism, sums.grid)

    def release(totals: Tensor, noise: Noise) -> Tensor:
        return sums.grid.value(sums.mechanism(totals, noise))

    if not played:
        notes = (
            *("a template or a teacher's steps were left out: what the sums show holds for all",)
            * bool(template or teacher_events),
            f"{sums.num_cells} cells of {sums.dimensions} numbers; sums that do not differ get independent noise and "
            "were not simulated",
        )
        events = (sums.event, *template, *teacher_events)
        return released_case(method, request, events, pair, release, ratio, claimed, entrywise=True, notes=notes)

    differ = pair.data != pair.neighbor
    absent, present = pair.data[differ], pair.neighbor[differ]
    statistic = ratio(absent, present)

    def play(there: Tensor, noise: Noise) -> Tensor:
        first = played[0].play(there, noise)
        totals = torch.where(there.cpu()[:, None], present, absent)  # (R, numbers that differ)
        first[:, 0] += statistic(release(totals, noise))
        for other in played[1:]:
            first[:, 0] += other.play(there, noise)[:, 0]
        return first

    events = (*template, sums.event, *teacher_events, *(() if steps is None else (steps.event,)))
    return canary_case(method, played[0], request, claimed, events=events, play=play)


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
