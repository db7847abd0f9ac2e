"""What a publisher is: its options, a plan made before an image is read, and its audit; and the price of a release."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pydantic
from torch import Tensor

from idpgan.audit.entry import Entry
from idpgan.checks import typed
from idpgan.config import Section, build, nearest_hint
from idpgan.errors import InputError
from idpgan.methods import METHODS, MethodInfo, load, methods_of
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit, check_delta
from idpgan.privacy.noise import Noise

Shape = tuple[int, int]
Algorithm = Callable[[Tensor, float, Any, Noise], Tensor]  # images, epsilon and options to what is released
_PUBLIC = ("number, size and order of the images", "pixel range [0, 1]")


class Options(Section):
    """Options of a publisher: strict types, unknown keys refused. This one has none."""

    model_config = pydantic.ConfigDict(strict=True)

    def check(self, shape: Shape) -> None:
        """Raise an `InputError` if images of this shape cannot be published with these options."""


def no_notes(images: Tensor) -> tuple[str, ...]:
    """Return no notes."""
    return ()


@dataclass(frozen=True)
class Plan:
    """One release of any number of images, fixed by public numbers alone.

    Attributes:
        events: What it costs. Every image is a record of its own, so the batch costs what one image costs.
        release: Maps images (N, m, n) in [0, 1] and a source of noise to released ones, of the same shape, not
            clamped, float64 or the dtype of the images.
        claim: What the claimed epsilon rests on.
        notes: Maps the images to what a curator has to know of them, one sentence each; not to be given away.
    """

    events: tuple[Event, ...]
    release: Callable[[Tensor, Noise], Tensor]
    claim: str = "asked for"
    notes: Callable[[Tensor], tuple[str, ...]] = no_notes

    @property
    def law(self) -> str:
        """What happens to the numbers that are released: the kinds of the events, in words."""
        return " and ".join(f"{e.count} x {e.kind}" if e.count > 1 else e.kind for e in self.events)


Planner = Callable[[Shape, Unit, float, float, Any], Plan]


@dataclass(frozen=True)
class Publisher:
    """All of a publisher but its row of ``idpgan methods``, which `idpgan.methods` holds.

    Attributes:
        options: Class of its options, all with defaults.
        plan: Makes the plan from the image shape (m, n), the unit, epsilon, delta and the options; raises `InputError`
            where no plan keeps to them. It reads no image.
        audit: The case of ``idpgan audit``.
    """

    options: type[Options]
    plan: Planner
    audit: Entry


def as_published(
    name: str, algorithm: Algorithm, claim: str, notes: Callable[[Tensor], tuple[str, ...]] = no_notes
) -> Planner:
    """Return what plans an algorithm of a paper that proves nothing: it is charged as an unprotected read."""

    def plan(shape: Shape, unit: Unit, epsilon: float, delta: float, options: Options) -> Plan:
        if delta > 0:
            raise InputError(f"delta = {delta}: '{name}' claims pure privacy; leave delta out.")
        options.check(shape)
        event = Event.non_private(METHODS[name].reason, unit, Relation.REPLACE_ONE)
        return Plan((event,), lambda images, noise: algorithm(images, epsilon, options, noise), claim, notes)

    return plan


def method_info(name: str) -> MethodInfo:
    """Return the row of a publisher.

    Raises:
        InputError: If there is none of that name; the message names the nearest one.
    """
    known = methods_of("publisher")
    if name not in known:
        raise InputError(f"'{name}' is no known publisher. {nearest_hint(name, known)}")
    return known[name]


def load_publisher(name: str) -> Publisher:
    """Return a publisher; see `method_info`."""
    publisher: Publisher = load(method_info(name).name)[name]
    return publisher


def checked_options(method: str, options: Mapping[str, Any]) -> Options:
    """Return the options of a method, defaults filled in.

    Raises:
        InputError: If one is unknown or out of range.
    """
    return build(load_publisher(method).options, options, f"the options of '{method}'")


def plan_release(method: str, shape: Sequence[int], unit: Unit, epsilon: float, delta: float, options: Options) -> Plan:
    """Return the plan for images of a shape: (m, n), or (3, m, n) whose channels are released one by one.

    A unit of a color image is the same pixel, column or image of all its channels: the releases of its C channels
    compose, so every charge stands C times. Each channel gets noise of its own and an equal share of the budget.
    """
    publisher, (*channels, height, width) = load_publisher(method), shape
    if not channels:
        return publisher.plan((height, width), unit, epsilon, delta, options)
    share = (1 - 2.0**-39) / channels[0]  # what the accountant may round up
    plan = publisher.plan((height, width), unit, epsilon * share, delta * share, options)

    def release(images: Tensor, noise: Noise) -> Tensor:
        return plan.release(images.flatten(0, 1), noise).unflatten(0, images.shape[:2])

    events = tuple(event.repeated(channels[0] * event.count) for event in plan.events)
    return Plan(events, release, plan.claim, lambda images: plan.notes(images.flatten(0, 1)))


@dataclass(frozen=True)
class Offer:
    """A release before an image is read: all that is public of it.

    Attributes:
        method: Name in `METHODS`.
        plan: What is released, and the charges.
        epsilon: Asked for, or claimed by the method.
        delta: Where it is stated.
        proven: What the charges cost at ``delta``, by the accountant; infinite where nothing is proven.
        options: Of the method, defaults filled in.
    """

    method: str
    plan: Plan
    epsilon: float
    delta: float
    proven: float
    options: Options

    def report(self, private: bool = True) -> PrivacyReport:
        """Return what is said of the release's privacy; ``private``: the noise is the operating system's."""
        terms, reason = (self.plan.events[0].unit, self.plan.events[0].relation), method_info(self.method).reason
        claimed = Guarantee(self.epsilon, self.delta, *terms, self.plan.claim)
        if math.isinf(self.proven):
            proven = Guarantee(self.proven, self.delta, *terms, "nothing is proven")
            return PrivacyReport(claimed, proven, None, reason, False, _PUBLIC)
        proven = Guarantee(self.proven, self.delta, *terms, f"accountant, {self.plan.law}")
        said = reason if private else f"{reason}; the noise is of a FIXED SEED, so it can be subtracted"
        return PrivacyReport(claimed, proven, None, said, private, _PUBLIC)


@typed
def offer(
    method: str,
    num: int,
    shape: tuple[int, ...],
    *,
    epsilon: float,
    delta: float = 0.0,
    unit: Unit | str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Offer:
    """Price a release of ``num`` images of a shape, (m, n) or (3, m, n), and refuse what `release` refuses.

    Raises:
        InputError: If method, unit, epsilon, delta or an option cannot be used.
    """
    info = method_info(method)
    chosen = info.units[0] if unit is None else str(unit)
    if chosen not in info.units:
        raise InputError(f"unit = '{chosen}' is not known to '{method}'; known: {', '.join(info.units)}.")
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon = {epsilon} must be positive and finite; small is strict, 1 is usual.")
    check_delta(delta, num, "delta")
    epsilon, delta = float(epsilon), float(delta)  # as they stand in a file
    settings = checked_options(method, options or {})
    plan = plan_release(method, shape, Unit(chosen), epsilon, delta, settings)
    proven = compose_epsilon(plan.events, delta)
    if math.isfinite(proven) and proven > epsilon:
        raise ArithmeticError(f"calibration ended at epsilon = {proven}, above {epsilon}.")
    return Offer(method, plan, epsilon, delta, proven, settings)
