"""Divergences by name against all sets of outcomes, and against what Dwork and Roth (2014) prove of them."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from papers.literature.divergences import (
    approximate_max_divergence,
    kl_divergence,
    max_divergence,
    statistical_distance,
)

from idpgan.errors import InputError

WEIGHTS = st.lists(st.integers(1, 9), min_size=4, max_size=4)


def by_all_sets(p, q, delta):
    sets = (list(s) for size in range(1, len(p) + 1) for s in itertools.combinations(range(len(p)), size))
    return max(math.log((p[s].sum() - delta) / q[s].sum()) for s in sets if p[s].sum() > delta + 1e-12)


@given(WEIGHTS, WEIGHTS, st.sampled_from([0.0, 0.05, 0.3]))
def test_the_best_set_is_one_of_the_largest_ratios(first, second, delta):
    p, q = (np.array(each) / sum(each) for each in (first, second))
    assert approximate_max_divergence(p, q, delta) == pytest.approx(by_all_sets(p, q, delta), abs=1e-9)
    epsilon = max(max_divergence(p, q), max_divergence(q, p))
    assert -1e-12 <= kl_divergence(p, q) <= epsilon * math.expm1(epsilon) + 1e-12  # lemma 3.18
    least = approximate_max_divergence(p, q, delta)
    assert np.clip(p - math.exp(least) * q, 0, None).sum() <= delta + 1e-9  # (epsilon, delta) holds, and no less does
    assert np.clip(p - math.exp(least - 0.01) * q, 0, None).sum() > delta
    assert statistical_distance(p, q) == pytest.approx(abs(p - q).sum() / 2)


def test_the_loss_may_exceed_epsilon_more_often_than_delta():
    """The reading notes (line 288) say it does so with probability delta at most."""
    p, q = np.array([0.6, 0.4]), np.array([0.4, 0.6])
    delta = 0.1
    epsilon = max(approximate_max_divergence(p, q, delta), approximate_max_divergence(q, p, delta))
    assert p[np.log(p / q) > epsilon].sum() == pytest.approx(0.6)
    assert epsilon < math.log(1.5)


def test_an_outcome_that_one_law_lacks_has_an_infinite_loss():
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.5, 0.5, 0.0])
    assert max_divergence(p, q) == kl_divergence(p, q) == math.inf
    assert approximate_max_divergence(p, q, 0.3) < math.inf


@pytest.mark.parametrize(("p", "q", "delta"), [([1.0], [0.5, 0.5], 0), ([0.5, 0.4], [0.5, 0.5], 0), ([1.0], [1.0], 1)])
def test_what_is_no_pair_of_laws_is_refused(p, q, delta):
    with pytest.raises(InputError):
        approximate_max_divergence(np.array(p), np.array(q), delta)
