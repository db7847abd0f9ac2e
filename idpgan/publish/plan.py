"""The parts of a publisher: options, a recipe that is made before an image is read, audit; the plan of a release.

An obfuscator is a publisher without a proof, which may be fitted before it releases; see `idpgan.publish.obfuscators`.

The meaning of ``--method best``: the publisher with the least error on drawn faces, by unit and epsilon.

The choice uses no private images, so it costs no privacy. The measure is the mean squared error of the clipped bytes,
at 112 x 92 and delta = 0; recognition of people is not measured.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pydantic

from idpgan.audit.entry import USUAL_RUNS, Entry, Request
from idpgan.audit.neighbors import PAIRS, Pair
from idpgan.audit.statistics import Maker
from idpgan.config import Section, build, nearest_hint
from idpgan.data.images import LONGEST_CLASS_NAME
from idpgan.errors import InputError
from idpgan.files import printable
from idpgan.methods import METHODS, MethodInfo, load, methods_of
from idpgan.privacy import Event, Guarantee, Noise, PrivacyReport, Relation, Unit, check_delta
from idpgan.privacy.noise import SYSTEM, Source
from idpgan.privacy.plan import Budget, Plan, Price
from idpgan.release.artifact import Kind
from idpgan.release.images import ImagesArtifact, ObfuscatedImages
from idpgan.release.mark import DigitalSource
from idpgan.release.statement import Settings, Statement

if TYPE_CHECKING:
    from torch import Tensor

    from idpgan.audit.cases import AuditCase


Shape = tuple[int, int]
Notes = Callable[["Tensor"], tuple[str, ...]]
Algorithm = Callable[["Tensor", float, Any, Noise], "Tensor"]  # maps images, epsilon and options to the release
LAWS = {"discrete-laplace": "laplace", "rounded-gaussian": "gaussian"}
PURE = ("discrete-laplace", "laplace")
_AUDITED = (8, 6)  # px of an image in audits: more rows than columns, so that the column space is a proper subspace
_NUMBER = "number, size and order of the images"
_PUBLIC = {"publisher": (_NUMBER, "pixel range [0, 1]"), "obfuscator": (_NUMBER, "method and options, but for a key")}


class Options(Section):
    """Options of a publisher: strict types, unknown keys refused. This base class has no options."""

    SECRET: ClassVar[frozenset[str]] = frozenset()  # options that must not appear in a release

    def check(self, shape: Shape) -> None:
        """Raise an `InputError` if images of this shape cannot be published with these options."""

    @property
    def together(self) -> int:
        """How many images are changed together at least; 1 = each by itself."""
        return 1

    def public(self) -> dict[str, Any]:
        """Return all options but the secret ones, as JSON values."""
        return self.model_dump(mode="json", exclude=set(self.SECRET))


@dataclass(frozen=True)
class Recipe:
    """The release of images of one channel and one shape, fixed by public numbers alone.

    Attributes:
        events: The charges. Every image is a separate record, so the batch costs as much as one image.
        release: Maps images (N, m, n) in [0, 1] and a source of noise to released ones, of the same shape, not
            clamped, float64 or the dtype of the images.
        claim: What the claimed epsilon rests on.
        notes: Maps the images to notes for the curator, one sentence each; private.
        whole: Whether `release` takes (N, 3, m, n) too, and changes the channels of a color image together.
    """

    events: tuple[Event, ...]
    release: Callable[[Tensor, Noise], Tensor]
    claim: str = "asked for"
    notes: Notes = lambda images: ()
    whole: bool = False

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
        audit: The case of ``idpgan audit``; None where nothing is claimed.
        source: What made the pictures, for the mark on them.
        obfuscator: The `Obfuscator` that changes the images, may be fitted and stays with the curator; None for noise.
    """

    options: type[Options]
    plan: Planner
    audit: Entry | None = None
    source: DigitalSource = DigitalSource.ENHANCED
    obfuscator: type[Any] | None = None


def as_published(
    name: str, algorithm: Algorithm, claim: str, notes: Notes = lambda images: (), *, whole: bool = False
) -> Planner:
    """Return the planner of an algorithm without a proof: it is charged as an unprotected read."""

    def plan(shape: Shape, unit: Unit, epsilon: float, delta: float, options: Options) -> Recipe:
        if delta > 0:
            raise InputError(f"delta = {delta}: '{name}' claims pure privacy; leave delta out.")
        options.check(shape)
        event = Event.non_private(METHODS[name].reason, unit, Relation.REPLACE_ONE)
        return Recipe((event,), lambda images, noise: algorithm(images, epsilon, options, noise), claim, notes, whole)

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
    from idpgan.audit.cases import AuditCase, guarantees

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
    known = methods_of("publisher", "obfuscator")
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


