r"""What was spent on one unit of the private images, by whatever charged it: one record, one function, one proof.

A `Part` is what one run, publication or release charged. `total` says what all that may have read the same records
costs: the same for a folder's ledger, a run on released images, the releases of one process, and ``idpgan ledger``.

**Proof.** *From one pair of unit and relation to another* (`steps`). Let a mechanism be (epsilon, delta)-DP for
neighbors of the pair s, and let any two neighbors D, D' of the pair t be the ends of a chain of m steps
``D = D_0, D_1, ..., D_m = D'`` between neighbors of s. By group privacy (Vadhan 2017, Lemma 2.2; `Guarantee.for_group`)
the mechanism is then ``(m epsilon, delta (e^(m epsilon) - 1) / (e^epsilon - 1))``-DP for t. The chains:

* Absence is one possible content of a unit (the null record; black pixels), so neighbors of zero-out-one are neighbors
  of replace-one: m = 1. Replacing a unit means removing it and putting another one in its place: from zero-out-one to
  replace-one, m = 2.
* A pixel lies in a column, a column in an image, an image belongs to a person or was cut out of a photo. Two contents
  of the part are two contents of the whole: from replace-one of the whole to either relation of the part, m = 1. From
  zero-out-one of the whole: it goes, and comes back with the other part or without it, m = 2.
* A person has at most k images, k public, and so has a photo. From an image to a person: change one image after the
  other, m = k times the steps of one image. How many pixels or columns an image has nobody says here: no chain.
* Between people and photos there is no chain: people are on any number of photos. Nor is there one from or to a window,
  a label or an event.

*One ledger.* With m = 1 every pair of neighbors of t is one of s, so whatever dominates an event for s dominates it for
t: `accounting` composes all such events as one ledger, adaptively, in any order. A randomized response counts as its
pure epsilon there. *Apart.* Events with m > 1 are composed for their own pair, carried over by group privacy, and
added: two mechanisms that are (e1, d1)- and (e2, d2)-DP, the second chosen from the output of the first, are together
(e1 + e2, d1 + d2)-DP (Dwork, McSherry, Nissim, Smith 2006). Group privacy multiplies delta, so these events are
composed at the largest delta for which the group's delta stays below the stated one.

*Histories.* Images of one folder may have been read by different parts: each image by those along its path. Given all
other images, a part that did not read an image reveals nothing about it. So a unit of the folder costs at most the
largest epsilon and the largest delta over its histories.

**What is not known.** A part whose charges bound nothing of the wanted unit (no chain) is left out and counted
(`Total.left_out`), and `Total.whole` is infinite then. A part without a proof leaves no total of any unit: it may show
the images as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from idpgan.errors import InputError
from idpgan.privacy.accounting import compose_epsilon, failing
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, Relation, Unit

Pair = tuple[Unit, Relation]
_SIZES = {Unit.PIXEL: 0, Unit.COLUMN: 1, Unit.IMAGE: 2, Unit.PERSON: 3, Unit.PHOTO: 3}  # each lies in larger ones
# A group's events are composed at a delta that is smaller by at most this many powers of ten: down to the least float,
# or, beside events with a delta of their own, down to the last digit of that delta.
_MOST_POWERS, _LEAST_POWERS = 300.0, 15.0
_HALVINGS = 12
_LEAST_EPSILON = 1e-12  # an event has an epsilon above 0


@dataclasses.dataclass(frozen=True)
class Part:
    """The charges of one release, run or publication, all of one unit and one relation.

    Attributes:
        events: The charges.
        delta: Where its epsilon is stated, in [0, 1).
    """

    events: tuple[Event, ...]
    delta: float

    def __post_init__(self) -> None:
        pairs = {(event.unit, event.relation) for event in self.events}
        if len(pairs) > 1 or not 0 <= self.delta < 1:
            raise InputError("a release has charges of one unit and one relation, and a delta in [0, 1).")

    @property
    def pair(self) -> Pair:
        """Unit and relation of the charges; there is at least one."""
        return self.events[0].unit, self.events[0].relation

    @property
    def sound(self) -> bool:
        """Whether anything is proven of it."""
        return all(event.is_private for event in self.events)

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


@dataclasses.dataclass(frozen=True)
class Total:
    """What all parts cost one unit.

    Attributes:
        guarantee: What all parts that bound the unit prove, in the dearest history; infinite after one without a proof.
        counted: Number of parts in it.
        left_out: Parts, of all histories, that bound nothing of the unit.
        elsewhere: Those counted that stand on other ledgers than the folder's own; 0 where there is no folder.
    """

    guarantee: Guarantee
    counted: int
    left_out: int
    elsewhere: int = 0

    @property
    def whole(self) -> Guarantee:
        """What is proven where every part must be bounded: nothing, if one was left out."""
        found = self.guarantee
        return dataclasses.replace(found, epsilon=math.inf, delta=0.0) if self.left_out else found

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        counts = {"publications": self.counted, "on_other_ledgers": self.elsewhere, "not_counted": self.left_out}
        return {**self.guarantee.to_json(), **counts}

    def __str__(self) -> str:
        if not (self.left_out and self.guarantee.finite):
            return str(self.guarantee)
        others = f"{self.left_out} of units that bound no {self.guarantee.unit}"
        return f"{self.guarantee}; not counted: {others}, with which the total is not known"


def steps(source: Pair, target: Pair, most_per_person: int | None = None) -> int | None:
    """Return m: m steps between neighbors of ``source`` join any neighbors of ``target``; None if no such chain exists.

    Args:
        most_per_person: k >= 1, public: no person, or no photo, has more images than that; None = not known.
    """
    (unit, relation), (wanted, wanted_relation) = source, target
    narrowed = unit in _SIZES and wanted in _SIZES and _SIZES[unit] > _SIZES[wanted]
    widened = unit is Unit.IMAGE and wanted.of_images and most_per_person is not None
    if unit is not wanted and not narrowed and not widened:
        return None
    twice = relation is Relation.ZERO_OUT and (narrowed or wanted_relation is Relation.REPLACE_ONE)
    return (2 if twice else 1) * (most_per_person or 1 if widened else 1)


def total(
    histories: Sequence[Sequence[Part]],
    unit: Unit,
    relation: Relation,
    *,
    delta: float | None = None,
    most_per_person: int | None = None,
) -> Total:
    """Return what the dearest history costs one unit; the proof is in the module docstring.

    Args:
        histories: For every image of interest the parts that may have read it, in any order.
        unit: Unit of the total.
        relation: Relation of the total.
        delta: Where the charges of one ledger are stated; None = at the largest delta of a part that counts. Charges
            that are carried over by group privacy are stated at the smaller of their own delta and that one, and added.
        most_per_person: Public cap on the images of one person, or of one photo, in every one of the parts; None = not
            known, so that what was charged for images bounds nobody.

    Example:
        >>> read = Event("laplace", Unit.IMAGE, Relation.REPLACE_ONE, noise_multiplier=1.0)
        >>> str(total([[Part((read,), 0.0), Part((read,), 0.0)]], Unit.IMAGE, Relation.ZERO_OUT))
        'epsilon = 2 (unit image, zero-out-one)'
    """
    every = {id(part): part for parts in histories for part in parts if part.events}
    sizes = {part.pair: steps(part.pair, (unit, relation), most_per_person) for part in every.values()}
    if delta is None:
        delta = max((part.delta for part in every.values() if sizes[part.pair]), default=0.0)
    costs = [_cost(parts, sizes, unit, relation, delta) for parts in histories] or [(0.0, 0, "nothing", 0.0)]
    epsilon, counted, words, _ = max(costs)
    delta = max(cost[-1] for cost in costs)
    finite = math.isfinite(epsilon) and delta < 1
    guarantee = Guarantee(epsilon if finite else math.inf, delta if finite else 0.0, unit, relation, words)
    return Total(guarantee, counted, sum(not sizes[part.pair] for part in every.values()))


def _cost(
    parts: Sequence[Part], sizes: Mapping[Pair, int | None], unit: Unit, relation: Relation, stated: float
) -> tuple[float, int, str, float]:
    """Return epsilon, number of parts that count, words and delta of one history; ``sizes`` are steps from pairs."""
    counted = [part for part in parts if part.events and sizes[part.pair]]
    if not all(part.sound for part in parts):
        return math.inf, len(counted), "a part without a proof", 0.0
    epsilon, delta, words = _price(*_gathered(counted, sizes, unit, relation), stated)
    return epsilon, len(counted), words, delta


def joint_events(parts: Sequence[Part], total: Guarantee, most_per_person: int | None = None) -> tuple[Event, ...]:
    """Return events of the total's unit and relation that cost one unit at least as much as all parts do together.

    Parts that are carried over by group privacy stand as one event of which an epsilon and a delta are known.

    Args:
        total: What the parts prove together, finite.
        most_per_person: See `total`.
    """
    unit, relation = total.unit, total.relation
    counted = [part for part in parts if part.events]
    sizes = {part.pair: steps(part.pair, (unit, relation), most_per_person) for part in counted}
    events, groups = _gathered(counted, sizes, unit, relation)
    known = [_grouped(read, size, min(total.delta, most)) for read, size, most in groups]
    return (
        *events,
        *(
            Event("approximate", unit, relation, pure_epsilon=max(each.epsilon, _LEAST_EPSILON), delta=each.delta)
            if each.delta
            else Event("pure", unit, relation, pure_epsilon=max(each.epsilon, _LEAST_EPSILON))
            for each in known
        ),
    )


_Group = tuple[tuple[Event, ...], int, float]  # events of one pair, the steps from it, the largest delta of their parts


def _gathered(
    counted: Sequence[Part], sizes: Mapping[Pair, int | None], unit: Unit, relation: Relation
) -> tuple[tuple[Event, ...], tuple[_Group, ...]]:
    """Return the events of one ledger, to which one step leads, and the groups of those that take more steps."""
    ledger, apart = list[Event](), dict[Pair, list[Part]]()
    for part in counted:
        if sizes[part.pair] == 1:
            ledger += [_carried(event, unit, relation) for event in part.events]
        else:
            apart.setdefault(part.pair, []).append(part)
    groups = tuple(
        (tuple(event for part in held for event in part.events), sizes[pair] or 1, max(part.delta for part in held))
        for pair, held in apart.items()
    )
    return tuple(ledger), groups


@functools.lru_cache(maxsize=256)  # a folder a person: hundreds of histories with the same events
def _price(ledger: tuple[Event, ...], groups: tuple[_Group, ...], stated: float) -> tuple[float, float, str]:
    """Return epsilon and delta of the events of one ledger and of those that are carried over, and how they add up."""
    epsilon, delta = compose_epsilon(ledger, stated), stated if ledger else 0.0
    if math.isinf(epsilon) and (lost := failing(ledger)):  # reads that fail more often together than is stated
        delta = stated + lost
        epsilon = compose_epsilon(ledger, delta) if delta < 1 else math.inf
    words = [f"one ledger of {sum(event.count for event in ledger):,} charges"]
    for events, size, most in groups:
        group = _grouped(events, size, min(stated, most))
        epsilon, delta = epsilon + group.epsilon, delta + group.delta
        pair = f"unit {events[0].unit}, {events[0].relation}"
        charges = sum(event.count for event in events)
        words.append(f"{charges:,} charges of {pair}, by group privacy for {size}, added")
    return epsilon, delta, "; ".join(words)


@functools.lru_cache(maxsize=64)
def _epsilon(events: tuple[Event, ...], delta: float) -> float:
    return compose_epsilon(events, delta)


def _carried(event: Event, unit: Unit, relation: Relation) -> Event:
    """Return the event with another unit and relation, to which a chain of one step leads."""
    if event.kind == "randomized-response" and relation is not event.relation:
        event = dataclasses.replace(event, kind="pure", categories=None)
    return dataclasses.replace(event, unit=unit, relation=relation)


def _grouped(events: tuple[Event, ...], size: int, most: float) -> Guarantee:
    """Return what the events prove for a group of this size, with the least epsilon at a delta of at most ``most``.

    Where reads that fail leave nothing at such a delta, theirs is added to it.
    """

    def at(delta: float) -> Guarantee:
        epsilon, first = compose_epsilon(events, delta), events[0]
        return Guarantee(epsilon, delta, first.unit, first.relation, "").for_group(size)

    def smaller(powers: float) -> float:
        return lost + (most - lost) * 10**-powers

    def fits(powers: float) -> bool:
        group = at(smaller(powers))
        return group.finite and group.delta <= most

    pure, lost = at(0.0), failing(events)
    low, high = 0.0, _LEAST_POWERS if lost else _MOST_POWERS
    if most <= lost or not fits(high):
        return at(min(most + lost, 1 - 2.0**-53)) if lost else pure
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    group = at(smaller(high))
    return pure if pure.epsilon <= group.epsilon else dataclasses.replace(group, delta=most)
