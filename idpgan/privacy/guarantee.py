"""Guarantees: an epsilon always comes with its delta, unit and neighboring relation."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, Self

from idpgan.checks import fit, whole
from idpgan.errors import InputError

_LARGEST = 1e308  # that is read
LARGE = 100.0  # an epsilon above is said to protect next to nothing
_LOG = logging.getLogger(__name__)
_OPTIONAL = {"contained", "total"}  # keys of a report that only one with contained releases has

# Part of the reason of every report whose noise is continuous: the proofs are about real numbers. And where it is not.
FLOATING_POINT = "the noise is drawn and added in floating point, whose rounding the proof leaves out (Mironov 2012)"
EXACT = (
    "sums and noise of every step are whole numbers of a public grid, so that no rounding is left out; that kernels "
    "compute each record by itself is tested on processors, not on GPUs"
)


class Unit(StrEnum):
    """What is protected: neighbors differ in one of these."""

    IMAGE = "image"
    COLUMN = "column"
    PIXEL = "pixel"
    WINDOW = "window"
    LABEL = "label"
    EVENT = "event"
    PERSON = "person"  # all images of one identity, at most a public cap k of them
    PHOTO = "photo"  # all images that were cut out of one photo, at most a public cap k of them

    @property
    def of_images(self) -> bool:
        """Whether one unit is several images: those of a person, or those that were cut out of a photo."""
        return self in (Unit.PERSON, Unit.PHOTO)


class Relation(StrEnum):
    """How two neighboring data sets differ in that one unit."""

    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out-one"


def number_to_json(value: float) -> float | str:
    """Write infinity as the string "inf": JSON has no number for it."""
    return "inf" if value == math.inf else value


def number_from_json(value: float | str) -> float:
    """Inverse of `number_to_json`; raises on anything but a number or "inf"."""
    if value == "inf":
        return math.inf
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LARGEST:
        raise InputError(f"expected a number or 'inf', got {str(value)[:40]!a}.")
    return float(value)


def check_keys(data: Any, keys: Iterable[str], what: str, optional: Collection[str] = ()) -> None:
    """Refuse whatever is not a table of these keys; ``what`` names it in the message."""
    if not isinstance(data, Mapping):
        raise InputError(f"{what} is a table, got {type(data).__name__}.")
    for key in sorted(set(keys) ^ (set(data) - set(optional))):
        raise InputError(f"{'Unknown' if key in data else 'Missing'} key {key[:60]!a} of {what}.")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"expected a text, got {str(value)[:40]!a}.")
    return value


def check_budget(epsilon: float, delta: float) -> None:
    """Raise `InputError` unless epsilon is in (0, inf] and delta in [0, 1); warn where it protects next to nothing."""
    if not epsilon > 0:
        raise InputError(f"epsilon = {epsilon} must be above 0; small is strict, 1 is usual, infinity is not privacy.")
    if not 0 <= delta < 1:
        raise InputError(f"delta = {delta} must lie in [0, 1); below 1/N for N images, 0 for pure privacy.")

    if LARGE < epsilon < math.inf:
        _warn_once(epsilon)


@functools.cache
def _warn_once(epsilon: float) -> None:
    _LOG.warning(
        "epsilon = %.4g protects next to nothing: what is released may tell one neighbor from another almost surely. "
        "Small is strict, 1 is usual, 10 is much.",
        epsilon,
    )


def default_delta(num_images: int) -> float:
    """Return ``min(1e-5, 1 / (10 N))``; N is public.

    Raises:
        InputError: If N is no whole number from 1 on.
    """
    return min(1e-5, 1 / (10 * whole(num_images, "num_images", 1)))


def check_delta(delta: float, num_images: int, where: str = "privacy.delta") -> None:
    """Raise `InputError` for a delta >= 1/N: publishing one random image as it is would satisfy such a guarantee."""
    if not 0 <= fit(delta, float, where) < 1 / whole(num_images, "num_images", 1):
        raise InputError(
            f"{where} = {delta:g} must be at least 0 and below 1/N = {1 / num_images:g} for {num_images} images, "
            "because with delta >= 1/N publishing one random image as it is would already satisfy the guarantee. "
            f"Set it to {default_delta(num_images):.0e}."
        )


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """An (epsilon, delta) statement for one unit and one neighboring relation.

    Attributes:
        epsilon: In [0, inf]; infinite means that nothing can be promised, 0 that nothing was read.
        delta: In [0, 1); 0 is pure differential privacy.
        basis: One phrase that says where the number comes from ("PLD of 1 Laplace release", "paper, eq. 12").
    """

    epsilon: float
    delta: float
    unit: Unit
    relation: Relation
    basis: str

    def __post_init__(self) -> None:
        if not self.epsilon >= 0 or not 0 <= self.delta < 1:
            raise InputError(f"epsilon = {self.epsilon} must be at least 0 and delta = {self.delta} lie in [0, 1).")

    @property
    def finite(self) -> bool:
        """Whether anything is promised."""
        return math.isfinite(self.epsilon)

    def for_group(self, size: int, unit: Unit = Unit.PERSON) -> Guarantee:
        """Return the guarantee for up to ``size`` units at once, say one person's images.

        Group privacy: ``(k eps, delta (e^(k eps) - 1) / (e^eps - 1))`` (Vadhan 2017, Lemma 2.2). Epsilon is infinite
        where the group's delta reaches 1.

        Args:
            size: Public cap k on the units of one group, >= 1. The data must obey it.
            unit: The unit that the result speaks of.
        """
        if size < 1:
            raise InputError(f"a group has at least 1 member, got {size}.")
        epsilon, delta = size * self.epsilon, 0.0
        if self.epsilon == 0:  # the limit of the formula
            delta = min(size * self.delta, 1.0)
        elif self.delta > 0 and self.finite:
            # log(expm1(k eps) / expm1(eps)), written so that a large k eps does not overflow.
            growth = epsilon - self.epsilon + math.log1p(-math.exp(-epsilon)) - math.log1p(-math.exp(-self.epsilon))
            log_delta = math.log(self.delta) + growth
            delta = math.exp(log_delta) if log_delta < 0 else 1.0
        if delta >= 1:
            epsilon, delta = math.inf, 0.0
        return Guarantee(epsilon, delta, unit, self.relation, f"{self.basis}; group privacy for {size} x {self.unit}")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            **vars(self),
            "epsilon": number_to_json(self.epsilon),
            "unit": str(self.unit),
            "relation": str(self.relation),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild from `to_json`; raises `InputError` on a missing, unknown or malformed entry."""
        check_keys(data, [field.name for field in dataclasses.fields(cls)], "a guarantee")
        epsilon, delta = number_from_json(data["epsilon"]), number_from_json(data["delta"])
        return cls(epsilon, delta, parse_unit(data["unit"]), parse_relation(data["relation"]), _text(data["basis"]))

    def __str__(self) -> str:
        epsilon = f"{self.epsilon:.4g}" if self.finite else "infinite"
        delta = f", delta = {self.delta:.3g}" if self.delta else ""
        return f"epsilon = {epsilon}{delta} (unit {self.unit}, {self.relation})"


