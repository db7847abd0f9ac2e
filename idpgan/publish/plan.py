"""What a publisher is: its options, a recipe made before an image is read, and its audit; and the plan of a release."""

from __future__ import annotations

import functools
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
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit, check_delta
from idpgan.privacy.noise import SYSTEM, Noise, Source
from idpgan.privacy.plan import Budget, Plan, Price

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
class Recipe:
    """What a publisher does with images of one channel and one shape, fixed by public numbers alone.

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


Planner = Callable[[Shape, Unit, float, float, Any], Recipe]


@dataclass(frozen=True)
class Publisher:
    """All of a publisher but its row of ``idpgan methods``, which `idpgan.methods` holds.

    Attributes:
        options: Class of its options, all with defaults.
        plan: Makes the recipe from the image shape (m, n), the unit, epsilon, delta and the options, without reading an
            image; raises `InputError` where none keeps to them.
        audit: The case of ``idpgan audit``.
    """

    options: type[Options]
    plan: Planner
    audit: Entry


def as_published(
    name: str, algorithm: Algorithm, claim: str, notes: Callable[[Tensor], tuple[str, ...]] = no_notes
) -> Planner:
    """Return what plans an algorithm of a paper that proves nothing: it is charged as an unprotected read."""

    def plan(shape: Shape, unit: Unit, epsilon: float, delta: float, options: Options) -> Recipe:
        if delta > 0:
            raise InputError(f"delta = {delta}: '{name}' claims pure privacy; leave delta out.")
        options.check(shape)
        event = Event.non_private(METHODS[name].reason, unit, Relation.REPLACE_ONE)
        return Recipe((event,), lambda images, noise: algorithm(images, epsilon, options, noise), claim, notes)

    return plan


def method_info(name: str) -> MethodInfo:
    """Return the row of a publisher.

    Raises:
        InputError: If there is none of that name; the message names the nearest one.
    """
    known = methods_of("publisher")
    if name not in known:
        raise InputError(f"'{name}' is not a known publisher. {nearest_hint(name, known)}")
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


@dataclass(frozen=True)
class PublicationPlan(Plan):
    """What a publication will do and cost, known before an image is read.

    Attributes:
        method: Name in `METHODS`.
        recipe: What is released, and the charges.
        epsilon: Asked for, or claimed by the method.
        delta: Where it is stated.
        options: Of the method, defaults filled in.
    """

    method: str
    recipe: Recipe
    epsilon: float
    delta: float
    options: Options

    @functools.cached_property
    def price(self) -> Price:
        """What is charged; a method that proves nothing has no budget to keep to."""
        events, budget = self.recipe.events, Budget(self.epsilon, self.delta) if METHODS[self.method].sound else None
        return Price(events[0].unit, events[0].relation, self.delta, budget, events)

    def says(self, events: Sequence[Event], proven: Guarantee, sources: Sequence[Source]) -> PrivacyReport:
        """Return what is said of the privacy of charges that prove an epsilon, for noise of a source."""
        pair, reason, private = (self.price.unit, self.price.relation), METHODS[self.method].reason, sources[0].private
        claimed = Guarantee(self.epsilon, self.delta, *pair, self.recipe.claim)
        if not proven.finite:
            nothing = Guarantee(proven.epsilon, self.delta, *pair, "nothing is proven")
            return PrivacyReport(claimed, nothing, None, reason, False, _PUBLIC)
        basis = f"accountant, {self.recipe.law}"
        said = reason if private else f"{reason}; the noise is of a FIXED SEED, so it can be subtracted"
        return PrivacyReport(claimed, Guarantee(proven.epsilon, self.delta, *pair, basis), None, said, private, _PUBLIC)

    def report(self, source: Source = SYSTEM) -> PrivacyReport:
        """Return what is said of a release whose noise is of a source."""
        proven = Guarantee(self.price.epsilon, self.delta, self.price.unit, self.price.relation, "the plan")
        return self.says(self.price.events, proven, (source,))


def plan_release(
    method: str, shape: Sequence[int], unit: Unit, epsilon: float, delta: float, options: Options
) -> PublicationPlan:
    """Return the plan for images of a shape: (m, n), or (3, m, n) whose channels are released one by one.

    A unit of a color image is the same pixel, column or image of all its channels: the releases of its C channels
    compose, so every charge stands C times. Each channel gets noise of its own and an equal share of the budget.
    """
    publisher, (*channels, height, width) = load_publisher(method), shape
    share = (1 - 2.0**-39) / channels[0] if channels else 1  # what the accountant may round up
    recipe = publisher.plan((height, width), unit, epsilon * share, delta * share, options)
    if not channels:
        return PublicationPlan(method, recipe, epsilon, delta, options)

    def release(images: Tensor, noise: Noise) -> Tensor:
        return recipe.release(images.flatten(0, 1), noise).unflatten(0, images.shape[:2])

    events = tuple(event.repeated(channels[0] * event.count) for event in recipe.events)
    whole = Recipe(events, release, recipe.claim, lambda images: recipe.notes(images.flatten(0, 1)))
    return PublicationPlan(method, whole, epsilon, delta, options)


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
) -> PublicationPlan:
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
    plan = plan_release(method, shape, Unit(chosen), epsilon, delta, checked_options(method, options or {}))
    if epsilon < plan.price.epsilon < math.inf:
        raise ArithmeticError(f"calibration ended at epsilon = {plan.price.epsilon}, above {epsilon}.")
    return plan
