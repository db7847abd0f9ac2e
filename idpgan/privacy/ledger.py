"""The one place where privacy is spent: charged durably before the read, refused beyond the target."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from idpgan.errors import InputError
from idpgan.privacy.accounting import affordable, compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import (
    Guarantee,
    Relation,
    Unit,
    check_budget,
    number_from_json,
    number_to_json,
    parse_relation,
    parse_unit,
)
from idpgan.run import write_text_atomic

_FORMAT = "idpgan ledger 1"


class BudgetError(InputError):
    """A charge that would exceed the target, or that does not belong in this ledger."""


@dataclass(frozen=True)
class Budget:
    """What may be spent: a target (epsilon, delta) with delta in [0, 1)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)


class Ledger:
    """All private reads of one data set, for one unit and one relation, in order, run-length encoded.

    `charge` comes before the read that it pays for. With a ``path`` the charge is on the disk (written, synced,
    renamed) when `charge` returns: whatever fails afterwards, a charge may stand for a read that never happened, but
    no read goes unpaid. Reads without a proof (`Event.non_private`) make epsilon infinite once and for all, so only
    the first of a row is synced; `flush` writes their count.
    """

    def __init__(
        self,
        unit: Unit,
        relation: Relation,
        target: Budget | None = None,
        path: Path | None = None,
        owner: str = "",
    ) -> None:
        """Open an empty ledger.

        Args:
            unit: The unit that every event must speak of.
            relation: The relation that every event must speak of.
            target: Budget that `charge` refuses to exceed; None = keep the books only.
            path: Where the ledger is kept on disk; None = in memory.
            owner: Hash of the run's configuration; `open` refuses a ledger of another owner.
        """
        self.unit, self.relation, self.target, self.path, self.owner = unit, relation, target, path, owner
        self._entries: list[Event] = []  # run-length: neighbours differ
        self._replay: list[Event] = []  # charges that stand already, to be met again after a resume, next one last
        self._allowance: tuple[Event, int] | None = None  # last priced event and how often it is still affordable

    # Reading the books -----------------------------------------------------------------------------------------

    @property
    def events(self) -> tuple[Event, ...]:
        """Every charge that stands, in order; neighbours that are equal are one event with a count."""
        return tuple(self._entries)

    @property
    def position(self) -> int:
        """Number of charges met so far: those that stand, less those that a resumed run has yet to meet again."""
        return sum(event.count for event in self._entries) - sum(event.count for event in self._replay)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon at ``delta`` of every charge that stands; infinite where nothing is proven.

        Takes up to a second for tens of thousands of steps: call it at ticks, not per step.
        """
        return compose_epsilon(self._entries, delta)

    def proven(self, delta: float) -> Guarantee:
        """Return the proven guarantee at ``delta``; where it is infinite, delta is 0: no delta makes it finite."""
        epsilon = self.epsilon(delta)
        reads = sum(event.count for event in self._entries)
        kinds = ", ".join(sorted({event.kind for event in self._entries})) or "nothing"
        basis = f"privacy loss accounting of {reads} charge{'s' if reads != 1 else ''} ({kinds})"
        return Guarantee(epsilon, delta if math.isfinite(epsilon) else 0.0, self.unit, self.relation, basis)

    def affordable(self, event: Event) -> int:
        """Return how often ``event`` can still be charged. Without a target: 2^40. Bisection once, then O(1)."""
        self._check(event)
        if self.target is None:
            return 1 << 40
        if self._allowance is None or self._allowance[0] != event.single:
            count = affordable(self._entries, event.single, self.target.epsilon, self.target.delta)
            self._allowance = (event.single, count)
        return self._allowance[1] + sum(event.count for event in self._replay)  # those are paid already

    # Spending --------------------------------------------------------------------------------------------------

    def charge(self, event: Event) -> None:
        """Charge ``event`` before the read that it pays for.

        Raises:
            BudgetError: If the event is of another unit or relation, the target would be exceeded, or a resumed run
                charges something else than the interrupted one did. Nothing is charged then.
        """
        self._check(event)
        if self._replay:
            self._meet_again(event)
            return
        if self.target is not None and event.count > self.affordable(event):
            spent = self.epsilon(self.target.delta)
            raise BudgetError(
                f"{event.count} x {event.kind} would exceed the target epsilon = {self.target.epsilon:g} at delta = "
                f"{self.target.delta:g} ({spent:.4g} is spent, unit {self.unit}, {self.relation}). Nothing was read. "
                "Raise the target, add noise, or stop here."
            )
        synced_already = not event.is_private and bool(self._entries) and self._entries[-1].single == event.single
        self._append(event)
        if self._allowance is not None:
            single, count = self._allowance
            self._allowance = (single, count - event.count) if single == event.single else None
        if not synced_already:
            self.flush()

    def flush(self) -> None:
        """Write the ledger to its path, durably; no-op in memory."""
        if self.path is not None:
            write_text_atomic(self.path, json.dumps(self.to_json(), indent=1) + "\n")

    def rewind(self, position: int) -> None:
        """Go back to an earlier `position` of the same run: its later charges stand, and are met again unpaid.

        For the resumed run that repeats, bit for bit, the steps after its last saved state: the same read with the
        same noise is one release. The caller vouches for that by comparing the hashes of config, data and code.

        Raises:
            BudgetError: If the position lies beyond the ledger: the state is not of this ledger.
        """
        ahead = sum(event.count for event in self._entries) - position
        if position < 0 or ahead < 0:
            raise BudgetError(
                f"the saved state stands at charge {position}, but the ledger holds {position + ahead}: "
                "they are not of one run. Restore both from the same place, or start a new run."
            )
        self._replay = []
        for event in reversed(self._entries):
            if ahead == 0:
                break
            self._replay.append(event.repeated(min(ahead, event.count)))
            ahead -= self._replay[-1].count
        self._allowance = None

    def _meet_again(self, event: Event) -> None:
        remaining = event.count
        while remaining:
            if not self._replay or self._replay[-1].single != event.single:
                raise BudgetError(
                    "the resumed run charges something else than the interrupted one did, so it is another run: "
                    "its repeated steps would need fresh noise and a fresh charge. Start a new run."
                )
            head = self._replay.pop()
            met = min(remaining, head.count)
            remaining -= met
            if head.count > met:
                self._replay.append(head.repeated(head.count - met))

    def _append(self, event: Event) -> None:
        if self._entries and self._entries[-1].single == event.single:
            event = event.repeated(self._entries.pop().count + event.count)
        self._entries.append(event)

    def _check(self, event: Event) -> None:
        if not isinstance(event, Event):
            raise BudgetError(f"a ledger takes events, got {type(event).__name__}.")
        if (event.unit, event.relation) != (self.unit, self.relation):
            raise BudgetError(
                f"this ledger counts unit {self.unit} under {self.relation}; the event speaks of unit {event.unit} "
                f"under {event.relation}. Price the mechanism for the ledger's pair; the two are never mixed."
            )

    # Keeping the books -----------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        target = self.target
        return {
            "format": _FORMAT,
            "owner": self.owner,
            "unit": str(self.unit),
            "relation": str(self.relation),
            "target": {"epsilon": number_to_json(target.epsilon), "delta": target.delta} if target else None,
            "events": [event.to_json() for event in self._entries],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], path: Path | None = None) -> Self:
        """Rebuild from `to_json`.

        Raises:
            InputError: On anything foreign: another format, an unknown key, kind, unit or relation.
        """
        known = {"format", "owner", "unit", "relation", "target", "events"}
        if not isinstance(data, dict) or data.get("format") != _FORMAT or set(data) != known:
            raise InputError(f"not a ledger of this package (format {_FORMAT!r}).")
        target = data["target"]
        ledger = cls(
            parse_unit(data["unit"]),
            parse_relation(data["relation"]),
            Budget(number_from_json(target["epsilon"]), number_from_json(target["delta"])) if target else None,
            path,
            str(data["owner"]),
        )
        for item in data["events"]:
            event = Event.from_json(item)
            ledger._check(event)
            ledger._append(event)
        return ledger

    @classmethod
    def open(cls, path: Path, owner: str) -> Self:
        """Load the ledger kept at ``path``; further charges are kept there too.

        Raises:
            InputError: If the file is missing, damaged, foreign, or of another owner.
        """
        if not path.is_file():
            raise InputError(
                f"no ledger at {path}: the run's spending is unknown, so it cannot go on. Start a new run."
            )
        text = path.read_text(encoding="utf-8")
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"the ledger {path} is damaged ({error}); the run cannot go on.") from error
        ledger = cls.from_json(data, path)
        if ledger.owner != owner:
            raise InputError(f"the ledger {path} belongs to another configuration; resume the run that wrote it.")
        return ledger
