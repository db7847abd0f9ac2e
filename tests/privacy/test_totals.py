"""Totals: chains of neighbors against an enumeration, and the stated guarantee against mechanisms computed exactly."""

import itertools
import math

import numpy as np
import pytest

from idpgan.errors import InputError
from idpgan.privacy import Event, Guarantee, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.composition import Part, chain, total

ZERO, REPLACE = Relation.ZERO_OUT, Relation.REPLACE_ONE
IMAGE, PERSON = Unit.IMAGE, Unit.PERSON
PAIRS = list(itertools.product((IMAGE, PERSON), (ZERO, REPLACE)))
NULL = 0


def persons(num_images):
    """All contents of one person with so many positions, each of which holds the null record or one of two images."""
    return list(itertools.product((NULL, 1, 2), repeat=num_images))


def neighbors(first, second, unit, relation):
    """The definitions, word for word: data sets that differ in one unit, which is absent in one of them or has others.

    Only one person differs between neighbors of either unit, so one person is all that has to be looked at.
    """
    differing = [place for place in range(len(first)) if first[place] != second[place]]
    if not differing or (unit is IMAGE and len(differing) > 1):
        return False
    if relation is REPLACE:
        return True
    if unit is IMAGE:
        return NULL in (first[differing[0]], second[differing[0]])
    return not any(first) or not any(second)


def distances(states, unit, relation):
    """Steps between neighbors from each content to each other one."""
    steps = np.array([[0 if a == b else 1 if neighbors(a, b, unit, relation) else 99 for b in states] for a in states])
    for middle in range(len(states)):
        steps = np.minimum(steps, steps[:, [middle]] + steps[[middle], :])
    return steps


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("source", PAIRS)
@pytest.mark.parametrize("target", PAIRS)
def test_a_chain_is_as_long_as_the_longest_way_between_neighbors(source, target, most):
    """Not one step shorter, which would not be proven, and not one longer, which would cost too much."""
    states = persons(most)
    steps = distances(states, *source)
    longest = max(steps[i, j] for i, a in enumerate(states) for j, b in enumerate(states) if neighbors(a, b, *target))
    if most == 1 and source == (PERSON, ZERO) and target[0] is IMAGE:
        assert chain(source, target, most) >= longest  # nobody has one image only by a promise about persons
    else:
        assert chain(source, target, most) == longest


def test_other_units_say_nothing_of_an_image():
    for unit in (Unit.PIXEL, Unit.COLUMN, Unit.WINDOW, Unit.LABEL, Unit.EVENT):
        assert chain((unit, REPLACE), (IMAGE, ZERO), 5) is None
        assert chain((unit, REPLACE), (unit, ZERO), 5) == 1
        assert chain((unit, ZERO), (unit, REPLACE), 5) == 2


# The stated total against exact mechanisms ---------------------------------------------------------------------


def worst_delta(first, second, states, unit, relation, epsilon):
    """The least delta at which two independent mechanisms, rows of chances, are together (epsilon, delta)-DP."""
    both = (first[:, :, None] * second[:, None, :]).reshape(len(states), -1)
    pairs = ((i, j) for i, a in enumerate(states) for j, b in enumerate(states) if neighbors(a, b, unit, relation))
    return max(float(np.clip(both[i] - math.exp(epsilon) * both[j], 0, None).sum()) for i, j in pairs)


def answers(rng, states, spread):
    """A mechanism with four answers whose chances depend on the whole content."""
    raw = np.exp(spread * rng.standard_normal((len(states), 4)))
    return raw / raw.sum(1, keepdims=True)


def part_of(mechanism, states, unit, relation, epsilon, delta):
    """What the mechanism really is at epsilon for the pair, as an event of which nothing else is known."""
    nothing = np.ones((len(states), 1))
    exact = worst_delta(mechanism, nothing, states, unit, relation, epsilon)
    event = Event("approximate", unit, relation, pure_epsilon=epsilon, delta=max(exact, 1e-12))
    return Part((event,), delta)


