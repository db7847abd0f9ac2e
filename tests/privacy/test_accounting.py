"""Golden values (source: math.md section 5 and architecture.md, recomputed with dp_accounting 0.6.0) and inverses."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from idpgan.errors import InputError
from idpgan.privacy import Event, Relation, Unit, calibrate, compose_epsilon
from idpgan.privacy.accounting import _discrete_laplace_delta, _interval, _zcdp_delta, affordable, event_pld

REPLACE, ADD = (Unit.IMAGE, Relation.REPLACE_ONE), (Unit.IMAGE, Relation.ZERO_OUT)


def dp_sgd(count=2250, noise_multiplier=1.5, sample_rate=0.04):
    return Event("poisson-gaussian", *ADD, noise_multiplier, count, sample_rate=sample_rate)


@pytest.mark.parametrize(("multiplier", "epsilon"), [(14, 9.82343), (28, 4.33768), (78, 1.37401)])
def test_golden_n_fold_laplace(multiplier, epsilon):
    assert compose_epsilon([Event("laplace", *REPLACE, float(multiplier), 784)], 1e-5) == pytest.approx(
        epsilon, abs=1e-3
    )


def test_golden_dp_sgd_and_opacus_cross_check():
    ours = compose_epsilon([dp_sgd()], 1e-5)
    assert ours == pytest.approx(6.768787, abs=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant, RDPAccountant

        prv, rdp = PRVAccountant(), RDPAccountant()
        for accountant in (prv, rdp):
            accountant.history = [(1.5, 0.04, 2250)]
        assert rdp.get_epsilon(1e-5) == pytest.approx(7.329111, abs=1e-5)
        assert prv.get_epsilon(1e-5) == pytest.approx(6.779132, abs=1e-5)
    assert ours < 6.779132 < 7.329111  # both upper bounds; the PRV accountant adds its error bound


def test_golden_mixed_composition():
    """Laplace(1) and 10-ary randomised response with noise parameter 0.5, replace-one (architecture.md)."""
    events = [
        Event("laplace", *REPLACE, 1.0),
        Event("randomised-response", *REPLACE, pure_epsilon=math.log(11), categories=10),
    ]
    assert compose_epsilon(events, 1e-5) == pytest.approx(3.3979, abs=1e-4)
    assert compose_epsilon(events, 0.0) == pytest.approx(1 + math.log(11))


def test_delta_zero_is_answered_by_the_pure_sum():
    """10,304 x Laplace at scale 10,304: 1.0, where dp_accounting's own accountant says 0.067 at delta = 0."""
    event = Event("laplace", *REPLACE, 10304.0, 10304)
    assert compose_epsilon([event], 0.0) == pytest.approx(1.0, rel=1e-12)
    assert compose_epsilon([event], 1e-15) == pytest.approx(1.0, rel=1e-12)
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    theirs = PLDAccountant().compose(dp_accounting.LaplaceDpEvent(10304.0), 10304).get_epsilon(0.0)
    assert theirs < 0.1  # when this fails the library has been mended: say so in architecture.md
    # At delta = 1e-5 the sum of 10,304 tiny losses is Gaussian: mu = 1 / sqrt(10304) (Dong, Roth, Su 2022).
    assert compose_epsilon([event], 1e-5) == pytest.approx(_gaussian_epsilon(1 / math.sqrt(10304), 1e-5), rel=1e-3)
    assert _interval([event]) <= 1 / 10304 / 10


def _gaussian_epsilon(mu, delta):
    """Balle and Wang 2018, equation 6, for sensitivity / std = mu."""

    def excess(epsilon):
        return norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2) - delta

    return brentq(excess, 0, 200 * mu + 5 * mu**2)


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 3.7307])
def test_gaussian_against_the_analytic_formula(multiplier):
    for relation in (REPLACE, ADD):  # the multiplier is for the event's own relation: no doubling
        ours = compose_epsilon([Event("gaussian", *relation, multiplier)], 1e-5)
        assert ours == pytest.approx(_gaussian_epsilon(1 / multiplier, 1e-5), abs=2e-4)


def _brute_force_delta(log_p, log_q, epsilon):
    p, q = np.exp(log_p), np.exp(log_q)
    return np.maximum(p - math.exp(epsilon) * q, 0).sum()


@pytest.mark.parametrize(("sensitivity", "scale"), [(1, 1), (2, 3), (7, 2), (30, 100)])
def test_discrete_laplace_curve_against_enumeration(sensitivity, scale):
    x = np.arange(-4000, 4001)
    log_normaliser = np.log(np.exp(-abs(x) / scale).sum())
    log_p, log_q = -abs(x) / scale - log_normaliser, -abs(x - sensitivity) / scale - log_normaliser
    epsilons = np.linspace(0, 1.2 * sensitivity / scale, 23)
    expected = [_brute_force_delta(log_p, log_q, epsilon) for epsilon in epsilons]
    assert _discrete_laplace_delta(sensitivity, scale, epsilons) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("shift", "scale"), [((1,), 1), ((3,), 2), ((1, 1, 1), 2), ((2, -1), 3)])