def check_together(method: str, num: int, options: Options) -> None:
    """Refuse fewer images than are changed together."""
    if num < options.together:
        raise InputError(
            f"'{method}' changes {options.together} images together, and here are {num}. Give more, or take fewer "
            "together."
        )


@dataclass(frozen=True)
class PublicationPlan(Plan):
    """The actions and the cost of a publication, known before an image is read.

    Attributes:
        method: Name in `METHODS`.
        recipe: What is released, and the charges.
        epsilon: The requested one, or the one that the method claims; None where it claims nothing.
        delta: The delta at which epsilon is stated.
        options: Options of the method, defaults filled in.
    """

    method: str
    recipe: Recipe
    epsilon: float | None
    delta: float
    options: Options

    @functools.cached_property
    def price(self) -> Price:
        """The charges; a method without a proof has no budget."""
        events, sound = self.recipe.events, METHODS[self.method].sound
        budget = Budget(self.epsilon, self.delta) if sound and self.epsilon is not None else None
        return Price(events[0].unit, events[0].relation, self.delta, budget, events)

    def report_of(self, events: Sequence[Event], proven: Guarantee, sources: Sequence[Source]) -> PrivacyReport:
        """Return the sentences about the privacy of charges that prove an epsilon, for a noise source."""
        row, pair, private = METHODS[self.method], (self.price.unit, self.price.relation), sources[0].private
        public, reason = _PUBLIC[row.family], row.reason
        claimed = None if self.epsilon is None else Guarantee(self.epsilon, self.delta, *pair, self.recipe.claim)
        if not proven.finite:
            nothing = Guarantee(proven.epsilon, self.delta, *pair, "nothing is proven")
            return PrivacyReport(claimed, nothing, None, reason, False, public)
        basis = f"accountant, {self.recipe.law}"
        sentence = reason if private else f"{reason}; the noise is of a FIXED SEED, so it can be subtracted"
        stated = Guarantee(proven.epsilon, self.delta, *pair, basis)
        return PrivacyReport(claimed, stated, None, sentence, private, public)

    def report(self, source: Source = SYSTEM) -> PrivacyReport:
        """Return the privacy report of a release with noise from a source."""
        proven = Guarantee(self.price.epsilon, self.delta, self.price.unit, self.price.relation, "the plan")
        return self.report_of(self.price.events, proven, (source,))


def plan_release(
    method: str, shape: Sequence[int], unit: Unit, epsilon: float | None, delta: float, options: Options
) -> PublicationPlan:
    """Return the plan for images of a shape: (m, n), or (3, m, n) whose channels are released one by one.

    A unit of a color image is the same pixel, column or image of all its channels: the releases of its C channels
    compose, so every charge is counted C times. Each channel gets its own noise and an equal share of the budget.
    """
    publisher, (*channels, height, width) = load_publisher(method), shape
    share = (1 - 2.0**-39) / channels[0] if channels else 1  # leaves room for the accountant's rounding
    channel_epsilon = math.inf if epsilon is None else epsilon * share
    recipe = publisher.plan((height, width), unit, channel_epsilon, delta * share, options)
    if not channels or recipe.whole:
        return PublicationPlan(method, recipe, epsilon, delta, options)

    def release(images: Tensor, noise: Noise) -> Tensor:
        return recipe.release(images.flatten(0, 1), noise).unflatten(0, images.shape[:2])

    events = tuple(event.repeated(channels[0] * event.count) for event in recipe.events)
    whole = Recipe(events, release, recipe.claim, lambda images: recipe.notes(images.flatten(0, 1)))
    return PublicationPlan(method, whole, epsilon, delta, options)


