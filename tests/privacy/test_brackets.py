"""The accountant between the brackets of a second, independent one (brackets.py), and controls that must fall out."""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_pld
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from idpgan.privacy import Event, Relation, Unit, accounting, compose_epsilon, convolution, losses
from tests.privacy import brackets

PAIR = (Unit.IMAGE, Relation.ZERO_OUT)
REPLACE = (Unit.IMAGE, Relation.REPLACE_ONE)
DELTAS = (1e-5, 1e-7, 1e-9, 1e-11)
BELOW_THE_FLOOR = (1e-13, 1e-15)

LAPLACE = (Event("laplace", *PAIR, 5.0), brackets.laplace_loss(0.2))
DISCRETE_LAPLACE = (Event("discrete-laplace", *PAIR, 4.0, sensitivity=6), brackets.discrete_laplace_loss(6, 24))
GAUSSIAN = (Event("gaussian", *PAIR, 6.0), brackets.gaussian_loss(1 / 6))
ROUNDED_GAUSSIAN = (Event("gaussian", *PAIR, 60 / 12), brackets.rounded_gaussian_loss(12, 60))
POISSON = (Event("poisson-gaussian", *PAIR, 1.1, sample_rate=0.1), brackets.poisson_gaussian_loss(1 / 1.1, 0.1))
RARE_POISSON = (Event("poisson-gaussian", *PAIR, 0.7, sample_rate=0.01), brackets.poisson_gaussian_loss(1 / 0.7, 0.01))
PURE = (Event("exponential", *PAIR, pure_epsilon=0.25), brackets.randomized_response_loss(0.25, 2))
RESPONSE = (
    Event("randomized-response", *REPLACE, pure_epsilon=0.4, categories=10),
    brackets.randomized_response_loss(0.4, 10),
)
REPLACED_LAPLACE = (Event("laplace", *REPLACE, 5.0), brackets.laplace_loss(0.2))

# What is composed, with the step of the brackets' grid.
FEW = {
    "laplace": ([(LAPLACE, 32)], 2e-3),
    "discrete laplace": ([(DISCRETE_LAPLACE, 16)], 1e-3),
    "gaussian": ([(GAUSSIAN, 16)], 2e-3),
    "rounded gaussian": ([(ROUNDED_GAUSSIAN, 4)], 2e-3),
    "poisson": ([(POISSON, 12)], 4e-3),
    "rare poisson": ([(RARE_POISSON, 8)], 5e-3),
    "pure": ([(PURE, 32)], 2e-3),
    "response": ([(RESPONSE, 32)], 4e-3),
    "gaussian and poisson": ([(GAUSSIAN, 2), (POISSON, 8)], 4e-3),
    "all kinds": ([(LAPLACE, 3), (DISCRETE_LAPLACE, 2), (GAUSSIAN, 1), (POISSON, 4), (PURE, 2)], 5e-3),
    "laplace and response": ([(REPLACED_LAPLACE, 10), (RESPONSE, 3)], 2e-3),
    "one poisson": ([(POISSON, 1)], 2e-3),
    "one laplace": ([(LAPLACE, 1)], 2e-4),
}
MANY = {
    "laplace": ([(LAPLACE, 256)], 4e-4),
    "discrete laplace": ([(DISCRETE_LAPLACE, 256)], 5e-4),
    "poisson": ([(POISSON, 256)], 1e-3),
    "gaussian and poisson": ([(GAUSSIAN, 64), (POISSON, 128)], 1e-3),
    "all kinds": ([(LAPLACE, 40), (DISCRETE_LAPLACE, 40), (GAUSSIAN, 40), (POISSON, 40), (PURE, 40)], 1e-3),
}


def _check(parts, step, widest):
    events = [event.repeated(count) for (event, _), count in parts]
    deltas = DELTAS + BELOW_THE_FLOOR
    found = brackets.epsilon_brackets([(loss, count) for (_, loss), count in parts], deltas, step)
    for delta, (lower, upper) in zip(deltas, found, strict=True):
        ours = compose_epsilon(events, delta)
        assert lower <= ours * (1 + 1e-9), f"understated at delta = {delta}"
        if delta in DELTAS:
            assert upper - lower <= widest * upper  # the brackets are worth something
            assert ours <= 1.01 * upper, f"overstated at delta = {delta}"
    # Control: half the sensitivity must fall out below.
    noisier = [_halved(event) for event in events]
    assert compose_epsilon(noisier, 1e-5) < found[0][0]