def test_discrete_gaussian_bound_against_enumeration(shift, scale):
    """The vector is enumerated exactly; the zCDP bound must lie above, and not absurdly so."""
    x = np.arange(-60, 61)
    log_weight = -(x**2) / (2 * scale**2)
    log_p = log_weight - np.log(np.exp(log_weight).sum())
    joint_p, joint_q = np.zeros(1), np.zeros(1)
    for step in shift:
        log_q = -((x - step) ** 2) / (2 * scale**2) - np.log(np.exp(log_weight).sum())
        joint_p = np.add.outer(joint_p, log_p).ravel()
        joint_q = np.add.outer(joint_q, log_q).ravel()
    rho = sum(step**2 for step in shift) / (2 * scale**2)
    epsilons = np.array([0.0, 0.1, 0.5, 1.0, 2.0])
    exact = np.array([_brute_force_delta(joint_p, joint_q, epsilon) for epsilon in epsilons])
    bound = _zcdp_delta(rho, epsilons)
    assert (bound >= exact).all()
    assert (_zcdp_delta(rho / 2, epsilons) < exact).any()  # control: half the sensitivity^2 is not enough


def test_the_pld_of_a_curve_dominates_it():
    event = Event("discrete-laplace", *REPLACE, 10 / 3, sensitivity=3)
    curve = event_pld(event, 1e-4)
    for epsilon in (0.0, 0.05, 0.1, 0.25, 0.3):
        exact = _discrete_laplace_delta(3, 10.0, np.array([epsilon]))[0]
        assert exact <= curve.get_delta_for_epsilon(epsilon) + 1e-12 <= exact + 1e-3


def test_discrete_gaussians_add_up_as_zcdp():
    one = compose_epsilon([Event("gaussian", *ADD, 4.05)], 1e-5)
    many = [
        Event("gaussian", *ADD, 4.05 * math.sqrt(3), 2),
        Event("gaussian", *ADD, 4.05 * math.sqrt(3)),
    ]
    assert compose_epsilon(many, 1e-5) == pytest.approx(one, rel=1e-9)
    assert one >= _gaussian_epsilon(1 / 4.05, 1e-5)  # never below the continuous Gaussian of the same size
    mixed = compose_epsilon([*many, Event("laplace", *ADD, 10.0)], 1e-5)
    assert one < mixed <= one + 0.1 + 0.06  # a PLD of a bound composes a little less tightly


def test_unprotected_reads_are_infinite_for_ever():
    assert compose_epsilon([dp_sgd(1), Event.non_private("raw images", *ADD)], 1e-5) == math.inf


def test_refusals():
    with pytest.raises(InputError, match="do not compose"):
        compose_epsilon([Event("laplace", *REPLACE, 1.0), Event("laplace", *ADD, 1.0)], 1e-5)
    with pytest.raises(InputError, match="delta"):
        compose_epsilon([dp_sgd()], 1.0)
    assert compose_epsilon([], 1e-5) == 0.0


EVENTS = st.sampled_from(
    [
        Event("laplace", *ADD, 3.0),
        Event("gaussian", *ADD, 3.0),
        Event("discrete-laplace", *ADD, 3.0, sensitivity=20),
        Event("gaussian", *ADD, 3.0),
        Event("exponential", *ADD, pure_epsilon=0.3),
        dp_sgd(1, 1.0, 0.1),
    ]
)


@settings(max_examples=15, deadline=None)
@given(EVENTS, EVENTS, st.integers(1, 20))
def test_more_reads_cost_more_and_never_more_than_the_pure_sum(first, second, count):
    one = compose_epsilon([first], 1e-6)
    more = compose_epsilon([first, second.repeated(count)], 1e-6)
    assert one <= more * (1 + 1e-9)
    assert more <= first.pure + count * second.pure
    assert compose_epsilon([second.repeated(count), first], 1e-6) == pytest.approx(more, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.3, 3.0])
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_calibration_inverts_accounting(kind, epsilon):
    multiplier = calibrate(lambda m: [Event(kind, *ADD, m, 3)], epsilon, 1e-5)
    assert compose_epsilon([Event(kind, *ADD, multiplier, 3)], 1e-5) <= epsilon
    assert compose_epsilon([Event(kind, *ADD, multiplier * 0.999, 3)], 1e-5) > epsilon


def test_hardly_any_noise_costs_a_large_epsilon_and_no_overflow():
    """Calibration to a large epsilon asks for such multipliers; the library's grid overflowed on them."""

    def steps(multiplier):
        return [Event("poisson-gaussian", Unit.IMAGE, Relation.ZERO_OUT, multiplier, sample_rate=0.02).repeated(56)]

    assert compose_epsilon(steps(0.05), 1e-5) > 200  # one step's loss is about 1 / (2 * 0.05^2)
    multiplier = calibrate(steps, 50.0, 1e-5)
    assert 49 <= compose_epsilon(steps(multiplier), 1e-5) <= 50


def test_calibration_refuses_the_impossible():
    with pytest.raises(InputError, match="no amount of noise"):
        calibrate(lambda m: [Event("exponential", *ADD, pure_epsilon=2.0)], 1.0, 1e-5)
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="positive and finite"):
            calibrate(lambda m: [Event("gaussian", *ADD, m)], epsilon, 1e-5)


def test_affordable_steps_are_the_last_that_fit():
    event = Event("laplace", *ADD, 10.0)
    count = affordable([], event, 1.0, 1e-5)
    assert compose_epsilon([event.repeated(count)], 1e-5) <= 1.0 < compose_epsilon([event.repeated(count + 1)], 1e-5)
    assert affordable([], event, 1.0, 0.0) == 10
    assert affordable([event.repeated(10)], event, 1.0, 0.0) == 0
    assert affordable([], Event.non_private("raw", *ADD), 1.0, 1e-5) == 0


@pytest.mark.slow
def test_dp_sgd_steps_are_affordable_up_to_the_golden_count():
    assert affordable([], dp_sgd(1), 6.768788, 1e-5) == 2250