@pytest.mark.parametrize("source", PAIRS)
@pytest.mark.parametrize("target", PAIRS)
def test_no_pair_of_mechanisms_costs_more_than_the_total(source, target):
    rng, states, checked = np.random.default_rng(5), persons(2), 0
    for trial in range(8):
        own, contained = answers(rng, states, 0.1), answers(rng, states, 0.04 + 0.01 * trial)
        first = part_of(own, states, *target, 0.25, 0.05)
        second = part_of(contained, states, *source, 0.12 + 0.03 * trial, 0.05)
        found = total(first, (second,), *target, 2)
        if found.finite:
            assert worst_delta(own, contained, states, *target, found.epsilon) <= found.delta * (1 + 1e-9)
            checked += 1
    assert checked >= 5


def geometric(states, value, epsilon):
    """Chances of a count with two-sided geometric noise on a long grid: exactly (epsilon |difference|, 0)-DP."""
    grid = np.arange(-40, 41)
    counts = np.array([value(state) for state in states], dtype=float)
    raw = np.exp(-epsilon * np.abs(grid[None, :] - counts[:, None]))
    return raw / raw.sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("source", "target", "value"),
    [
        ((IMAGE, ZERO), (IMAGE, REPLACE), lambda s: (s[0] == 1) - (s[0] == 2)),
        ((IMAGE, ZERO), (PERSON, ZERO), lambda s: (s[0] > 0) + (s[1] > 0)),
        ((IMAGE, ZERO), (PERSON, REPLACE), lambda s: sum((x == 1) - (x == 2) for x in s)),
        ((IMAGE, REPLACE), (PERSON, ZERO), lambda s: (s[0] > 0) + (s[1] > 0)),
        ((PERSON, ZERO), (IMAGE, ZERO), lambda s: (s[0] > 0) * (1 if s[1] else -1)),
    ],
)
def test_a_total_that_forgot_the_group_would_be_wrong(source, target, value):
    """The control: mechanisms whose difference grows with every step of the chain, so that one step less is refuted."""
    states, epsilon = persons(2), 0.3
    mechanism, nothing = geometric(states, value, epsilon), np.ones((9, 1))
    assert worst_delta(mechanism, nothing, states, *source, epsilon + 0.01) < 1e-4
    steps = chain(source, target, 2)
    event = Event("pure", *source, pure_epsilon=epsilon)
    found = total(Part((), 0.0), (Part((event,), 0.0),), *target, 2)
    assert found.epsilon == pytest.approx(steps * epsilon)
    assert worst_delta(mechanism, nothing, states, *target, found.epsilon + 0.01) < 1e-4
    assert worst_delta(mechanism, nothing, states, *target, found.epsilon - epsilon) > 1e-2


# What is stated ------------------------------------------------------------------------------------------------


def gaussian(multiplier, unit=IMAGE, relation=ZERO, count=1):
    return Event("gaussian", unit, relation, multiplier, count=count)


def test_events_of_one_unit_and_relation_stand_on_one_ledger():
    own, other = gaussian(0.89), gaussian(1.54, count=3)
    found = total(Part((own,), 1e-5), (Part((other,), 1e-6),), IMAGE, ZERO)
    assert (found.epsilon, found.delta) == (compose_epsilon([own, other], 1e-5), 1e-5)
    alone = [compose_epsilon([event], 1e-5) for event in (own, other)]
    assert max(alone) < found.epsilon < sum(alone)  # less than their sum, at the same delta


