"""The parts of a publisher (options, a recipe made before an image is read, audit), and the plan of a release."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pydantic
from torch import Tensor

from idpgan.audit.cases import USUAL_RUNS, AuditCase, guarantees
from idpgan.audit.entry import Entry, Request
from idpgan.audit.neighbors import PAIRS, Pair
from idpgan.audit.statistics import Maker
from idpgan.checks import typed
from idpgan.config import Section, build, nearest_hint
from idpgan.errors import InputError
from idpgan.methods import METHODS, MethodInfo, load, methods_of
from idpgan.privacy import Event, Guarantee, Noise, PrivacyReport, Relation, Unit, check_delta
from idpgan.privacy.noise import SYSTEM, Source
from idpgan.privacy.plan import Budget, Plan, Price
from idpgan.release.mark import DigitalSource
from idpgan.release.settings import ImagesTable

Shape = tuple[int, int]
Notes = Callable[[Tensor], tuple[str, ...]]
Algorithm = Callable[[Tensor, float, Any, Noise], Tensor]  # maps images, epsilon and options to the release
LAWS = {"discrete-laplace": "laplace", "rounded-gaussian": "gaussian"}
PURE = ("discrete-laplace", "laplace")
_AUDITED = (8, 6)  # px of an image in audits: more rows than columns, so that the column space is a proper subspace
_PUBLIC = ("number, size and order of the images", "pixel range [0, 1]")


class Options(Section):
    """Options of a publisher: strict types, unknown keys refused. This base class has no options."""

    model_config = pydantic.ConfigDict(strict=True)

    def check(self, shape: Shape) -> None:
        """Raise an `InputError` if images of this shape cannot be published with these options."""


@dataclass(frozen=True)
class Recipe:
    """The release of images of one channel and one shape, fixed by public numbers alone.

    Attributes:
        events: The charges. Every image is a separate record, so the batch costs as much as one image.
        release: Maps images (N, m, n) in [0, 1] and a source of noise to released ones, of the same shape, not
            clamped, float64 or the dtype of the images.
        claim: What the claimed epsilon rests on.
        notes: Maps the images to notes for the curator, one sentence each; private.
    """

    events: tuple[Event, ...]
    release: Callable[[Tensor, Noise], Tensor]
    claim: str = "asked for"
    notes: Notes = lambda images: ()

    @property
    def law(self) -> str:
        """The treatment of the released numbers: the kinds of the events, in words."""
        return " and ".join(f"{e.count} x {e.kind}" if e.count > 1 else e.kind for e in self.events)


Planner = Callable[[Shape, Unit, float, float, Any], Recipe]


@dataclass(frozen=True)
class Publisher:
    """A publisher without its row of ``idpgan methods``, which `idpgan.methods` holds.

    Attributes:
        options: Class of its options, all with defaults.
        plan: Makes the recipe from the image shape (m, n), the unit, epsilon, delta and the options, without reading an
            image; raises `InputError` if no recipe meets them.
        audit: The case of ``idpgan audit``.
        source: What made the pictures, for the mark on them.
    """

    options: type[Options]
    plan: Planner
    audit: Entry
    source: DigitalSource = DigitalSource.ENHANCED


def as_published(name: str, algorithm: Algorithm, claim: str, notes: Notes = lambda images: ()) -> Planner:
    """Return the planner of a published algorithm without a proof: it is charged as an unprotected read."""

    def plan(shape: Shape, unit: Unit, epsilon: float, delta: float, options: Options) -> Recipe:
        if delta > 0:
            raise InputError(f"delta = {delta}: '{name}' claims pure privacy; leave delta out.")
        options.check(shape)
        event = Event.non_private(METHODS[name].reason, unit, Relation.REPLACE_ONE)
        return Recipe((event,), lambda images, noise: algorithm(images, epsilon, options, noise), claim, notes)

    return plan


def case_of(
    name: str,
    plan: Recipe,
    pair: Pair,
    makers: Sequence[Maker],
    request: Request,
    *notes: str,
    runs: int = USUAL_RUNS,
) -> AuditCase:
    """Return the case of a whole planned release, post-processing included; an unprotected read has no proof."""
    claimed, proven = guarantees(request, *plan.events)
    events = plan.events
    if not events[0].is_private:
        adjacency, events = (claimed.unit, claimed.relation), ()
        claimed = Guarantee(request.epsilon, 0.0, *adjacency, plan.claim)
        proven = Guarantee(float("inf"), 0.0, *adjacency, "nothing is proven")
    return AuditCase(name, pair, claimed, proven, plan.release, tuple(makers), notes=notes, events=events, runs=runs)


def publisher_entry(
    name: str,
    planner: Planner,
    options: Options,
    *makers: Maker,
    units: tuple[Unit, ...],
    pair: str = "extremes",
    shape: Shape = _AUDITED,
) -> Entry:
    """Return the entry of a publisher, attacked by the statistics that ``makers`` make.

    Args:
        options: Options of the publisher; if they have a ``law``, a request chooses it.
        units: Possible units, the default first.
        pair: Default neighbors.
        shape: Shape of the audited image.
    """
    noisy = "law" in type(options).model_fields
    fewer = ", ".join(f"{key} = {value}" for key, value in options.model_dump(exclude_defaults=True).items())

    def build(request: Request) -> AuditCase:
        unit, law = request.unit or units[0], LAWS[request.law or "discrete-laplace"]
        chosen = options.model_copy(update={"law": law}) if noisy else options
        delta = (request.delta or 0.0) if METHODS[name].sound else 0.0
        notes = [f"an image of {shape[0]} x {shape[1]} pixels"]
        if fewer:
            notes.append(f"{fewer} instead of the default: what is attacked, rank and column space, is the same")
        plan = planner(shape, unit, request.epsilon, delta, chosen)
        return case_of(name, plan, PAIRS[request.pair or pair](shape, unit), makers, request, *notes)

    known = {"pair": (pair, *(other for other in PAIRS if other != pair))}
    if not noisy:
        return Entry(build, units, (Relation.REPLACE_ONE,), options=known)
    return Entry(build, units, (Relation.REPLACE_ONE,), delta=1e-5, options={**known, "law": tuple(LAWS)}, pure=PURE)


def method_info(name: str) -> MethodInfo:
    """Return the row of a publisher.

    Raises:
        InputError: If no publisher has that name; the message names the nearest one.
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
    """The actions and the cost of a publication, known before an image is read.

    Attributes:
        method: Name in `METHODS`.
        recipe: What is released, and the charges.
        epsilon: The requested one, or the one that the method claims.
        delta: The delta at which epsilon is stated.
        options: Options of the method, defaults filled in.
    """

    method: str
    recipe: Recipe
    epsilon: float
    delta: float
    options: Options

    @functools.cached_property
    def price(self) -> Price:
        """The charges; a method without a proof has no budget."""
        events, budget = self.recipe.events, Budget(self.epsilon, self.delta) if METHODS[self.method].sound else None
        return Price(events[0].unit, events[0].relation, self.delta, budget, events)

    def report_of(self, events: Sequence[Event], proven: Guarantee, sources: Sequence[Source]) -> PrivacyReport:
        """Return the sentences about the privacy of charges that prove an epsilon, for a noise source."""
        pair, reason, private = (self.price.unit, self.price.relation), METHODS[self.method].reason, sources[0].private
        claimed = Guarantee(self.epsilon, self.delta, *pair, self.recipe.claim)
        if not proven.finite:
            nothing = Guarantee(proven.epsilon, self.delta, *pair, "nothing is proven")
            return PrivacyReport(claimed, nothing, None, reason, False, _PUBLIC)
        basis = f"accountant, {self.recipe.law}"
        said = reason if private else f"{reason}; the noise is of a FIXED SEED, so it can be subtracted"
        return PrivacyReport(claimed, Guarantee(proven.epsilon, self.delta, *pair, basis), None, said, private, _PUBLIC)

    def report(self, source: Source = SYSTEM) -> PrivacyReport:
        """Return the privacy report of a release with noise from a source."""
        proven = Guarantee(self.price.epsilon, self.delta, self.price.unit, self.price.relation, "the plan")
        return self.report_of(self.price.events, proven, (source,))


