"""Totals: chains of neighbors against an enumeration, and all orders and kinds of parts against exact mechanisms."""

import itertools
import math

import numpy as np
import pytest

from idpgan.errors import InputError
from idpgan.privacy import Event, Guarantee, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.totals import Part, steps, total

ZERO, REPLACE = Relation.ZERO_OUT, Relation.REPLACE_ONE
PIXEL, COLUMN, IMAGE, PERSON, PHOTO = Unit.PIXEL, Unit.COLUMN, Unit.IMAGE, Unit.PERSON, Unit.PHOTO
PAIRS = list(itertools.product((IMAGE, PERSON), (ZERO, REPLACE)))
KINDS = [*PAIRS, (PIXEL, REPLACE)]
NULL = 0


def persons(num_images):
    """All contents of one person with so many positions, each of which holds the null record or one of two images.

    The images have one pixel, black (1) or white (2).
    """
    return list(itertools.product((NULL, 1, 2), repeat=num_images))


def neighbors(first, second, unit, relation):
    """The definitions, word for word: data sets that differ in one unit, which is absent in one of them or has others.

    Only one person differs between neighbors of either unit, so one person is all that has to be looked at.
    """
    differing = [place for place in range(len(first)) if first[place] != second[place]]
    if not differing or (unit in (IMAGE, PIXEL) and len(differing) > 1):
        return False
    if unit is PIXEL:  # both images are there, and one of the two pixels is black
        return NULL not in (first[differing[0]], second[differing[0]])
    if relation is REPLACE:
        return True
    if unit is IMAGE:
        return NULL in (first[differing[0]], second[differing[0]])
    return not any(first) or not any(second)


def distances(states, unit, relation):
    """Steps between neighbors from each content to each other one."""
    return shortest([[0 if a == b else 1 if neighbors(a, b, unit, relation) else 99 for b in states] for a in states])


def shortest(edges):
    found = np.array(edges)
    for middle in range(len(found)):
        found = np.minimum(found, found[:, [middle]] + found[[middle], :])
    return found


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("source", PAIRS)
@pytest.mark.parametrize("target", [*PAIRS, (PIXEL, ZERO), (PIXEL, REPLACE)])
def test_a_chain_is_as_long_as_the_longest_way_between_neighbors(source, target, most):
    """Not one step shorter, which would not be proven, and not one longer, which would cost too much."""
    states = persons(most)
    ways = distances(states, *source)
    longest = max(ways[i, j] for i, a in enumerate(states) for j, b in enumerate(states) if neighbors(a, b, *target))
    if most == 1 and source == (PERSON, ZERO) and target[0] is IMAGE:
        assert steps(source, target, most) >= longest  # nobody has one image only by a promise about persons
    else:
        assert steps(source, target, most) == longest


def pictures():
    """The null record, and all images of two columns of two pixels of three values, 0 is black."""
    return [None, *itertools.product((0, 1, 2), repeat=4)]


def inside(first, second, unit, relation):
    """The definitions for units inside an image."""
    if unit is IMAGE:
        return relation is REPLACE or None in (first, second)
    if None in (first, second):
        return False
    cells = [range(place, place + (1 if unit is PIXEL else 2)) for place in range(0, 4, 1 if unit is PIXEL else 2)]
    differing = [cell for cell in cells if any(first[place] != second[place] for place in cell)]
    black = [not any(each[place] for place in differing[0]) for each in (first, second)]
    return len(differing) == 1 and (relation is REPLACE or any(black))


@pytest.mark.parametrize("source", list(itertools.product((PIXEL, COLUMN, IMAGE), (ZERO, REPLACE))))
def test_a_chain_inside_an_image_is_as_long_as_the_longest_way(source):
    """A folder's total counted an image that can go, but not change, as one step for its columns and pixels: two."""
    contents = pictures()
    ways = shortest([[0 if a == b else 1 if inside(a, b, *source) else 99 for b in contents] for a in contents])
    for target in itertools.product((PIXEL, COLUMN, IMAGE), (ZERO, REPLACE)):
        needed = [
            ways[i, j] for (i, a), (j, b) in itertools.combinations(enumerate(contents), 2) if inside(a, b, *target)
        ]
        assert steps(source, target) == (max(needed) if steps((source[0], REPLACE), target) else None)


def test_what_no_chain_joins_says_nothing():
    for unit in (PIXEL, COLUMN, Unit.WINDOW, Unit.LABEL, Unit.EVENT):
        assert steps((unit, REPLACE), (IMAGE, ZERO), 5) is None
        assert steps((unit, REPLACE), (PHOTO, ZERO), 5) is None
        assert steps((unit, REPLACE), (unit, ZERO), 5) == 1
        assert steps((unit, ZERO), (unit, REPLACE), 5) == 2
    assert steps((PERSON, REPLACE), (PHOTO, ZERO), 5) is None
    assert steps((IMAGE, REPLACE), (PERSON, ZERO)) is None  # without a cap


# The stated total against exact mechanisms ---------------------------------------------------------------------


