r"""Trade-off curves: what any test that is told the outcome can find, and how seldom it errs, by its false alarms.

A test says "member" (the record is in the data) or "none". Its false alarms are the share a of outcomes without the
record of which it says "member", and it finds the share of outcomes with the record of which it does. The trade-off
function of two laws is ``f(a) = least share missed by any test with at most a false alarms`` (`Dong, Roth, Su (2022)
<https://arxiv.org/abs/1905.02383>`_). Two Gaussians of distance mu standard deviations have ``f(a) = Phi(Phi^-1(1 - a)
- mu)``. For any other noise each point of the composed privacy loss distribution bounds it: where for every event E
``P_member(E) <= e^eps P_none(E) + delta`` and ``P_none(E) <= e^eps P_member(E) + delta'``, a test with a false alarms
finds at most ``min(e^eps a + delta, 1 - e^-eps (1 - delta' - a))`` (Wasserman and Zhou 2010, for the test and for its
complement). Over all eps the least of these is the very curve of the two laws: nothing is lost to a single epsilon.

Risk in plain numbers: the most that any attack can find, whoever runs it and whatever it knows of other records.

The numbers come from the trade-off curve of the charges themselves (`idpgan.privacy.tradeoff`), not from one epsilon,
and are rounded up. Under zero-out-one they speak of membership: a test says of a record whether it was in the data.
Under replace-one every record is in the data, and the test says which of two contents, both known to it, the record
has: that is never called membership.
"""

from __future__ import annotations

import dataclasses
import decimal
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from idpgan.errors import InputError
from idpgan.privacy.accounting import compose_curve, failing, merge, simple_epsilon, unfailing
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, check_keys

_POINTS = 2_000  # of a composed curve: between two of them a bound rises by less than 1e-4 of itself
_DELTAS = (0.1, 1e-3, 1e-5)  # a composition is most exact near one epsilon: in the middle of the curve, in its tail
_MOST_KINDS = 16  # of different charges that are composed one by one
_COARSE = np.geomspace(1e-6, 0.9, 28)  # deltas at which the accountant is asked where nothing is composed
_LARGEST_MU = 1e4
_LARGEST_EPSILON = 700.0  # its exponential is a number


@dataclass(frozen=True, eq=False)
class Tradeoff:
    """Upper bounds of what any test finds; the least of all counts.

    Attributes:
        mu: The laws lie no farther apart than two Gaussians of this distance; infinite where that is not known.
        epsilons: Epsilons >= 0, (n,), at which both following are known.
        forward: Delta of "member" against "none", (n,).
        backward: Delta of "none" against "member", (n,).
        failing: Chance that the record is shown as it is.
    """

    mu: float = math.inf
    epsilons: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    forward: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    backward: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0))
    failing: float = 0.0

    @classmethod
    def at(cls, epsilon: float, delta: float) -> Self:
        """Return what (epsilon, delta) alone proves."""
        if epsilon > _LARGEST_EPSILON:
            return cls()
        return cls(math.inf, np.array([epsilon]), np.array([delta]), np.array([delta]))

    @property
    def both_ways(self) -> Self:
        """The same for a test that may take either of the two for the member."""
        most = np.maximum(self.forward, self.backward)
        return dataclasses.replace(self, forward=most, backward=most)

    @functools.cached_property
    def _grown(self) -> np.ndarray:
        return np.exp(self.epsilons)

    def misses(self, false_alarms: float) -> float:
        """Return the least share of members that any test with so many false alarms misses, in [0, 1].

        Example:
            >>> lie = 1 / (1 + math.e)
            >>> round(Tradeoff.at(1.0, 0.0).misses(lie) / lie, 6)
            1.0
        """
        known = 1 - self.failing  # whoever is shown as it is is found, and nobody is accused falsely
        if false_alarms >= known:
            return 0.0
        rate = false_alarms / known
        bounds = [0.0, float(ndtr(-ndtri(rate) - self.mu)) if self.mu < math.inf else 0.0]
        if len(self.epsilons):
            bounds.append(float(np.max(1 - self.forward - self._grown * rate)))
            bounds.append(float(np.max((1 - self.backward - rate) / self._grown)))
        return known * min(max(bounds), 1 - rate)

    def found(self, false_alarms: float) -> float:
        """Return the largest share of members that any test finds with so many false alarms, in [0, 1].

        Example:
            >>> round(Tradeoff(mu=2.0).found(0.01), 3), round(Tradeoff.at(1.0, 0.0).found(0.01), 4)
            (0.372, 0.0272)
        """
        return 1 - self.misses(false_alarms)

    @property
    def best_guess(self) -> float:
        """How often the best test is right where both cases are as likely as each other, in [1/2, 1].

        That is half of one more than the total variation distance, which (epsilon, delta) holds to
        ``(e^epsilon - 1 + 2 delta) / (e^epsilon + 1)`` (Kairouz, Oh, Viswanath 2015).
        """
        apart = [1.0, math.erf(self.mu / math.sqrt(8))]
        if len(self.epsilons):
            most = np.maximum(self.forward, self.backward)
            apart.append(float(np.min((self._grown - 1 + 2 * most) / (self._grown + 1))))
        return (1 + self.failing + (1 - self.failing) * min(apart)) / 2