def offer(
    method: str,
    num: int,
    shape: tuple[int, ...],
    *,
    epsilon: float | None = None,
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
    if info.claimed is None and (epsilon is not None or delta):
        raise InputError(f"'{method}' promises nothing: leave epsilon and delta out.")
    if info.claimed is not None and (epsilon is None or not 0 < epsilon < math.inf):
        raise InputError(f"epsilon = {epsilon} must be positive and finite; small is strict, 1 is usual.")
    check_delta(delta, num, "delta")
    epsilon, delta = None if epsilon is None else float(epsilon), float(delta)  # as a file stores them
    chosen_options = checked_options(method, options or {})
    check_together(method, num, chosen_options)
    plan = plan_release(method, shape, Unit(chosen), epsilon, delta, chosen_options)
    if epsilon is not None and epsilon < plan.price.epsilon < math.inf:
        raise ArithmeticError(f"calibration ended at epsilon = {plan.price.epsilon}, above {epsilon}.")
    return plan


class PublicationTable(Section):
    """What config.json says of a release that holds one image for each private one; no image is public.

    Attributes:
        data: Name of the data, for the card.
        method: Name in `METHODS`.
        num: N, the number of images: public.
        shape: (m, n) of each image; (3, m, n) for color. Of an obfuscator (1, m, n) is grey too, as in 0.3.
        options: Of the method, its secrets never; one that is left out has its default.
        mark: Whether the pictures carry a mark; see `idpgan.release.mark`.
        epsilon: What was asked for, or what the method claims; None where it claims nothing.
        delta: Of the guarantee; None likewise.
        unit: What one neighbor changes; None likewise.
    """

    data: str = pydantic.Field(min_length=1, max_length=LONGEST_CLASS_NAME)
    method: str
    num: int = pydantic.Field(ge=1)
    shape: list[int] = pydantic.Field(min_length=2, max_length=3)
    options: dict[str, Any]
    mark: bool = True
    epsilon: float | None = pydantic.Field(None, gt=0)
    delta: float | None = pydantic.Field(None, ge=0, lt=1)
    unit: str | None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not printable(self.data):
            raise ValueError(f"data = {self.data!a} must be one printable line.")
        info = methods_of("publisher", "obfuscator").get(self.method)
        claims = info is not None and info.claimed is not None
        stated = [value is not None for value in (self.epsilon, self.delta, self.unit)]
        if info is None or stated != [claims] * 3 or (claims and self.unit not in info.units):
            raise ValueError(f"method = {self.method!a} with unit = {self.unit!a} is not a publisher.")
        if len(self.shape) == 3 and self.shape[0] not in ((3,) if claims else (1, 3)):
            raise ValueError(f"shape = {self.shape} must be [m, n], or [3, m, n] for color.")
        if min(self.shape) < 1 or not math.isfinite(self.epsilon or 0):
            raise ValueError(f"epsilon = {self.epsilon} must be finite, and shape = {self.shape} have pixels.")
        check_delta(self.delta or 0.0, self.num, "delta")
        if secret := load_publisher(self.method).options.SECRET & set(self.options):
            raise ValueError(f"options = {self.options!a} have {', '.join(secret)}, which a release never has.")
        return self

    @classmethod
    def from_release(cls, table: Any, described: Mapping[str, Any], statement: Statement) -> Settings:
        """Return the settings that a config.json holds; see `idpgan.release.artifact.Kind`."""
        stated = build(cls, table, "config.json")
        for problem in stated.problems(described):  # before a plan is made for a wrong shape
            raise InputError(problem)
        return stated.settings(stated.plan())

    def settings(self, plan: Plan) -> Settings:
        """Return the settings of a release that a plan made."""
        pixels, table = math.prod(self.shape), self.to_json()
        mark = load_publisher(self.method).source if self.mark else None
        return Settings(self.data, self.method, self.num, 0, 0, pixels, table, plan, self.problems, mark=mark)

    def plan(self) -> PublicationPlan:
        """Return the release, planned and calibrated again."""
        options, unit = checked_options(self.method, self.options), Unit(self.unit or Unit.IMAGE)
        return plan_release(self.method, self.shape, unit, self.epsilon, self.delta or 0.0, options)

    def problems(self, described: Mapping[str, Any]) -> list[str]:
        """Compare the number, color and size of the images with the settings."""
        *channels, height, width = self.shape
        if (described["num"], described["image_shape"]) != (self.num, [*(channels or [1]), height, width]):
            color = "color" if channels == [3] else "grey"
            return [f"the images are not {self.num:,} {color} ones of {height} x {width} pixels."]
        return []


KINDS = {each.kind: Kind(each, PublicationTable.from_release) for each in (ImagesArtifact, ObfuscatedImages)}


UNITS = ("pixel", "column", "image")
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
# made by python benchmarks/best_publisher.py
_BEST: Mapping[str, Sequence[str]] = {
    "pixel": ["eigenfaces", "pix", "pix", "pix", "pix", "lap-shrink", "lap", "lap"],
    "column": ["dct", "dct", "eigenfaces", "eigenfaces", "eigenfaces", "eigenfaces", "pix", "pix"],
    "image": ["pix", "eigenfaces", "eigenfaces", "eigenfaces", "codebook", "codebook", "eigenfaces", "eigenfaces"],
}


def best_method(unit: str, epsilon: float) -> str:
    """Return the name of the best sound publisher for a unit, at the table's epsilon that is nearest by ratio.

    Raises:
        InputError: If the unit is not in the table, or epsilon is not positive and finite.
    """
    if unit not in _BEST:
        raise InputError(f"unit = '{unit}' is not known to method 'best'; known: {', '.join(_BEST)}.")
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon = {epsilon} must be positive and finite; small is strict, 1 is usual.")
    nearest = min(range(len(EPSILONS)), key=lambda index: abs(math.log(epsilon / EPSILONS[index])))
    return _BEST[unit][nearest]
