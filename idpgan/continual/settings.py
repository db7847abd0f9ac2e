"""The settings of a stream: its charge and its report follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import pydantic

from idpgan.config import Section, build
from idpgan.continual import fenwick
from idpgan.continual.fenwick import pure_event
from idpgan.errors import InputError
from idpgan.files import printable
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source

MECHANISM = "fenwick"
_LONGEST_NAME = 200


class _Table(Section):
    """The entry "settings" of config.json."""

    data: str
    mechanism: Literal["fenwick"]
    epsilon: float = pydantic.Field(gt=0, le=1e6)
    horizon: int | None = pydantic.Field(ge=1, le=fenwick.MOST_STEPS)
    integer: bool


@dataclass(frozen=True)
class StreamSettings:
    """The settings of a stream; see `idpgan.release.settings.Settings`.

    Attributes:
        data: Name of the stream, for the card.
        epsilon: Of the whole stream, for one event.
        horizon: Largest number of values; None = not known.
        integer: Whether values are whole counts.
        num_private: Number of values of all series so far: public.
    """

    data: str
    epsilon: float
    horizon: int | None
    integer: bool
    num_private: int

    num_public = 0
    num_classes = 0
    num_pixels = 1
    delta = 0.0
    plans_exactly = True
    method = "continual-counter"

    def __post_init__(self) -> None:
        if not 0 < len(self.data) <= _LONGEST_NAME or not printable(self.data):
            raise InputError(f"data = {self.data[:80]!a} must be one printable line of at most {_LONGEST_NAME} signs.")

    @classmethod
    def from_release(cls, table: Any, described: Mapping[str, Any], document: Mapping[str, Any]) -> Self:
        """Return what a config.json says; see `idpgan.release.artifact.Kind`."""
        said = build(_Table, table, "config.json")
        values = described["values"] * described["series"]
        return cls(said.data, said.epsilon, said.horizon, said.integer, values)

    def to_json(self) -> dict[str, Any]:
        """See `Settings`."""
        return {
            "data": self.data,
            "mechanism": MECHANISM,
            "epsilon": self.epsilon,
            "horizon": self.horizon,
            "integer": self.integer,
        }

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `Settings`."""
        return *fenwick.ADJACENCY, Budget(self.epsilon, 0.0)

    def planned_events(self) -> tuple[Event, ...]:
        """The one charge of the whole stream, before its first value is read."""
        return (pure_event(self.epsilon),)

    def report(self, events: Sequence[Event], proven: Guarantee, noise: Sequence[Source]) -> PrivacyReport:
        """See `Settings`."""
        return stream_report(self.epsilon, proven.epsilon, noise[0].private)

    def problems(self, described: Mapping[str, Any]) -> list[str]:
        """See `Settings`."""
        problems = []
        if described["integer"] != self.integer:
            problems.append("the answers are not of the kind of values that the settings name.")
        if self.horizon is not None and described["values"] > self.horizon:
            problems.append(f"{described['values']:,} values were answered, beyond the horizon = {self.horizon:,}.")
        return problems


def stream_report(epsilon: float, proven_epsilon: float, private: bool) -> PrivacyReport:
    """Return the report of a stream; ``private``: whether the noise came from the operating system."""
    unit, relation = fenwick.ADJACENCY
    source = "the operating system" if private else "a FIXED SEED, so it can be subtracted"
    return PrivacyReport(
        claimed=Guarantee(epsilon, 0.0, unit, relation, "continual release by the matrix mechanism, FDA"),
        proven=Guarantee(proven_epsilon, 0.0, unit, relation, "sum of discrete Laplace losses, in whole numbers"),
        audited=None,
        reason=f"weighted Fenwick tree with exact discrete Laplace noise from {source}",
        private=private,
        public_assumptions=(
            "number and times of the values",
            "an event adds at most 1 to one value of one series; k events of a person cost k epsilon",
        ),
    )