def worst_delta(mechanisms, states, unit, relation, epsilon):
    """The least delta at which independent mechanisms, rows of chances, are together (epsilon, delta)-DP."""
    both = np.ones((len(states), 1))
    for mechanism in mechanisms:
        both = (both[:, :, None] * mechanism[:, None, :]).reshape(len(states), -1)
    pairs = [(i, j) for i, a in enumerate(states) for j, b in enumerate(states) if neighbors(a, b, unit, relation)]
    first, second = (both[list(index)] for index in zip(*pairs, strict=True))
    return float(np.clip(first - math.exp(epsilon) * second, 0, None).sum(1).max())


def answers(rng, states, spread):
    """A mechanism with four answers whose chances depend on the whole content."""
    raw = np.exp(spread * rng.standard_normal((len(states), 4)))
    return raw / raw.sum(1, keepdims=True)


def part_of(mechanism, states, unit, relation, epsilon, delta):
    """What the mechanism really is at epsilon for the pair, as an event of which nothing else is known."""
    exact = worst_delta([mechanism], states, unit, relation, epsilon)
    event = Event("approximate", unit, relation, pure_epsilon=epsilon, delta=max(exact, 1e-12))
    return Part((event,), delta)


@pytest.mark.parametrize("target", KINDS)
def test_no_parts_of_any_kinds_in_any_order_cost_more_than_their_total(target):
    rng, states, checked = np.random.default_rng(5), persons(2), 0
    for kinds in itertools.combinations_with_replacement(KINDS, 3):
        mechanisms = [answers(rng, states, 0.04 + 0.02 * place) for place in range(3)]
        parts = [part_of(each, states, *kind, 0.12, 0.05) for each, kind in zip(mechanisms, kinds, strict=True)]
        found = total([parts], *target, most_per_person=2)
        bounding = [each for each, kind in zip(mechanisms, kinds, strict=True) if steps(kind, target, 2)]
        assert (found.counted, found.left_out) == (len(bounding), 3 - len(bounding))
        assert found.whole.finite == (found.guarantee.finite and len(bounding) == 3)
        if found.guarantee.finite and bounding:
            least = worst_delta(bounding, states, *target, found.guarantee.epsilon)
            assert least <= found.guarantee.delta * (1 + 1e-9)
            checked += 1
        for order in itertools.permutations(parts):
            again = total([order], *target, most_per_person=2).guarantee
            assert (again.epsilon, again.delta) == pytest.approx((found.guarantee.epsilon, found.guarantee.delta))
    assert checked >= 30


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
        ((IMAGE, ZERO), (PIXEL, ZERO), lambda s: (s[0] == 1) - (s[0] == 2)),
    ],
)
def test_a_total_that_forgot_the_group_would_be_wrong(source, target, value):
    """The control: mechanisms whose difference grows with every step of the chain, so that one step less is refuted."""
    states, epsilon = persons(2), 0.3
    mechanism = geometric(states, value, epsilon)
    assert worst_delta([mechanism], states, *source, epsilon + 0.01) < 1e-4
    event = Event("pure", *source, pure_epsilon=epsilon)
    found = together(Part((event,), 0.0), unit=target[0], relation=target[1], most=2)
    assert found.epsilon == pytest.approx(steps(source, target, 2) * epsilon)
    assert worst_delta([mechanism], states, *target, found.epsilon + 0.01) < 1e-4
    assert worst_delta([mechanism], states, *target, found.epsilon - epsilon) > 1e-2


def together(*parts, unit=IMAGE, relation=ZERO, delta=None, most=1):
    return total([parts], unit, relation, delta=delta, most_per_person=most).whole


# What is stated ------------------------------------------------------------------------------------------------


def gaussian(multiplier, unit=IMAGE, relation=ZERO, count=1):
    return Event("gaussian", unit, relation, multiplier, count=count)


def test_events_of_one_unit_and_relation_stand_on_one_ledger():
    own, other = gaussian(0.89), gaussian(1.54, count=3)
    found = together(Part((own,), 1e-5), Part((other,), 1e-6))
    assert (found.epsilon, found.delta) == (compose_epsilon([own, other], 1e-5), 1e-5)
    alone = [compose_epsilon([event], 1e-5) for event in (own, other)]
    assert max(alone) < found.epsilon < sum(alone)  # less than their sum, at the same delta


def test_zero_out_is_had_from_replace_one_and_the_reverse_costs_the_group_rule():
    own, other = gaussian(1.0, relation=ZERO), gaussian(1.5, relation=REPLACE)
    free = together(Part((own,), 1e-5), Part((other,), 1e-5))
    assert (free.epsilon, free.delta) == (compose_epsilon([own, gaussian(1.5)], 1e-5), 1e-5)
    dear = together(Part((other,), 1e-5), Part((own,), 1e-5), relation=REPLACE)
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
        found = together(Part((other,), 0.0), unit=PERSON, most=most)
        assert (found.epsilon, found.delta) == (pytest.approx(most / 4), 0.0)
    sampled = Event("poisson-gaussian", IMAGE, ZERO, 2.0, sample_rate=0.01, count=100)
    twenty = together(Part((gaussian(1.0, PERSON),), 1e-5), Part((sampled,), 1e-5), unit=PERSON, most=20)
    assert compose_epsilon([gaussian(1.0, PERSON)], 1e-5) + 20 * compose_epsilon([sampled], 1e-5) < twenty.epsilon < 200