@functools.lru_cache(maxsize=64)
def tradeoff(events: tuple[Event, ...], deltas: Sequence[float] = _DELTAS) -> Tradeoff:
    """Return the trade-off curve of events, which have one unit and one relation: their own law, not one epsilon.

    Gaussian reads alone are one Gaussian; any others are composed, so that their curve lies some 1e-4 above the true
    one at most. Where composition is out of reach, or would take minutes since many charges differ, simpler bounds at
    many deltas take its place.

    Args:
        deltas: Where the composed curve is most exact; see `compose_curve`.
    """
    if not all(event.is_private for event in events):
        return Tradeoff(failing=1.0)
    lost, pure = min(failing(events), 1.0), unfailing(events)
    mu, others = merge(pure)
    if not others:
        return Tradeoff(mu, failing=lost)
    curves = [np.stack(compose_curve(pure, delta, _POINTS)) for delta in deltas] if len(others) <= _MOST_KINDS else []
    asked = (0.0,) if any(curve.size for curve in curves) else (0.0, *_COARSE.tolist())
    simple = [(simple_epsilon(pure, delta), delta, delta) for delta in asked]
    curves.append(np.array([point for point in simple if point[0] < _LARGEST_EPSILON]).reshape(-1, 3).T)
    epsilons, forward, backward = np.concatenate(curves, axis=1)
    return Tradeoff(math.inf, epsilons, forward, backward, lost)


# The distance of two Gaussians, in standard deviations --------------------------------------------------------------


def separation(true_positive_rate: np.ndarray, false_positive_rate: np.ndarray) -> np.ndarray:
    """Return how many standard deviations apart two Gaussians must be for tests to have these rates, >= 0.

    Example:
        >>> separation(np.array([0.84134, 0.1]), np.array([0.5, 0.5])).round(3).tolist()
        [1.0, 0.0]
    """
    with np.errstate(invalid="ignore"):
        found = ndtri(true_positive_rate) - ndtri(false_positive_rate)
    return np.where(found > 0, found, 0.0)  # also where a rate of 0 meets one of 0


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the least delta at which two Gaussians of distance ``mu`` > 0 are (epsilon, delta)-close.

    `Balle and Wang (2018), Theorem 8 <https://arxiv.org/abs/1805.06530>`_, in logarithms where the formula would
    overflow.
    """
    first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(math.exp(first) * -math.expm1(min(second - first, 0.0)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the least epsilon >= 0 at which two Gaussians of distance ``mu`` >= 0 are (epsilon, delta)-close.

    At delta = 0 and mu > 0 the result is infinite.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 3)
        4.377
    """
    from scipy.optimize import brentq  # half a second to import, as below

    if mu <= 0 or (delta > 0 and gaussian_delta(mu, 0.0) <= delta):
        return 0.0
    if delta <= 0:
        return math.inf
    high = mu * mu / 2 + mu * (math.sqrt(2 * math.log(1 / delta)) + 1)
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, high, xtol=1e-12))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the mu of the Gaussian release that costs exactly (epsilon, delta), delta > 0: inverts `gaussian_epsilon`.

    Example:
        >>> round(gaussian_mu(1.0, 1e-5), 3), round(gaussian_mu(10.0, 1e-5), 3)
        (0.268, 2.0)
    """
    from scipy.optimize import brentq

    if math.isinf(epsilon):
        return math.inf
    return float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-9, _LARGEST_MU, xtol=1e-12))


@functools.lru_cache(maxsize=256)
def proven_separation(events: tuple[Event, ...], false_positive_rate: float, epsilon: float, delta: float) -> float:
    """Return the largest `separation` that the proof allows at this false-positive rate; infinite if nothing is proven.

    If all noise is Gaussian, the outputs follow two Gaussians, and the result is the mu of the proven (epsilon, delta);
    otherwise the result follows from the events' own curve, or without any events from (epsilon, delta) alone.
    """
    if events and delta > 0 and {event.kind for event in events} <= {"gaussian"}:
        return gaussian_mu(epsilon, delta)
    missed = Tradeoff.at(epsilon, delta).misses(false_positive_rate)
    if events:
        missed = max(missed, tradeoff(events).both_ways.misses(false_positive_rate))
    return math.inf if missed <= 0 else float(ndtri(1 - missed) - ndtri(false_positive_rate))


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
