"""The plan and the settings of a stream, which determine its charge and its report."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pydantic

from idpgan.config import Section, build
from idpgan.continual import fenwick
from idpgan.errors import InputError
from idpgan.files import printable
from idpgan.privacy import Budget, Event, Guarantee, PrivacyReport
from idpgan.privacy.noise import Source
from idpgan.privacy.plan import Plan, Price
from idpgan.release.answers import AnswersArtifact
from idpgan.release.artifact import Kind
from idpgan.release.statement import Settings, Statement

_LONGEST_NAME = 200


@dataclass(frozen=True)
class StreamPlan(Plan):
    """The plan of a stream, charged as a whole before its first value is read; ``epsilon`` is for one event."""

    epsilon: float

    @functools.cached_property
    def price(self) -> Price:
        """The one charge."""
        return Price(*fenwick.ADJACENCY, budget=Budget(self.epsilon, 0.0), events=(fenwick.pure_event(self.epsilon),))

    def report_of(self, events: Sequence[Event], proven: Guarantee, sources: Sequence[Source]) -> PrivacyReport:
        """Return the sentences about charges that prove an epsilon, for a noise source."""
        return self.report(proven.epsilon, sources[0].private)

    def report(self, proven: float, private: bool) -> PrivacyReport:
        """Return the report of a proven epsilon; ``private``: whether the noise came from the operating system."""
        source = "the operating system" if private else "a FIXED SEED, so it can be subtracted"
        basis = "continual release by the matrix mechanism, FDA"
        return PrivacyReport(
            claimed=Guarantee(self.epsilon, 0.0, *fenwick.ADJACENCY, basis),
            proven=Guarantee(proven, 0.0, *fenwick.ADJACENCY, "sum of discrete Laplace losses, in whole numbers"),
            audited=None,
            reason=f"weighted Fenwick tree with exact discrete Laplace noise from {source}",
            private=private,
            public_assumptions=(
                "number and times of the values",
                "an event adds at most 1 to one value of one series; k events of a person cost k epsilon",
            ),
        )


class StreamTable(Section):
    """The settings of a stream in config.json.

    Attributes:
        data: Name of the stream, for the card.
        epsilon: Price of the whole stream, for one event.
        horizon: Largest number of values; None = not known.
        integer: Whether values are whole counts.
    """

    data: str
    mechanism: Literal["fenwick"]
    epsilon: float = pydantic.Field(gt=0, le=1e6)
    horizon: int | None = pydantic.Field(ge=1, le=fenwick.MOST_STEPS)
    integer: bool

    @classmethod
    def from_release(cls, table: Any, described: Mapping[str, Any], statement: Statement) -> Settings:
        """Return the settings in a config.json; see `idpgan.release.artifact.Kind`."""
        stated = build(cls, table, "config.json")
        check_name(stated.data)
        return stated.settings(described["values"] * described["series"])

    def settings(self, values: int) -> Settings:
        """Return the settings of a stream; the total number of values of all series is public."""
        plan, table = StreamPlan(self.epsilon), self.model_dump()
        return Settings(self.data, "continual-counter", values, 0, 0, 1, table, plan, self.problems)

    def problems(self, described: Mapping[str, Any]) -> list[str]:
        """Return the contradictions between an artifact's description and the table, one sentence each."""
        problems = []
        if described["integer"] != self.integer:
            problems.append("the answers are not of the kind of values that the settings name.")
        if self.horizon is not None and described["values"] > self.horizon:
            problems.append(f"{described['values']:,} values were answered, beyond the horizon = {self.horizon:,}.")
        return problems


KINDS = {AnswersArtifact.kind: Kind(AnswersArtifact, StreamTable.from_release)}


def check_name(data: str) -> None:
    """Refuse a name of a stream that a card cannot show."""
    if not 0 < len(data) <= _LONGEST_NAME or not printable(data):
        raise InputError(f"data = {data[:80]!a} must be one printable line of at most {_LONGEST_NAME} signs.")