def test_a_total_is_at_least_each_part_and_does_not_depend_on_the_order():
    rng = np.random.default_rng(2)
    for _ in range(10):
        parts = [
            Part((gaussian(float(rng.uniform(0.8, 3)), IMAGE, relation),), 1e-5)
            for relation in rng.choice([ZERO, REPLACE], 4).tolist()
            for relation in [Relation(relation)]
        ]
        found = together(Part((gaussian(1.0),), 1e-5), *parts)
        turned = together(*reversed(parts), Part((gaussian(1.0),), 1e-5))
        assert found.epsilon == pytest.approx(turned.epsilon, rel=1e-12)
        assert found.epsilon > max(compose_epsilon(part.events, 1e-5) for part in parts)
        fewer = together(Part((gaussian(1.0),), 1e-5), *parts[1:])
        assert fewer.epsilon < found.epsilon


def test_what_proves_nothing_makes_the_total_infinite():
    raw, pixels = Event.non_private("raw images"), Event("laplace", Unit.PIXEL, REPLACE, noise_multiplier=4.0)
    for event in (raw, pixels):
        found = together(Part((gaussian(1.0),), 1e-5), Part((event,), 0.0))
        assert not found.finite
        assert found.delta == 0


def test_a_randomized_response_counts_as_its_pure_epsilon():
    response = Event("randomized-response", IMAGE, REPLACE, pure_epsilon=1.5, categories=10)
    found = together(Part((response,), 0.0))
    assert (found.epsilon, found.relation) == (1.5, ZERO)


def test_a_part_is_of_one_pair():
    with pytest.raises(InputError, match="of one unit and one relation"):
        Part((gaussian(1.0), gaussian(1.0, PERSON)), 1e-5)
    part = Part((gaussian(1.0), gaussian(2.0)), 1e-5)
    assert Part.from_json(part.to_json()) == part


def test_a_part_without_a_proof_leaves_no_total_of_any_unit():
    """The releases of one process forgot it where it was of a finer unit: a picture as it is, "unit column"."""
    bad = Part((Event.non_private("blurred", COLUMN),), 0.0)
    found = total([[Part((gaussian(1.0),), 1e-5), bad]], IMAGE, ZERO)
    assert not found.guarantee.finite
    assert str(found) == "epsilon = infinite (unit image, zero-out-one)"


def test_what_is_left_out_is_said():
    pixels = Part((Event("laplace", PIXEL, REPLACE, noise_multiplier=4.0),), 0.0)
    for unit, most in ((IMAGE, None), (PHOTO, 3), (PERSON, 3)):
        own = Part((gaussian(1.0, unit),), 1e-5)
        found = total([[own, pixels]], unit, ZERO, most_per_person=most)
        assert (found.counted, found.left_out) == (1, 1)
        assert str(found).endswith(f"; not counted: 1 of units that bound no {unit}, with which the total is not known")
        assert not found.whole.finite
    images = Part((gaussian(1.0),), 1e-5)
    person = Part((gaussian(2.0, PERSON),), 1e-5)
    assert total([[images, person]], PERSON, ZERO).left_out == 1  # no cap is known
    assert total([[images, person]], PERSON, ZERO, most_per_person=3).left_out == 0


def test_the_dearest_history_counts_and_what_any_of_them_leaves_out_is_said():
    cheap, dear = Part((gaussian(3.0),), 1e-6), Part((gaussian(1.0),), 1e-5)
    pixels = Part((Event("laplace", PIXEL, REPLACE, noise_multiplier=4.0),), 0.0)
    found = total([[cheap, pixels], [cheap, dear], [pixels]], IMAGE, ZERO)
    assert found.guarantee.epsilon == compose_epsilon([gaussian(3.0), gaussian(1.0)], 1e-5)
    assert (found.counted, found.left_out, found.guarantee.delta) == (2, 1, 1e-5)
    assert total([], IMAGE, ZERO).guarantee.epsilon == 0


def test_reads_that_may_fail_add_up_to_a_delta_above_each():
    """Two releases at (1, 1e-6) had no total at all: their failures left nothing of the delta of one."""
    once = Part((Event("approximate", IMAGE, ZERO, pure_epsilon=1.0, delta=1e-6),), 1e-6)
    found = together(once, once)
    assert found.epsilon == pytest.approx(2, rel=1e-3)
    assert 2e-6 <= found.delta <= 3e-6
    assert together(once).delta == 1e-6
    carried = together(once, once, relation=REPLACE)
    assert carried.epsilon == pytest.approx(4, rel=1e-3)  # twice, and the group's delta by its rule
    assert 2e-6 * (1 + math.e**2) <= carried.delta <= 3e-6 * (1 + math.e**2)
