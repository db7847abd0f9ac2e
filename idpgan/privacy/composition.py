r"""The joint price of several reads or releases: theorems from the literature, and the total of a release.

**Theorems**, for comparison with the privacy loss distribution of `accounting`. They charge nothing. For k reads, each
(epsilon, delta)-DP, chosen one after the other:

* `basic_composition`: (k epsilon, k delta) (Dwork, McSherry, Nissim, Smith 2006);
* `advanced_composition`: Dwork, Rothblum, Vadhan 2010, Theorem III.3;
* `closed_form_composition`: Kairouz, Oh, Viswanath 2015, Theorem 3.4, no worse than either;
* `optimal_composition`: Kairouz, Oh, Viswanath 2015, Theorem 3.3: the best that (epsilon, delta) alone can tell.

The accountant composes "pure" and "approximate" events like `optimal_composition`, up to its grid; where the noise is
known (Laplace, Gaussian) its bound is far lower.

**The total** (`total`) states the charges of a release and of the releases that it contains as one guarantee. A
contained release may have read the same records, so all charges together bound what a receiver learns of a record. The
total is stated for the unit and the relation of the containing release.

**From one pair to another** (`chain`). Let a mechanism be (epsilon, delta)-DP for neighbors of the pair s, and let any
two neighbors D, D' of the pair t be the ends of a chain of m steps ``D = D_0, D_1, ..., D_m = D'`` between neighbors of
s. By group privacy (Vadhan 2017, Lemma 2.2; `Guarantee.for_group`) the mechanism is then
``(m epsilon, delta (e^(m epsilon) - 1) / (e^epsilon - 1))``-DP for t. The chains:

* Absence is one possible content of a record (the null record), so neighbors of zero-out-one are neighbors of
  replace-one: m = 1. Replacing a record means removing it and putting another one in its place: from zero-out-one to
  replace-one, m = 2.
* Two contents of one image are two contents of the person on it: from replace-one of a person to either relation of an
  image, m = 1. From zero-out-one of a person: remove the person, then add them with the other image or without it,
  m = 2.
* A person has at most k images, k public. From an image to a person: change one image after the other, m = k times the
  steps of one image.
* What is said of a person holds of a photo out of which at most k images are cut. Between people and photos there is no
  chain: people are on any number of photos.
* Other units (pixel, column, window, label, event) do not cover an image as a whole: there is no chain.

**One ledger.** With m = 1 every pair of neighbors of t is one of s, so whatever dominates an event for s dominates it
for t: `accounting` composes all such events as one ledger, adaptively. A randomized response counts as its pure epsilon
there. **Apart.** Events with m > 1 are composed for their own pair, carried over by group privacy, and added: two
mechanisms that are (e1, d1)- and (e2, d2)-DP, the second chosen from the output of the first, are together
(e1 + e2, d1 + d2)-DP (Dwork, McSherry, Nissim, Smith 2006). Group privacy multiplies delta, so these events are
composed at the largest delta for which the group's delta stays below the stated one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import gammaln

from idpgan.checks import typed, whole
from idpgan.errors import InputError
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, Relation, Unit

_MOST = 1 << 22  # reads of `optimal_composition`, which sums over them
# A group's events are composed at a delta that is smaller by at most this many powers of ten: down to the least float,
# or, beside events with a delta of their own, down to the last digit of that delta.
_MOST_POWERS, _LEAST_POWERS = 300.0, 15.0
_HALVINGS = 12


def _check(epsilon: float, delta: float, count: int, slack: float) -> None:
    whole(count, "count", 1, 1 << 62)
    if not 0 < epsilon < math.inf or not 0 <= delta < 1 or not 0 <= slack < 1:
        raise InputError(f"epsilon = {epsilon} must be above 0, delta = {delta} and slack = {slack} in [0, 1).")


@typed
def basic_composition(epsilon: float, delta: float, count: int) -> tuple[float, float]:
    """Return (epsilon, delta) of ``count`` reads: the sums.

    Example:
        >>> basic_composition(0.1, 0.0, 100)
        (10.0, 0.0)
    """
    _check(epsilon, delta, count, 0.0)
    return count * epsilon, min(count * delta, 1.0)


@typed
def advanced_composition(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """Return (epsilon, delta) of ``count`` reads by ``epsilon sqrt(2 k ln(1 / slack)) + k epsilon (e^epsilon - 1)``.

    Dwork, Rothblum, Vadhan 2010, "Boosting and differential privacy", Theorem III.3. (Reading notes print the logarithm
    of ``1 / (slack epsilon)``: a slip.) The delta is ``k delta + slack``, ``slack`` in (0, 1).

    Example:
        >>> round(advanced_composition(0.1, 0.0, 100, 1e-5)[0], 4)
        5.8502
    """
    _check(epsilon, delta, count, slack)
    if slack == 0:
        raise InputError("slack = 0 must be above 0: advanced composition buys a smaller epsilon with it.")
    total = epsilon * math.sqrt(2 * count * math.log(1 / slack)) + count * epsilon * math.expm1(min(epsilon, 700.0))
    return total, min(count * delta + slack, 1.0)


@typed
def closed_form_composition(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """Return (epsilon, delta) of ``count`` reads by the closed form of Kairouz, Oh, Viswanath 2015, Theorem 3.4.

    The least of ``k epsilon``, ``m + epsilon sqrt(2 k ln(e + sqrt(k epsilon^2) / slack))`` and
    ``m + epsilon sqrt(2 k ln(1 / slack))``, with ``m = k epsilon (e^epsilon - 1) / (e^epsilon + 1)``. The delta is
    ``1 - (1 - delta)^k (1 - slack)``.

    Example:
        >>> round(closed_form_composition(0.1, 0.0, 100, 1e-5)[0], 4)
        5.2981
    """
    _check(epsilon, delta, count, slack)
    whole_delta = -math.expm1(count * math.log1p(-delta) + math.log1p(-slack))
    if slack == 0:
        return count * epsilon, whole_delta
    mean = count * epsilon * math.tanh(epsilon / 2)
    spread = epsilon * math.sqrt(2 * count)
    mixed = mean + spread * math.sqrt(math.log(math.e + math.sqrt(count) * epsilon / slack))
    return min(count * epsilon, mixed, mean + spread * math.sqrt(math.log(1 / slack))), whole_delta


@typed
def optimal_delta(epsilon: float, delta: float, count: int, total_epsilon: float) -> float:
    """Return the least delta at which ``count`` reads are surely (total_epsilon, delta)-DP.

    Kairouz, Oh, Viswanath 2015, Theorem 3.3. Randomized response with two answers dominates a read that does not fail;
    l of k answers against the truth have a loss of ``(k - 2 l) epsilon``. With E = total_epsilon,
    ``d = sum over losses above E of C(k, l) (e^((k-l) epsilon) - e^(E + l epsilon)) / (1 + e^epsilon)^k``, and with
    failures ``1 - (1 - delta)^k (1 - d)``.
    """
    _check(epsilon, delta, count, 0.0)
    whole(count, "count", 1, _MOST)
    if not total_epsilon >= 0:
        raise InputError(f"total_epsilon = {total_epsilon} must be at least 0.")
    wrong = np.arange(count + 1.0)
    losses = (count - 2 * wrong) * epsilon
    above = losses > total_epsilon
    log_chance = gammaln(count + 1.0) - gammaln(wrong + 1) - gammaln(count - wrong + 1)
    log_chance += (count - wrong) * epsilon - count * np.logaddexp(0.0, epsilon)
    excess = float(np.sum(np.exp(log_chance[above]) * -np.expm1(total_epsilon - losses[above])))
    return -math.expm1(count * math.log1p(-delta) + math.log1p(-min(excess, 1 - 2.0**-53)))


@typed
def optimal_composition(epsilon: float, delta: float, count: int, total_delta: float) -> float:
    """Return the least epsilon at which ``count`` reads are surely (epsilon, total_delta)-DP; infinite if none is.

    Kairouz, Oh, Viswanath 2015, Theorem 3.3, solved for epsilon between its grid points too; see `optimal_delta`.

    Example:
        >>> round(optimal_composition(0.1, 0.0, 100, 1e-5), 4)
        4.3068
    """
    _check(epsilon, delta, count, total_delta)
    low, high = 0.0, count * epsilon
    if optimal_delta(epsilon, delta, count, high) > total_delta * (1 + 1e-12):
        return math.inf
    if optimal_delta(epsilon, delta, count, low) <= total_delta:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if optimal_delta(epsilon, delta, count, middle) > total_delta else (low, middle)
    return high


# The total ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """The charges of one release, all of one unit and one relation.

    Attributes:
        delta: Where the release states their epsilon, in [0, 1).
    """

    events: tuple[Event, ...]
    delta: float

    def __post_init__(self) -> None:
        pairs = {(event.unit, event.relation) for event in self.events}
        if len(pairs) > 1 or not 0 <= self.delta < 1:
            raise InputError("a release has charges of one unit and one relation, and a delta in [0, 1).")

    @property
    def pair(self) -> tuple[Unit, Relation]:
        """Unit and relation of the charges; there is at least one."""
        return self.events[0].unit, self.events[0].relation

    @property
    def proven(self) -> Guarantee:
        """What the charges prove for their own unit and relation."""
        epsilon = _epsilon(self.events, self.delta)
        delta = self.delta if math.isfinite(epsilon) else 0.0
        return Guarantee(epsilon, delta, *self.pair, "the charges that its release states")

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {"delta": self.delta, "events": [event.to_json() for event in self.events]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`; anything else raises an `InputError`, a KeyError or a TypeError."""
        return cls(tuple(Event.from_json(item) for item in data["events"]), data["delta"])


