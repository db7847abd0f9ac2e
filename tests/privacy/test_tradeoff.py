"""Between (epsilon, delta) and trade-off curves: published values, inverses, and the Gaussian curve from its events."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from idpgan.audit.bounds import is_nearly_gaussian
from idpgan.privacy import Event, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.tradeoff import (
    Tradeoff,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    proven_separation,
    separation,
)

PAIR = (Unit.IMAGE, Relation.ZERO_OUT)


def test_the_gaussian_curve_is_that_of_balle_and_wang():
    # Their Theorem 8, term by term; mu = 1 costs 4.377 at 1e-5.
    for mu, epsilon in ((0.3, 0.1), (1.0, 1.0), (2.0, 10.0)):
        plain = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert gaussian_delta(mu, epsilon) == pytest.approx(plain, rel=1e-9)
    assert gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-4)


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.1])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 10.0, 300.0])
def test_epsilon_and_mu_are_inverse(epsilon, delta):
    assert gaussian_epsilon(gaussian_mu(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-6)


def test_ends_of_the_scale():
    assert gaussian_epsilon(0.0, 1e-5) == gaussian_epsilon(1e-9, 1e-5) == 0.0
    assert gaussian_epsilon(1.0, 0.0) == gaussian_mu(math.inf, 1e-5) == math.inf
    assert separation(np.array([0.2, 0.0, 1.0]), np.array([0.4, 0.0, 0.0])).tolist() == [0.0, 0.0, math.inf]


def test_no_test_misses_less_than_the_guarantee_forces_on_it():
    """Randomized response at epsilon is the tight case: FPR = 1 / (1 + e^epsilon), and as many misses."""
    for epsilon in (0.1, 1.0, 5.0):
        lie = 1 / (1 + math.exp(epsilon))
        assert Tradeoff.at(epsilon, 0.0).misses(lie) == pytest.approx(lie)
    assert Tradeoff.at(0.0, 0.0).misses(0.3) == pytest.approx(0.7)
    assert Tradeoff.at(1.0, 0.5).misses(0.5) == 0.0


def test_what_the_events_allow_at_a_false_positive_rate():
    """A Gaussian as a sampled one of rate 1 goes through the accountant's curve, and comes out as itself."""
    event = Event("poisson-gaussian", *PAIR, 1.0, sample_rate=1.0)
    cost = compose_epsilon([event], 1e-5)
    for rate in (0.02, 0.3):
        found = proven_separation((event,), rate, cost, 1e-5)
        assert 1.0 - 1e-6 <= found <= 1.003
    same = Event("gaussian", *PAIR, 1.0)
    assert proven_separation((same,), 0.1, gaussian_epsilon(1.0, 1e-5), 1e-5) == pytest.approx(1.0)
    response = Event("exponential", *PAIR, pure_epsilon=1.0)
    lie = 1 / (1 + math.e)
    assert proven_separation((response,), lie, 1.0, 0.0) == pytest.approx(2 * norm.isf(lie), rel=1e-3)
    assert proven_separation((Event.non_private("raw", *PAIR),), 0.1, math.inf, 0.0) == math.inf
    assert is_nearly_gaussian([event, same])
    assert not is_nearly_gaussian([event, response])
    assert not is_nearly_gaussian([])