def _halved(event):
    if event.noise_multiplier is not None:
        return dataclasses.replace(event, noise_multiplier=2 * event.noise_multiplier)
    return dataclasses.replace(event, pure_epsilon=event.pure_epsilon / 2)


@pytest.mark.parametrize("name", FEW)
def test_between_the_brackets(name):
    _check(*FEW[name], widest=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_many_reads_between_the_brackets(name):
    _check(*MANY[name], widest=0.06)


@pytest.mark.parametrize(("multiplier", "rate", "count", "step"), [(1.1, 0.1, 12, 4e-3), (0.7, 0.01, 4, 6e-3)])
def test_tiny_deltas_are_priced_by_the_distribution_too(multiplier, rate, count, step, monkeypatch):
    """Below 1e-15 the rounding of the other direction, or noise beyond 9.2 deviations, once dropped it: 17 % more."""
    monkeypatch.setattr(brackets, "_DROPPED", 1e-60)
    loss, deltas = brackets.poisson_gaussian_loss(1 / multiplier, rate, reach=14), (1e-16, 1e-20, 1e-28)
    event = Event("poisson-gaussian", *PAIR, multiplier, count, sample_rate=rate)
    found = brackets.epsilon_brackets([(loss, count)], deltas, step)
    for delta, (lower, upper) in zip(deltas, found, strict=True):
        assert upper <= 1.02 * lower
        assert lower <= compose_epsilon([event], delta) <= 1.001 * upper
        assert accounting._renyi_epsilon(0.0, (event,), delta) > 1.02 * upper  # what it was
    assert compose_epsilon([dataclasses.replace(event, count=count // 2)], 1e-20) < found[1][0]


@pytest.mark.parametrize("delta", [1e-12, 1e-16, 1e-20, 1e-28])
def test_one_sampled_read_costs_what_its_formula_says_at_any_delta(delta):
    """The errors of a single read are a share of its own curve: below 1e-15 they were counted as more than delta."""
    mu, rate = 1 / 1.2, 0.01

    def curve(epsilon):
        place = math.log1p(math.expm1(epsilon) / rate) / mu + mu / 2
        return rate * ndtr(mu - place) - (math.expm1(epsilon) + rate) * ndtr(-place)

    exact = brentq(lambda epsilon: math.log(curve(epsilon) / delta), 1e-3, 6)
    assert exact * (1 - 1e-9) <= compose_epsilon([Event("poisson-gaussian", *PAIR, 1.2, sample_rate=rate)], delta)
    assert compose_epsilon([Event("poisson-gaussian", *PAIR, 1.2, sample_rate=rate)], delta) <= exact * 1.001


def test_a_vector_of_rounded_gaussians_costs_no_more_than_the_gaussian():
    """Moved by (3, 4), the two numbers' losses add: the Gaussian of distance 5 must lie above, that of 4 must not."""
    parts = [(brackets.rounded_gaussian_loss(3, 10), 1), (brackets.rounded_gaussian_loss(4, 10), 1)]
    for delta, (lower, upper) in zip(DELTAS, brackets.epsilon_brackets(parts, DELTAS, 2e-3), strict=True):
        assert lower <= compose_epsilon([Event("gaussian", *PAIR, 10 / 5)], delta) <= 1.01 * upper
        assert compose_epsilon([Event("gaussian", *PAIR, 10 / 4)], delta) < lower


@pytest.mark.parametrize("delta", [1e-5, 1e-12, 1e-40])
def test_the_error_term_covers_what_the_fourier_transform_loses(delta):
    """Randomized response on the grid is composed without discretization, and its exact curve is a binomial sum.

    The error is a small share of delta, however small: the transform is tilted. Control: without the bound, and as the
    plain transform leaves it, the curve falls below the truth.
    """
    pure, count = 2.0**-7, 10_000
    event = Event("exponential", *PAIR, pure_epsilon=pure)
    part = losses.event_losses(event, pure / 4)[0]
    _, composed = convolution._compose([(part, count)], delta)
    _, of_transform = convolution._compose([(dataclasses.replace(part, error=0.0, share=1e-300), count)], delta)
    truths = np.arange(count + 1)
    total = pure * (2 * truths - count)
    masses = np.exp(binom.logpmf(truths, count, 1 / (1 + math.exp(-pure))))

    def exact(epsilon):
        return float(np.sum(masses * -np.expm1(np.minimum(epsilon - total, 0.0))))

    epsilon = brentq(lambda e: math.log(exact(e) / delta), 0, 20 * pure * math.sqrt(count))
    for near in epsilon + np.linspace(-0.5, 0.5, 21):
        assert composed.delta(near) >= exact(near) * (1 - 1e-9)
    assert of_transform.error_at(epsilon) <= 1e-6 * delta
    assert of_transform.delta(epsilon) <= exact(epsilon) * (1 + 1e-6)
    assert composed.error_at(epsilon) <= 1e-4 * delta  # with the construction's
    plain = np.fft.irfft(np.fft.rfft(part.masses, 1 << 17) ** count, 1 << 17)
    at = part.interval * (np.arange(1 << 17) + part.first * count)
    short = [float(plain[at > e] @ -np.expm1(e - at[at > e])) - exact(e) for e in epsilon + np.linspace(-0.5, 0.5, 21)]
    assert min(short) < 0
    assert delta > 1e-10 or min(short) < -0.1 * delta  # a tenth of a small delta, all of a tiny one


def test_the_composition_that_the_review_caught_still_understates():
    """Control: 10^5 Gaussians (mu = 4) by dp_accounting at delta = 1e-12; the truth is 35.56, and so are we."""
    truth = 35.5620
    single = dp_pld.from_gaussian_mechanism(math.sqrt(1e5) / 4, value_discretization_interval=1e-4)
    assert single.self_compose(100_000).get_epsilon_for_delta(1e-12) < 0.99 * truth
    event = Event("gaussian", *PAIR, math.sqrt(1e5) / 4, 100_000)
    assert truth <= compose_epsilon([event], 1e-12) <= truth * (1 + 1e-5)
    assert 31.3818 <= compose_epsilon([event], 1e-9) <= 31.3819
    # And not by the closed form alone: the same reads, composed one by one.
    part = losses.event_losses(event.single, 2.0**-13)
    epsilon, _ = convolution.compose([(part, 100_000)], 1e-9)
    assert 31.3818 <= epsilon <= 31.40


@pytest.mark.parametrize(
    ("mu", "rate"), [(0.5, 1.0), (1 / 1.1, 0.1), (12.0, 0.3), (0.02, 0.01), (1.4, 1e-5), (3.3, 1e-3)]
)
def test_the_construction_error_is_within_its_bound(mu, rate):
    """Against 60 digits: no curve of a read lies below the true one by more than is stated, in either direction.

    Control: with a ten-thousandth of the bound one does. The first loop checks what `losses` supposes of scipy.
    """
    mpmath = pytest.importorskip("mpmath")
    kind = "gaussian" if rate == 1 else "poisson-gaussian"
    event = Event(kind, *PAIR, 1 / mu, sample_rate=None if rate == 1 else rate)
    forward, backward = losses.event_losses(event, next(losses.intervals([event])))
    tightest = 0.0
    with mpmath.workdps(60):
        for x in np.linspace(-9.2 - mu, 9.2, 150):
            relative = float(ndtr(x)) / mpmath.ncdf(mpmath.mpf(float(x))) - 1
            assert abs(relative) <= (8 + 3 * x * x) * losses.ROUND_OFF
        exact_mu, q = 1 / mpmath.mpf(1 / mu), mpmath.mpf(rate)
        above = np.cumsum(forward.masses[::-1])[::-1]
        chances = np.concatenate([np.linspace(0.99, 0.01, 30), np.geomspace(1e-3, 1e-18, 10)])
        for place in np.searchsorted(-above, -chances * above[0]):
            loss = mpmath.mpf(float(forward.grid[place]))
            inner = (mpmath.expm1(loss) + q) / q
            if inner <= 0:
                continue
            x = mpmath.log(inner) / exact_mu + exact_mu / 2
            lower, shifted = mpmath.ncdf(-x), mpmath.ncdf(exact_mu - x)
            exact = q * shifted - (mpmath.expm1(loss) + q) * lower
            missing = exact - _dots(forward, float(loss))
            assert missing <= min(forward.error, forward.share * ((1 - q) * lower + q * shifted))
            tightest = max(tightest, float(missing / forward.error))
            ratio = mpmath.exp(-loss)
            opposite = (1 - ratio * (1 - q)) * mpmath.ncdf(x) - ratio * q * mpmath.ncdf(x - exact_mu)
            granted = backward.error + (backward.share * opposite if loss > 0 else 0)
            assert opposite - _dots(backward, -float(loss)) <= granted
    assert tightest > 1e-4
    assert forward.error <= 1e-14 * (1 + mu * mu) * rate  # the rarer, the less


def _dots(law, epsilon):
    """Return the curve of the masses alone at a grid point, summed without rounding."""
    above = law.grid > epsilon
    return math.fsum(law.masses[above] * -np.expm1(epsilon - law.grid[above])) + law.beyond
