"""Audit cases of the sound publishers, through their own code, on constructed neighbors: data-free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from torch import Tensor

from idpgan.audit.cases import CASES, IMAGE_SHAPE, AuditCase, guarantees
from idpgan.audit.entry import Entry, Request
from idpgan.audit.neighbors import PAIRS
from idpgan.audit.statistics import EXACT, Linear, Maker, Nearness, Outcomes, Statistic
from idpgan.privacy import DiscreteLaplace, Relation, Unit
from idpgan.publish.plan import Options, Plan, Shape
from idpgan.publish.sound.numbers import Law
from idpgan.publish.sound.pixels import calibrate_pixels

_LAWS = {"discrete-laplace": "laplace", "rounded-gaussian": "gaussian"}
_PURE = ("discrete-laplace", "laplace")
_SHAPE = (8, 6)
_UNITS = (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE)


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
    _UNITS,
    (Relation.REPLACE_ONE,),
    delta=1e-5,
    options={"pair": tuple(PAIRS), "law": (*_LAWS, "laplace")},
    pure=_PURE,
)


def _case(
    name: str,
    plan: Callable[[Shape, Unit, float, float, Any], Plan],
    options: Options,
    makers: tuple[Maker, ...],
    request: Request,
) -> AuditCase:
    """Return the case of a whole release, post-processing included, on a small image."""
    unit = request.unit or _UNITS[0]
    planned = plan(_SHAPE, unit, request.epsilon, request.delta or 0.0, options)
    claimed, proven = guarantees(request, *planned.events)
    pair = PAIRS[request.pair or "extremes"](_SHAPE, unit)
    notes = (f"an image of {_SHAPE[0]} x {_SHAPE[1]} pixels",)
    return AuditCase(name, pair, claimed, proven, planned.release, makers, notes=notes, events=planned.events)


def noisy_entry(
    name: str, plan: Callable[[Shape, Unit, float, float, Any], Plan], options: Callable[..., Options]
) -> Entry:
    """Return the entry of a publisher that adds noise to numbers; its options know a ``law``."""

    def build(request: Request) -> AuditCase:
        chosen = options(law=_LAWS[request.law or "discrete-laplace"])
        return _case(name, plan, chosen, (Linear, Nearness), request)

    known = {"pair": tuple(PAIRS), "law": tuple(_LAWS)}
    return Entry(build, _UNITS, (Relation.REPLACE_ONE,), delta=1e-5, options=known, pure=_PURE)


def outcome_entry(name: str, plan: Callable[[Shape, Unit, float, float, Any], Plan], options: Options) -> Entry:
    """Return the entry of a publisher of whole images whose outcomes are few."""

    def build(request: Request) -> AuditCase:
        return _case(name, plan, options, (Outcomes, Nearness), request)

    return Entry(build, (Unit.IMAGE,), (Relation.REPLACE_ONE,), options={"pair": tuple(PAIRS)})
