"""Events: noisy reads of private data. accounting.py computes what they cost."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Self

from idpgan.errors import InputError
from idpgan.privacy.guarantee import EXACT, FLOATING_POINT, Relation, Unit, parse_relation, parse_unit

# The fields that a kind must have beside unit, relation and count. Any other field is unknown and refused.
_REQUIRED: dict[str, frozenset[str]] = {
    "laplace": frozenset({"noise_multiplier"}),
    "gaussian": frozenset({"noise_multiplier"}),
    "poisson-gaussian": frozenset({"noise_multiplier", "sample_rate"}),
    "discrete-laplace": frozenset({"noise_multiplier", "sensitivity"}),
    "randomized-response": frozenset({"pure_epsilon", "categories"}),
    "exponential": frozenset({"pure_epsilon"}),
    "pure": frozenset({"pure_epsilon"}),
    "approximate": frozenset({"pure_epsilon", "delta"}),
    "non-private": frozenset({"reason"}),
}
KINDS = tuple(_REQUIRED)
_COMMON = ("kind", "unit", "relation", "count")
_OPTIONAL: dict[str, frozenset[str]] = {"poisson-gaussian": frozenset({"grid"})}  # fields that a kind may have
LARGEST = sys.float_info.max
MOST = 1 << 62  # largest count of anything: what our sources of noise can draw, and far beyond any use


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclasses.dataclass(frozen=True)
class Event:
    """``count`` equal, independent noisy reads of private data.

    An event knows nothing of the data: its sensitivity is a declared constant, already divided out of the noise
    multiplier.

    Attributes:
        kind: One of `KINDS`.
        noise_multiplier: Noise scale / sensitivity (no unit), > 0. The scale is the parameter b of Laplace noise
            (L1 sensitivity) or the standard deviation of Gaussian noise (L2 sensitivity).
        count: Number of such reads, >= 1.
        sample_rate: Poisson inclusion probability q in (0, 1], "poisson-gaussian" only.
        sensitivity: L1 sensitivity in whole grid steps, "discrete-laplace" only (its privacy loss depends on it).
        pure_epsilon: Pure epsilon of one read, "randomized-response", "exponential" and "pure" (any mechanism of which
            nothing else is known) only; of "approximate" the epsilon beside its delta.
        delta: In (0, 1), "approximate" only: of one read, any mechanism of which nothing but (epsilon, delta) is known.
        categories: Number of answers k >= 2, "randomized-response" only.
        reason: Why nothing can be proven, "non-private" only.
        grid: Step of the public grid on which answer and noise lie, exactly, as a share of the sensitivity, a power of
            two; "poisson-gaussian" only. None: they are floating-point numbers. It does not change the price.

    Raises:
        InputError: If a field that the kind needs is missing, one it does not know is given, or one is out of range.
    """

    kind: str
    unit: Unit
    relation: Relation
    noise_multiplier: float | None = None
    count: int = 1
    sample_rate: float | None = None
    sensitivity: int | None = None
    pure_epsilon: float | None = None
    delta: float | None = None
    categories: int | None = None
    reason: str | None = None
    grid: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in _REQUIRED:
            raise InputError(f"unknown event kind {self.kind!r}; known: {', '.join(KINDS)}. It is never guessed.")
        if not (isinstance(self.unit, Unit) and isinstance(self.relation, Relation)):
            raise InputError(f"an event needs a Unit and a Relation, got {self.unit!r}, {self.relation!r}.")
        given = {
            f.name for f in dataclasses.fields(self) if f.name not in _COMMON and getattr(self, f.name) is not None
        }
        if given - _OPTIONAL.get(self.kind, frozenset()) != _REQUIRED[self.kind]:
            raise InputError(f"a {self.kind} event has {sorted(_REQUIRED[self.kind])}, got {sorted(given)}.")
        for name in ("noise_multiplier", "pure_epsilon"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value <= LARGEST):
                raise InputError(f"{name} = {value!r} of a {self.kind} event must be a number, positive and finite.")
        if self.sample_rate is not None and not (_is_number(self.sample_rate) and 0 < self.sample_rate <= 1):
            raise InputError(f"sample_rate = {self.sample_rate!r} must be a number in (0, 1].")
        if self.grid is not None and not (
            type(self.grid) is float and 0 < self.grid <= 1 and math.frexp(self.grid)[0] == 0.5
        ):
            raise InputError(f"grid = {self.grid!r} must be a power of two in (0, 1].")
        if self.delta is not None and not (_is_number(self.delta) and 0 < self.delta < 1):
            raise InputError(f"delta = {self.delta!r} of a read must be a number in (0, 1).")
        for name, least in (("count", 1), ("sensitivity", 1), ("categories", 2)):
            value = getattr(self, name)
            if (value is not None or name == "count") and not (type(value) is int and least <= value <= MOST):
                raise InputError(
                    f"{name} = {value!r} of a {self.kind} event must be a whole number in {least} .. 2^62."
                )
        if self.reason is not None and not isinstance(self.reason, str):
            raise InputError(f"reason = {self.reason!r} of a {self.kind} event must be a text.")
        if self.kind == "poisson-gaussian" and self.relation is not Relation.ZERO_OUT:
            raise InputError("Poisson sampling is accounted under zero-out-one only; see docs/reference/pitfalls.md.")
        if self.kind == "randomized-response" and self.relation is not Relation.REPLACE_ONE:
            raise InputError("randomized response is accounted under replace-one only: an absent record has no answer.")

    @classmethod
    def non_private(cls, reason: str, unit: Unit = Unit.IMAGE, relation: Relation = Relation.REPLACE_ONE) -> Event:
        """Return an unprotected read, whose epsilon is infinite for the stated reason."""
        return cls("non-private", unit, relation, reason=reason)

    @property
    def is_private(self) -> bool:
        """Whether anything is proven about the read."""
        return self.kind != "non-private"

    @property
    def single(self) -> Event:
        """The same event with count 1."""
        return self.repeated(1)

    def repeated(self, count: int) -> Event:
        """Return the same event with another count."""
        return dataclasses.replace(self, count=count)

    @property
    def pure(self) -> float:
        """Pure epsilon of one read; infinite where the mechanism has none (Gaussian noise, a delta, no noise)."""
        if self.pure_epsilon is not None and self.delta is None:
            return self.pure_epsilon
        if self.kind in ("laplace", "discrete-laplace") and self.noise_multiplier is not None:
            return 1 / self.noise_multiplier
        return math.inf

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, JSON-able."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild from `to_json`; an unknown key, kind, unit or relation raises `InputError` and is never guessed."""
        if not isinstance(data, Mapping):
            raise InputError(f"not an event of this package: {type(data).__name__}.")
        unknown = set(data) - {f.name for f in dataclasses.fields(cls)}
        if unknown or not {"kind", "unit", "relation"} <= set(data):
            raise InputError(f"not an event of this package: keys {sorted(data)}.")
        return cls(**{**data, "unit": parse_unit(data["unit"]), "relation": parse_relation(data["relation"])})


def rounding_words(events: Iterable[Event]) -> str:
    """Return a report's clause on rounding in steps of DP-SGD; their events name the grid where there is one."""
    steps = [event for event in events if event.kind == "poisson-gaussian"]
    return EXACT if all(event.grid is not None for event in steps) else FLOATING_POINT
