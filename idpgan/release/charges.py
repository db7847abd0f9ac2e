"""The charges that a release lists, compared with those that its settings plan."""

from __future__ import annotations

import math

from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.plan import Price
from idpgan.release.statement import Settings, Statement

_TOLERANCE = 1e-6  # same code and same settings: only the rounding of another machine is tolerated


def check_charges(settings: Settings, stated: Statement) -> list[str]:
    """Derive delta and charges from the settings."""
    price = settings.plan.price
    if stated.delta != price.delta:
        return [f"delta = {stated.delta:g}, but the settings state epsilon at {price.delta:g}."]
    if {(event.unit, event.relation) for event in stated.events} != {(stated.unit, stated.relation)}:
        return [f"the events are not all of unit {stated.unit}, {stated.relation}, or there is none."]
    if (price.unit, price.relation) != (stated.unit, stated.relation):
        return [f"the events are not those of the settings, which speak of unit {price.unit}, {price.relation}."]
    # A pixel may have a price of its own
    most = max(settings.num_pixels + settings.num_classes + 1, len(price.events))
    if len(stated.events) > most:
        return [f"{len(stated.events):,} charges are listed, and no run of these settings has more than {most:,}."]
    return _check_events(stated, price, settings.num_pixels)


def _check_events(stated: Statement, price: Price, num_pixels: int) -> list[str]:
    """Compare the charges with those that the settings plan."""
    listed, planned = stated.events, price.events
    if not price.exact:
        if compose_epsilon(listed, price.delta) > price.epsilon * (1 + _TOLERANCE):
            return ["the events cost more than the settings can."]
        if [event.kind for event in listed if event.pure_epsilon] != [e.kind for e in planned[1:] if e.pure_epsilon]:
            return ["the events are not those of the settings."]
        return _check_divided(listed, planned, num_pixels)
    if price.budget is None and _repeats(listed, planned):
        return []
    if len(listed) != len(planned) or not all(map(_alike, listed, planned)):
        wrong = next((pair for pair in zip(listed, planned, strict=False) if not _alike(*pair)), None)
        what = f": {_said(wrong[0])} stands for {_said(wrong[1])}" if wrong else f": {len(planned)} are planned"
        return [f"the events are not those of the settings{what}."]
    if any(event.count != plan.count for event, plan in zip(listed[:-1], planned[:-1], strict=True)):
        return ["an event that happens once or a planned number of times has another count."]
    return _check_steps(stated, price)


def _check_divided(listed: tuple[Event, ...], planned: tuple[Event, ...], num_pixels: int) -> list[str]:
    """Check charges that public images divide among the pixels: their number, and the least that they add up to."""
    private = [event for event in listed if event.is_private]
    number = sum(event.count for event in private)
    expected = [(e, e.count * (num_pixels if e.kind == "exponential" else 1)) for e in planned if e.is_private]
    if number != sum(count for _, count in expected):
        return ["the events are not as many as the settings plan."]
    least = math.fsum(event.pure * event.count for event, _ in expected)
    if math.fsum(event.pure * event.count for event in private) < least * (1 - _TOLERANCE):
        return ["the events cost less than the settings can."]
    return []


def _repeats(listed: tuple[Event, ...], planned: tuple[Event, ...]) -> bool:
    """Whether a run without a target charged all that was planned and some of it again: it resumed with fresh noise."""

    def charged(events: tuple[Event, ...], plan: Event) -> int:
        return sum(event.count for event in events if _alike(event, plan))

    return all(any(_alike(event, plan) for plan in planned) for event in listed) and all(
        charged(listed, plan) >= charged(planned, plan) for plan in planned
    )


def _check_steps(stated: Statement, price: Price) -> list[str]:
    """Check the count of the last event: fewer only where the target ended the run, more only within the target.

    The count is higher if a run was resumed and its repeated steps were charged again. A run that an earlier and less
    tight accountant ended states the higher price, so the next step is priced higher in the same ratio.
    """
    listed, planned, target = stated.events, price.events[-1].count, price.budget
    *others, last = listed
    if last.count == planned or (last.count > planned and not last.is_private):
        return []
    if target is None:
        return [f"{last.count:,} x {last.kind} are listed, and {planned:,} are planned."]
    epsilon = target.epsilon * (1 + _TOLERANCE)
    if compose_epsilon(listed, target.delta) > epsilon:
        return [f"{last.count:,} x {last.kind} exceed the target epsilon = {target.epsilon:g}."]
    higher = max(stated.report.proven.epsilon - compose_epsilon(listed, price.delta), 0)
    more = [*others, last.repeated(last.count + 1)]
    if last.count < planned and compose_epsilon(more, target.delta) + higher <= epsilon:
        return [f"{last.count:,} x {last.kind} are listed, {planned:,} are planned, and the target allows more."]
    return []


def _alike(event: Event, plan: Event) -> bool:
    """Whether two events are the same read but for their count and the rounding of another machine."""
    first, second = event.to_json(), plan.to_json()
    if event.grid is None:  # of an earlier version, in floating point: of the same price, and the reason says so
        second.pop("grid", None)
    for name in ("noise_multiplier", "pure_epsilon"):
        if math.isclose(first.get(name, -1.0), second.get(name, 0.0), rel_tol=_TOLERANCE):
            first[name] = second.get(name, 0.0)
    return {**first, "count": 1} == {**second, "count": 1}


def _said(event: Event) -> str:
    numbers = (event.noise_multiplier, event.pure_epsilon, event.sample_rate)
    return " ".join([event.kind, *(f"{number:.6g}" for number in numbers if number is not None)])