def parse_unit(text: str) -> Unit:
    """Return the `Unit` of that name; raises `InputError` with the known names."""
    if text not in list(Unit):
        raise InputError(f"unknown unit {text!r}; known: {', '.join(Unit)}.")
    return Unit(text)


def parse_relation(text: str) -> Relation:
    """Return the `Relation` of that name; raises `InputError` with the known names."""
    if text not in list(Relation):
        raise InputError(f"unknown relation {text!r}; known: {', '.join(Relation)}.")
    return Relation(text)


@dataclasses.dataclass(frozen=True)
class PrivacyReport:
    """What is claimed, proven and audited of a release, and what the numbers rest on.

    Attributes:
        claimed: What the method's paper states for the noise that was added; None where no paper claims anything.
        proven: What our accountant proves for what was really released; infinite where nothing is proven.
        audited: Empirical lower bound found by attack; None where none was measured.
        reason: One sentence: why ``proven`` is what it is, above all why it is infinite or differs from ``claimed``.
            Where the noise is continuous and ``proven`` finite it contains `FLOATING_POINT`.
        private: Whether the release may be called private: ``proven`` is finite and the noise was drawn from the
            operating system's entropy, not from a fixed seed.
        public_assumptions: What the guarantee takes as public, one phrase each.
        contained: What the releases that this one contains prove by themselves, each for its own unit and relation;
            those that read none of its records, by declaration, are left out.
        total: ``proven`` and ``contained`` together, of the same unit and relation as ``proven``; None where nothing is
            contained, and ``proven`` is the total.
    """

    claimed: Guarantee | None
    proven: Guarantee
    audited: Guarantee | None
    reason: str
    private: bool
    public_assumptions: tuple[str, ...] = ()
    contained: tuple[Guarantee, ...] = ()
    total: Guarantee | None = None

    def __post_init__(self) -> None:
        if self.proven is None:
            raise ValueError("proven is never None: where nothing is proven it is an infinite Guarantee with a reason.")
        if bool(self.contained) != (self.total is not None):
            raise ValueError("a total is of what is contained: give both or neither.")
        if self.private and not (self.proven.finite and (self.total is None or self.total.finite)):
            raise ValueError("a report with an infinite proven epsilon, or total, cannot be marked private.")

    def __str__(self) -> str:
        claimed, audited = self.claimed or "nothing", self.audited or "not measured"
        return f"claimed: {claimed}\nproven: {self.stated}\naudited: {audited}\n{self.reason}"

    @property
    def stated(self) -> str:
        """What is proven, in one line; where other releases are contained, of those and in total as well."""
        if self.total is None:
            return str(self.proven)
        contained = " and ".join(map(str, self.contained))
        return f"{self.proven}; contained in it: {contained}; in total: {self.total}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict; ``contained`` and ``total`` are keys of it where something is contained."""
        found = {key: value.to_json() if isinstance(value, Guarantee) else value for key, value in vars(self).items()}
        found["public_assumptions"] = list(self.public_assumptions)
        found["contained"] = [each.to_json() for each in self.contained]
        return {key: value for key, value in found.items() if key not in _OPTIONAL or self.contained}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild from `to_json`; raises `InputError` on a missing, unknown or malformed entry."""
        keys = {field.name for field in dataclasses.fields(cls)} - _OPTIONAL
        check_keys(data, keys, "a privacy report", _OPTIONAL)
        claimed, audited, total = (
            None if (entry := data.get(key)) is None else Guarantee.from_json(entry)
            for key in ("claimed", "audited", "total")
        )
        assumptions, contained = data["public_assumptions"], data.get("contained", [])
        if not (isinstance(assumptions, list) and isinstance(contained, list) and isinstance(data["private"], bool)):
            raise InputError("a privacy report says private = true or false, and lists what is public or contained.")
        return cls(
            claimed,
            Guarantee.from_json(data["proven"]),
            audited,
            _text(data["reason"]),
            data["private"],
            tuple(map(_text, assumptions)),
            tuple(map(Guarantee.from_json, contained)),
            total,
        )
