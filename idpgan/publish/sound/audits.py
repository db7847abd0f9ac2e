"""Audit cases of the sound publishers, through their own code, on constructed neighbors: data-free."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from idpgan.audit.cases import CASES, IMAGE_SHAPE, AuditCase, Entry, Request, guarantees
from idpgan.audit.neighbors import PAIRS
from idpgan.audit.statistics import EXACT, Nearness, Statistic
from idpgan.privacy import DiscreteLaplace, Relation, Unit
from idpgan.publish.sound.pixels import Law, calibrate_pixels

_LAWS = {"discrete-laplace": "laplace", "rounded-gaussian": "gaussian"}


def lap_case(request: Request) -> AuditCase:
    """Return the case of ``lap`` on an image of ORL's size; law "laplace" is the continuous one of `audit.cases`."""
    if request.law == "laplace":
        return CASES["lap"].build(request)
    unit, delta = request.unit or Unit.PIXEL, request.delta or 0.0
    law = cast(Law, _LAWS[request.law or "discrete-laplace"])
    lap = calibrate_pixels(IMAGE_SHAPE, unit, law, epsilon=request.epsilon, delta=delta)

    def exact(data: Tensor, neighbor: Tensor) -> Statistic:
        laplace = isinstance(lap.mechanism, DiscreteLaplace)
        statistic = Nearness(data, neighbor, order=1 if laplace else 2, unit=lap.scale if laplace else 2 * lap.scale**2)
        statistic.name = EXACT
        return statistic

    pair = PAIRS[request.pair or "extremes"](IMAGE_SHAPE, unit)
    claimed, proven = guarantees(request, lap.event)
    notes = ("pixels that do not differ are independent of everything and were not simulated",)
    return AuditCase("lap", pair, claimed, proven, lap, (exact,), entrywise=True, notes=notes, events=(lap.event,))


LAP = Entry(
    lap_case,
    (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE),
    (Relation.REPLACE_ONE,),
    delta=1e-5,
    options={"pair": tuple(PAIRS), "law": ("discrete-laplace", "rounded-gaussian", "laplace")},
    pure=("discrete-laplace", "laplace"),
)
