"""Risk in plain numbers: the most that any attack can find, whoever runs it and whatever it knows of other records.

The numbers come from the trade-off curve of the charges themselves (`idpgan.privacy.tradeoff`), not from one epsilon,
and are rounded up. Under zero-out-one they speak of membership: a test says of a record whether it was in the data.
Under replace-one every record is in the data, and the test says which of two contents, both known to it, the record
has: that is never called membership.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from idpgan.errors import InputError
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, check_keys
from idpgan.privacy.tradeoff import tradeoff

SHOWN = (0.01, 0.001)  # false alarms at which people are told what is found
RATES = (*(digit * 10.0**power for power in (-4, -3, -2, -1) for digit in (1, 2, 5)), 1.0)  # of the stated curve
_QUESTIONS = {Relation.ZERO_OUT: "membership", Relation.REPLACE_ONE: "which of two contents"}
_STEPS = 1_000_000  # shares are rounded up to one of so many
_SHOWN_DIGITS = decimal.Context(prec=3, rounding=decimal.ROUND_CEILING)


@dataclass(frozen=True)
class Risk:
    """What any attack on one record finds at most.

    Attributes:
        relation: How neighbors differ, and so what the attack asks.
        found: By rate of false alarms (`RATES`): the largest share of members that any test finds; under replace-one
            the share of records with the second content of which it says so, while it says so of that share of the
            others.
        best_guess: How often the best guess is right, in [1/2, 1], where both cases are as likely as each other.
    """

    relation: Relation
    found: Mapping[float, float]
    best_guess: float

    @classmethod
    def of(cls, events: Sequence[Event]) -> Self:
        """Compute it of all charges, which have one unit and one relation; there is at least one."""
        curve = tradeoff(tuple(events))
        found = {rate: _up(curve.found(rate)) for rate in RATES}
        return cls(events[0].relation, found, _up(curve.best_guess))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        found = {f"{rate:g}": share for rate, share in self.found.items()}
        return {"question": _QUESTIONS[self.relation], "best_guess": self.best_guess, "found": found}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`; raises `InputError` on anything else."""
        relations = {question: relation for relation, question in _QUESTIONS.items()}
        rates = {f"{rate:g}": rate for rate in RATES}
        check_keys(data, ("question", "best_guess", "found"), "a risk")
        if (
            data["question"] not in list(relations)
            or not isinstance(data["found"], dict)
            or set(data["found"]) != set(rates)
        ):
            raise InputError(f"a risk speaks of {' or '.join(relations)}, at the false alarms {', '.join(rates)}.")
        found = {rates[name]: _share(share, f"found at {name}") for name, share in data["found"].items()}
        return cls(relations[data["question"]], found, _share(data["best_guess"], "best_guess"))

    def short_of(self, other: Risk) -> str | None:
        """Return in words the first number that lies below that of another risk, but for rounding; None if none does.

        Example:
            >>> from idpgan.privacy import Unit
            >>> read = Event("gaussian", Unit.IMAGE, Relation.ZERO_OUT, noise_multiplier=4.0)
            >>> Risk.of([read]).short_of(Risk.of([read, read]))
            'found at 0.0001: 0.000262 for 0.000383'
        """
        if self.relation is not other.relation:
            return f"{_QUESTIONS[self.relation]} for {_QUESTIONS[other.relation]}"
        pairs = [(f"found at {rate:g}", self.found[rate], other.found[rate]) for rate in RATES]
        pairs.append(("best guess", self.best_guess, other.best_guess))
        return next((f"{name}: {mine:g} for {more:g}" for name, mine, more in pairs if mine < more - 2 / _STEPS), None)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return what is found, how much of it at most, and how much a mere guess finds."""
        what, guess = _WORDS[self.relation]
        rows = [(what.format(f"{100 * rate:g} %"), percent(self.found[rate]), f"{100 * rate:g} %") for rate in SHOWN]
        return [*rows, (guess, percent(self.best_guess), "50 %")]


_WORDS = {
    Relation.ZERO_OUT: (
        "members found, while {} of the others are accused falsely",
        "right guesses whether a record was used, if that is as likely as not",
    ),
    Relation.REPLACE_ONE: (
        "second of two contents recognized, while {} of the records with the first are taken for it",
        "right guesses which of two contents a record has, if both are as likely",
    ),
}


def percent(share: float) -> str:
    """Write a share in percent, rounded up to three digits.

    Example:
        >>> percent(0.019781), percent(0.99999), percent(0.0002)
        ('1.98 %', '100 %', '0.0200 %')
    """
    return f"{_SHOWN_DIGITS.create_decimal(f'{100 * share:.6f}'):f} %"


def _share(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{name} = {str(value)[:40]!s} of a risk must be a number in 0 .. 1.")
    return float(value)


def _up(share: float) -> float:
    return min(math.ceil(share * _STEPS + 1e-6) / _STEPS, 1.0)
