"""The theorems in their order, against golden values, brute force, and the accountant."""

import itertools
import math

import numpy as np
import pytest
from papers.literature.composition import (
    advanced_composition,
    closed_form_composition,
    optimal_composition,
    optimal_delta,
)

from idpgan.errors import InputError
from idpgan.privacy import Event, Relation, Unit, compose_epsilon

PAIR = (Unit.IMAGE, Relation.REPLACE_ONE)
CASES = [(0.1, 0.0, 100, 1e-5), (0.01, 0.0, 2000, 1e-6), (1.0, 0.0, 10, 1e-3), (0.1, 1e-9, 100, 1e-5)]


def test_golden_values():
    assert advanced_composition(0.1, 0.0, 100, 1e-5)[0] == pytest.approx(
        0.1 * math.sqrt(200 * math.log(1e5)) + 10 * (math.exp(0.1) - 1), rel=1e-12
    )
    assert advanced_composition(0.1, 1e-8, 100, 1e-5)[1] == pytest.approx(1.1e-5)
    found = optimal_composition(1.0, 0.0, 2, 1e-3)  # two answers: loss 2 with chance (e / (1 + e))^2
    chance = (math.e / (1 + math.e)) ** 2
    assert chance * (1 - math.exp(found - 2)) == pytest.approx(1e-3, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "delta", "count", "slack"), CASES)
def test_the_theorems_are_ordered_and_the_optimal_one_is_the_accountants(epsilon, delta, count, slack):
    total = -math.expm1(count * math.log1p(-delta) + math.log1p(-slack))
    optimal = optimal_composition(epsilon, delta, count, total)
    closed, closed_delta = closed_form_composition(epsilon, delta, count, slack)
    advanced, advanced_delta = advanced_composition(epsilon, delta, count, slack)
    assert closed_delta == pytest.approx(total)
    assert advanced_delta >= total * (1 - 1e-12)
    assert optimal < closed <= min(advanced, count * epsilon)
    kind = {"kind": "approximate", "delta": delta} if delta else {"kind": "pure"}
    ours = compose_epsilon([Event(unit=PAIR[0], relation=PAIR[1], count=count, pure_epsilon=epsilon, **kind)], total)
    assert optimal * (1 - 1e-9) <= ours <= optimal * 1.01  # the union bound of deltas and the grid, nothing else
    laplace = compose_epsilon([Event("laplace", *PAIR, 1 / epsilon, count)], total)
    assert laplace < optimal  # what knowing the noise is worth


@pytest.mark.parametrize("total_epsilon", [0.0, 0.5, 1.3, 3.9])
def test_the_optimal_delta_is_exact_by_brute_force(total_epsilon):
    epsilon, delta, count = 0.8, 0.02, 4
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    one = np.array([delta, (1 - delta) * truth, (1 - delta) * (1 - truth), 0.0])
    exact = 0.0
    for outcome in itertools.product(range(4), repeat=count):
        upper, lower = (math.prod(side[list(outcome)]) for side in (one, one[::-1]))
        exact += max(upper - math.exp(total_epsilon) * lower, 0.0)
    assert optimal_delta(epsilon, delta, count, total_epsilon) == pytest.approx(exact, rel=1e-9)
    # Failures forgotten, or one read less: another number.
    for wrong in ((epsilon, 0.0, count), (epsilon, delta, count - 1)):
        assert optimal_delta(*wrong, total_epsilon) < 0.99 * exact


def test_a_delta_below_that_of_the_reads_cannot_be_reached():
    assert optimal_composition(0.1, 1e-6, 100, 9e-5) == math.inf
    assert optimal_composition(0.1, 0.0, 1, 0.9) == 0.0


@pytest.mark.parametrize(
    "bad", [(0.0, 0.0, 1, 0.1), (1.0, 1.0, 1, 0.1), (1.0, 0.0, 0, 0.1), (1.0, 0.0, 1, 0.0), (1.0, 0.0, True, 0.1)]
)
def test_bad_numbers_are_refused(bad):
    with pytest.raises(InputError):
        advanced_composition(*bad)