def plan_release(
    method: str, shape: Sequence[int], unit: Unit, epsilon: float, delta: float, options: Options
) -> PublicationPlan:
    """Return the plan for images of a shape: (m, n), or (3, m, n) whose channels are released one by one.

    A unit of a color image is the same pixel, column or image of all its channels: the releases of its C channels
    compose, so every charge is counted C times. Each channel gets its own noise and an equal share of the budget.
    """
    publisher, (*channels, height, width) = load_publisher(method), shape
    share = (1 - 2.0**-39) / channels[0] if channels else 1  # leaves room for the accountant's rounding
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
    epsilon, delta = float(epsilon), float(delta)  # as a file stores them
    plan = plan_release(method, shape, Unit(chosen), epsilon, delta, checked_options(method, options or {}))
    if epsilon < plan.price.epsilon < math.inf:
        raise ArithmeticError(f"calibration ended at epsilon = {plan.price.epsilon}, above {epsilon}.")
    return plan


class PublicationTable(ImagesTable):
    """The settings of a release of published images; ``method`` is a name in `METHODS`.

    Attributes:
        epsilon: What was asked for, or what the method claims.
        delta: Of the guarantee.
        unit: What one neighbor changes.
        shape: (m, n) of each image; (3, m, n) for color.
        options: Of the method; one that is left out has its default.
    """

    epsilon: float = pydantic.Field(gt=0)
    delta: float = pydantic.Field(ge=0, lt=1)
    unit: str

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        info = methods_of("publisher").get(self.method)
        if info is None or self.unit not in info.units:
            raise ValueError(f"method = {self.method!a} with unit = {self.unit!a} is not a publisher.")
        if len(self.shape) == 3 and self.shape[0] != 3:
            raise ValueError(f"shape = {self.shape} must be [m, n], or [3, m, n] for color.")
        if not math.isfinite(self.epsilon) or min(self.shape) < 1:
            raise ValueError(f"epsilon = {self.epsilon:g} must be finite, and shape = {self.shape} have pixels.")
        check_delta(self.delta, self.num, "delta")
        return self

    def source(self) -> DigitalSource:
        """Return what made the pictures."""
        return load_publisher(self.method).source

    def plan(self) -> PublicationPlan:
        """Return the release, planned and calibrated again."""
        options = checked_options(self.method, self.options)
        return plan_release(self.method, self.shape, Unit(self.unit), self.epsilon, self.delta, options)

    def problems(self, described: Mapping[str, Any]) -> list[str]:
        """Compare the number, color and size of the images with the settings."""
        *channels, height, width = self.shape
        if (described["num"], described["image_shape"]) != (self.num, [*(channels or [1]), height, width]):
            return [
                f"the images are not {self.num:,} {'color' if channels else 'grey'} ones of {height} x {width} pixels."
            ]
        return []
