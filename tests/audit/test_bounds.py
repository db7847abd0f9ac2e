"""The numbers behind an audited epsilon: intervals, cap, threshold, and that a result can be computed again."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, norm

from idpgan.audit.bounds import AuditResult, Separation, cap, choose, clopper_pearson, epsilon_bound, separation_bound
from idpgan.errors import InputError


@pytest.mark.parametrize("trials", [1, 7, 5000])
def test_intervals_are_those_of_the_beta_distribution(trials):
    count = np.unique(np.linspace(0, trials, 20).astype(int))
    low, high = clopper_pearson(count, trials, 0.025)
    inner = count[(count > 0) & (count < trials)]
    inside = np.isin(count, inner)
    assert low[inside] == pytest.approx(beta.ppf(0.025, inner, trials - inner + 1))
    assert high[inside] == pytest.approx(beta.ppf(0.975, inner + 1, trials - inner))
    assert (low[0], high[-1]) == (0.0, 1.0)
    assert (1 - high[0], low[-1]) == pytest.approx((0.025 ** (1 / trials),) * 2)


def test_the_interval_covers_as_often_as_it_says():
    rng, trials, truth = np.random.default_rng(1), 400, 0.03
    low, high = clopper_pearson(rng.binomial(trials, truth, 20_000), trials, 0.025)
    assert (low > truth).mean() <= 0.027
    assert (high < truth).mean() <= 0.027
    normal = rng.binomial(trials, truth, 20_000) / trials  # control: the normal approximation fails too often
    assert (normal + 1.96 * np.sqrt(normal * (1 - normal) / trials) < truth).mean() > 0.04


@pytest.mark.parametrize(("held_out", "expected"), [(10**4, 7.9), (10**5, 10.2), (10**6, 12.5)])
def test_the_cap_is_that_of_the_mathematics_page(held_out, expected):
    assert cap(held_out) == pytest.approx(expected, abs=0.05)
    assert cap(held_out) == pytest.approx(math.log(held_out / -math.log(0.025)), abs=1e-3)
    assert cap(held_out, confidence=0.999) < cap(held_out) < cap(2 * held_out)


def test_the_bound_is_the_formula_in_both_tails():
    tpr, fpr, trials, delta = 900, 100, 1000, 1e-3
    low, high = beta.ppf(0.025, tpr, trials - tpr + 1), beta.ppf(0.975, fpr + 1, trials - fpr)
    expected = max(math.log((low - delta) / high), math.log((1 - high - delta) / (1 - low)))
    assert float(epsilon_bound(np.array(tpr), np.array(fpr), trials, delta, 0.95)) == pytest.approx(expected)
    rare = [(20, 0), (1000, 980)]  # a rare event on the neighbor; its mirror image: a rare event on the data
    one, other = (float(epsilon_bound(np.array(t), np.array(f), trials, 0.0, 0.95)) for t, f in rare)
    assert one == pytest.approx(other)
    assert one > 1


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500), st.floats(0, 0.2), st.floats(0.5, 0.999))
def test_the_bound_never_exceeds_what_was_counted_nor_the_cap(true, false, delta, confidence):
    bound = float(epsilon_bound(np.array(true), np.array(false), 500, delta, confidence))
    with np.errstate(divide="ignore"):
        seen = max(np.log(true) - np.log(max(false, 1e-9)), np.log(500 - false) - np.log(max(500 - true, 1e-9)))
    assert bound <= seen + 1e-12
    assert bound <= cap(500, confidence, delta) + 1e-12


def test_the_bound_fails_no_more_often_than_it_says():
    """Randomized response at its true epsilon: the exact worst event, so any looser interval would show."""
    rng, trials, epsilon = np.random.default_rng(2), 500, 1.0
    tpr = math.e / (1 + math.e)
    true, false = rng.binomial(trials, tpr, 20_000), rng.binomial(trials, 1 - tpr, 20_000)
    bounds = epsilon_bound(true, false, trials, 0.0, 0.9)
    assert (bounds > epsilon).mean() <= 0.1
    assert (epsilon_bound(true, false, trials, 0.0, 0.3) > epsilon).mean() > 0.1  # control
    assert bounds.mean() > 0.7


@pytest.mark.parametrize("direction", [1, -1])
def test_choose_finds_direction_and_threshold(direction):
    rng = np.random.default_rng(3)
    data, neighbor = rng.normal(0, 1, 5000), rng.normal(direction * 8.0, 1, 5000)
    choice, _ = choose(data, neighbor, 0.0, 0.95)
    said = neighbor >= choice.threshold if choice.direction == 1 else neighbor < choice.threshold
    wrong = data >= choice.threshold if choice.direction == 1 else data < choice.threshold
    assert (said.mean(), wrong.mean()) == (1.0, 0.0)
    assert abs(choice.threshold) == pytest.approx(4, abs=1.5)


def test_choose_takes_infinite_and_equal_scores():
    for infinite in choose(np.zeros(1000), np.full(1000, np.inf), 0.0, 0.95):
        assert 0 < infinite.threshold < math.inf
    assert all(found.bound <= 0 for found in choose(np.zeros(1000), np.zeros(1000), 0.0, 0.95))


def test_a_result_can_be_computed_again_and_not_be_tampered_with():
    second = Separation.of_counts((900, 4000), 5000, 0.95, "y", math.inf, -1)
    result = AuditResult.of_counts(
        4000,
        300,
        runs=10_000,
        delta=1e-5,
        confidence=0.95,
        statistic="x",
        threshold=math.inf,
        direction=1,
        separation=second,
    )
    assert norm.ppf(0.8) - norm.ppf(0.18) - 0.1 < second.mu_lower < norm.ppf(0.8) - norm.ppf(0.18)
    data = result.to_json()
    assert AuditResult.from_json(data) == result
    assert repr(result).startswith(f"<AuditResult: epsilon >= {result.epsilon_lower:.4g} at delta = ")
    assert len(repr(result)) < 160
    assert result.epsilon_lower == pytest.approx(float(epsilon_bound(np.array(4000), np.array(300), 5000, 1e-5, 0.95)))
    with pytest.raises(InputError, match="the counts prove"):
        AuditResult.from_json({**data, "epsilon_lower": data["epsilon_lower"] + 0.01})
    with pytest.raises(InputError, match="prove mu"):
        AuditResult.from_json({**data, "separation": {**data["separation"], "mu_lower": 3.0}})
    with pytest.raises(InputError, match="not a bound of the separation"):
        AuditResult.from_json({**data, "separation": {}})
    with pytest.raises(InputError, match="not an audit result"):
        AuditResult.from_json({**data, "extra": 1})
    assert dataclasses.is_dataclass(result)


def test_the_separation_fails_no_more_often_than_it_says():
    """Two Gaussians of distance 1, a threshold in the middle: the bound is above 1 at most as often as allowed."""
    rng, held_out = np.random.default_rng(8), 400
    true, false = rng.binomial(held_out, norm.cdf(0.5), 4000), rng.binomial(held_out, norm.sf(0.5), 4000)
    bounds = separation_bound(true, false, held_out, 0.9)
    assert (bounds > 1).mean() <= 0.1
    assert (separation_bound(true, false, held_out, 0.1) > 1).mean() > 0.1  # control
    assert bounds.mean() > 0.75
    assert separation_bound(np.array([0, 400]), np.array([400, 400]), 400, 0.9).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("count", "trials", "alpha"), [(5, 4, 0.1), (-1, 4, 0.1), (0, 0, 0.1), (1, 4, 0.0), (1, 4, 1.0)]
)
def test_impossible_counts_are_refused(count, trials, alpha):
    with pytest.raises(InputError, match="counts"):
        clopper_pearson(np.array(count), trials, alpha)
