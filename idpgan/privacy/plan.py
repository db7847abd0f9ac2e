"""What a run, a publication or a stream will do and cost, known before it reads an image."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit, check_budget, number_to_json
from idpgan.privacy.noise import Source
from idpgan.privacy.totals import Part


@dataclass(frozen=True)
class Budget:
    """What may be spent: a target (epsilon, delta) with delta in [0, 1)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {"epsilon": number_to_json(self.epsilon), "delta": self.delta}


@dataclass(frozen=True)
class Price:
    """The charges on the ledger if everything is done that was planned.

    Attributes:
        unit: What the guarantee speaks of.
        relation: How neighbors differ.
        delta: Where epsilon is stated; 0 is pure.
        budget: What the ledger refuses to exceed; None = no limit.
        events: All charges, in order.
        exact: Whether `events` are the very ones; else they are an upper bound that public images refine.
        contained: Charges of the releases that are built on, outside the budget; see `idpgan.privacy.totals`.
    """

    unit: Unit
    relation: Relation
    delta: float = 0.0
    budget: Budget | None = None
    events: tuple[Event, ...] = ()
    exact: bool = True
    contained: tuple[Part, ...] = ()

    @functools.cached_property
    def epsilon(self) -> float:
        """What the events cost at `delta`; infinite where nothing is proven."""
        return compose_epsilon(self.events, self.delta)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "epsilon": number_to_json(self.epsilon),
            "delta": self.delta,
            "unit": str(self.unit),
            "relation": str(self.relation),
            "events": [event.to_json() for event in self.events],
            "target": self.budget.to_json() if self.budget else None,
        }


class Plan(Protocol):
    """What a run, a publication or a stream will do and cost; made of public numbers: no image, no machine, no file.

    A subclass holds the mechanisms with calibrated noise; each is calibrated once, when it is first asked for.
    """

    @property
    def price(self) -> Price:
        """What will be charged."""
        raise NotImplementedError

    def joint_events(self, events: Sequence[Event]) -> tuple[Event, ...]:
        """Return what a receiver learns of a record by: these charges, and those of releases that are contained."""
        return tuple(events)

    def report_of(self, events: Sequence[Event], proven: Guarantee, sources: Sequence[Source]) -> PrivacyReport:
        """Return the privacy report of what was charged; `verify` derives it again.

        Args:
            events: All charges.
            proven: The guarantee that they prove.
            sources: What the noise was drawn from, in the order of the method's parts.
        """
        raise NotImplementedError