def test_zero_out_is_had_from_replace_one_and_the_reverse_costs_the_group_rule():
    own, other = gaussian(1.0, relation=ZERO), gaussian(1.5, relation=REPLACE)
    free = total(Part((own,), 1e-5), (Part((other,), 1e-5),), IMAGE, ZERO)
    assert (free.epsilon, free.delta) == (compose_epsilon([own, gaussian(1.5)], 1e-5), 1e-5)
    dear = total(Part((other,), 1e-5), (Part((own,), 1e-5),), IMAGE, REPLACE)
    assert dear.delta == 2e-5  # deltas are added too
    carried = dear.epsilon - compose_epsilon([other], 1e-5)
    # Two steps of a Gaussian are one of half the noise: the group rule, which knows nothing of noise, costs more.
    assert compose_epsilon([gaussian(0.5, relation=REPLACE)], 1e-5) < carried
    assert carried > 2 * compose_epsilon([own], 1e-5)
    # and it is the rule of `for_group`, at a delta that leaves the group's where it was
    deltas = 1e-5 * 10.0 ** -np.arange(0, 40, 0.02)
    groups = [Guarantee(compose_epsilon([own], float(d)), float(d), IMAGE, ZERO, "").for_group(2) for d in deltas]
    best = min(group.epsilon for group in groups if group.delta <= 1e-5)
    assert best * 0.999 <= carried <= best * 1.02


def test_a_person_costs_the_group_rule_by_the_public_cap():
    other = Event("laplace", IMAGE, REPLACE, noise_multiplier=4.0)
    for most in (1, 2, 20):
        found = total(Part((), 0.0), (Part((other,), 0.0),), PERSON, ZERO, most)
        assert (found.epsilon, found.delta) == (pytest.approx(most / 4), 0.0)
    sampled = Event("poisson-gaussian", IMAGE, ZERO, 2.0, sample_rate=0.01, count=100)
    twenty = total(Part((gaussian(1.0, PERSON),), 1e-5), (Part((sampled,), 1e-5),), PERSON, ZERO, 20)
    assert compose_epsilon([gaussian(1.0, PERSON)], 1e-5) + 20 * compose_epsilon([sampled], 1e-5) < twenty.epsilon < 200


def test_a_total_is_at_least_each_part_and_does_not_depend_on_the_order():
    rng = np.random.default_rng(2)
    for _ in range(10):
        parts = [
            Part((gaussian(float(rng.uniform(0.8, 3)), IMAGE, relation),), 1e-5)
            for relation in rng.choice([ZERO, REPLACE], 4).tolist()
            for relation in [Relation(relation)]
        ]
        found = total(Part((gaussian(1.0),), 1e-5), tuple(parts), IMAGE, ZERO)
        turned = total(Part((gaussian(1.0),), 1e-5), tuple(reversed(parts)), IMAGE, ZERO)
        assert found.epsilon == pytest.approx(turned.epsilon, rel=1e-12)
        assert found.epsilon > max(compose_epsilon(part.events, 1e-5) for part in parts)
        fewer = total(Part((gaussian(1.0),), 1e-5), tuple(parts[1:]), IMAGE, ZERO)
        assert fewer.epsilon < found.epsilon


def test_what_proves_nothing_makes_the_total_infinite():
    raw, pixels = Event.non_private("raw images"), Event("laplace", Unit.PIXEL, REPLACE, noise_multiplier=4.0)
    for event in (raw, pixels):
        found = total(Part((gaussian(1.0),), 1e-5), (Part((event,), 0.0),), IMAGE, ZERO)
        assert not found.finite
        assert found.delta == 0


def test_a_randomized_response_counts_as_its_pure_epsilon():
    response = Event("randomized-response", IMAGE, REPLACE, pure_epsilon=1.5, categories=10)
    found = total(Part((), 0.0), (Part((response,), 0.0),), IMAGE, ZERO)
    assert (found.epsilon, found.relation) == (1.5, ZERO)


def test_a_part_is_of_one_pair():
    with pytest.raises(InputError, match="of one unit and one relation"):
        Part((gaussian(1.0), gaussian(1.0, PERSON)), 1e-5)
    part = Part((gaussian(1.0), gaussian(2.0)), 1e-5)
    assert Part.from_json(part.to_json()) == part