@functools.lru_cache(maxsize=64)
def _epsilon(events: tuple[Event, ...], delta: float) -> float:
    return compose_epsilon(events, delta)


def chain(source: tuple[Unit, Relation], target: tuple[Unit, Relation], most_per_person: int) -> int | None:
    """Return m: m steps between neighbors of ``source`` join any neighbors of ``target``; None if no such chain exists.

    Args:
        most_per_person: k >= 1, public: no person, or no photo, has more images than that.
    """
    (unit, relation), (wanted, wanted_relation) = source, target
    narrowed = unit.of_images and wanted is Unit.IMAGE
    widened = unit is Unit.IMAGE and wanted.of_images
    if unit is not wanted and not narrowed and not widened:
        return None
    twice = relation is Relation.ZERO_OUT and (narrowed or wanted_relation is Relation.REPLACE_ONE)
    return (2 if twice else 1) * (most_per_person if widened else 1)


@functools.lru_cache(maxsize=16)
def total(
    own: Part, contained: tuple[Part, ...], unit: Unit, relation: Relation, most_per_person: int = 1
) -> Guarantee:
    """Return what all charges together prove for one unit and one relation; the proof is in the module docstring.

    The charges of one ledger are stated at the delta of ``own`` (if ``own`` is pure: at the largest delta of all), and
    each further ledger at the smaller of its own delta and that one.

    Args:
        own: Of the containing release, of this unit and relation.
        contained: Of the others, at least one charge each.
        most_per_person: Public cap on the images of one person, in every one of these releases.

    Example:
        >>> read = Event("laplace", Unit.IMAGE, Relation.REPLACE_ONE, noise_multiplier=1.0)
        >>> str(total(Part((), 0.0), (Part((read,), 0.0), Part((read,), 0.0)), Unit.IMAGE, Relation.ZERO_OUT))
        'epsilon = 2 (unit image, zero-out-one)'
    """
    stated = own.delta or max((part.delta for part in contained), default=0.0)
    ledger, apart = list(own.events), dict[tuple[Unit, Relation], list[Part]]()
    for part in contained:
        if chain(part.pair, (unit, relation), most_per_person) == 1:
            ledger += [_carried(event, unit, relation) for event in part.events]
        else:
            apart.setdefault(part.pair, []).append(part)
    epsilon, delta = compose_epsilon(ledger, stated), stated
    words = [f"one ledger of {sum(event.count for event in ledger):,} charges, its own and those of what it contains"]
    for pair, parts in apart.items():
        size = chain(pair, (unit, relation), most_per_person)
        events = tuple(event for part in parts for event in part.events)
        if size is None:
            epsilon = math.inf
        else:
            group = _grouped(events, size, min(stated, max(part.delta for part in parts)))
            epsilon, delta = epsilon + group.epsilon, delta + group.delta
        said = "which says nothing of this unit" if size is None else f"by group privacy for {size}, added"
        words.append(f"{sum(event.count for event in events):,} charges of unit {pair[0]}, {pair[1]}, {said}")
    finite = math.isfinite(epsilon) and delta < 1
    return Guarantee(epsilon if finite else math.inf, delta if finite else 0.0, unit, relation, "; ".join(words))


def _carried(event: Event, unit: Unit, relation: Relation) -> Event:
    """Return the event with another unit and relation, to which a chain of one step leads."""
    if event.kind == "randomized-response" and relation is not event.relation:
        event = dataclasses.replace(event, kind="pure", categories=None)
    return dataclasses.replace(event, unit=unit, relation=relation)


def _grouped(events: tuple[Event, ...], size: int, most: float) -> Guarantee:
    """Return what the events prove for a group of this size, with the least epsilon at a delta of at most ``most``."""

    def at(delta: float) -> Guarantee:
        epsilon, first = compose_epsilon(events, delta), events[0]
        return Guarantee(epsilon, delta, first.unit, first.relation, "").for_group(size)

    def smaller(powers: float) -> float:
        return failing + (most - failing) * 10**-powers

    def fits(powers: float) -> bool:
        group = at(smaller(powers))
        return group.finite and group.delta <= most

    pure, failing = at(0.0), sum(event.count * (event.delta or 0.0) for event in events)  # nothing holds below it
    low, high = 0.0, _LEAST_POWERS if failing else _MOST_POWERS
    if most <= failing or not fits(high):
        return pure
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    group = at(smaller(high))
    return pure if pure.epsilon <= group.epsilon else dataclasses.replace(group, delta=most)
