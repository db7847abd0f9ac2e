"""The exact samplers against their probability mass functions, with controls that must be rejected."""

import numpy as np
import pytest
from scipy.stats import chisquare

from idpgan.privacy import Noise
from idpgan.privacy.discrete import bernoulli_exp, discrete_gaussian, discrete_laplace

COUNT = 100_000


def _p_value(draws, log_weight):
    """Chi-square of integer draws against weights exp(log_weight(x)), tails pooled to expected counts >= 20."""
    reach = int(abs(draws).max()) + 200
    support = np.arange(-reach, reach + 1)
    probability = np.exp(log_weight(support))
    probability /= probability.sum()
    observed = np.bincount(draws + reach, minlength=len(support))
    expected = probability * len(draws)
    inside = expected >= 20
    f_obs = np.append(observed[inside], observed[~inside].sum())
    f_exp = np.append(expected[inside], expected[~inside].sum())
    keep = f_exp > 0
    return chisquare(f_obs[keep], f_exp[keep] * f_obs[keep].sum() / f_exp[keep].sum()).pvalue


@pytest.mark.parametrize("scale", [1, 2, 13])
def test_discrete_laplace(scale):
    draws = discrete_laplace(scale, COUNT, Noise.fixed(scale)).numpy()
    assert _p_value(draws, lambda x: -abs(x) / scale) > 1e-3
    for wrong in (0.95 * scale, 1.05 * scale):
        assert _p_value(draws, lambda x, wrong=wrong: -abs(x) / wrong) < 1e-6
    assert _p_value(draws, lambda x: -(x**2) / (4 * scale**2)) < 1e-6  # Gaussian of the same variance, about


@pytest.mark.parametrize("scale", [1, 2, 13])
def test_discrete_gaussian(scale):
    draws = discrete_gaussian(scale, COUNT, Noise.fixed(scale)).numpy()
    assert _p_value(draws, lambda x: -(x**2) / (2 * scale**2)) > 1e-3
    for wrong in (0.95 * scale, 1.05 * scale):
        assert _p_value(draws, lambda x, wrong=wrong: -(x**2) / (2 * wrong**2)) < 1e-6


def test_zero_is_not_counted_twice():
    # The classical slip: sign and magnitude drawn apart make zero twice as likely. P(0) = tanh(1 / 2 t) for scale t.
    draws = discrete_laplace(1, COUNT, Noise.fixed(1))
    assert (draws == 0).double().mean().item() == pytest.approx(np.tanh(0.5), abs=5 * (0.25 / COUNT) ** 0.5)


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 3), (1, 1), (7, 3), (30, 2)])
def test_bernoulli_exp(numerator, denominator):
    draws = bernoulli_exp(np.full(COUNT, numerator), denominator, Noise.fixed(5))
    probability = np.exp(-numerator / denominator)
    slack = 5 * (probability * (1 - probability) / COUNT) ** 0.5
    assert abs(draws.mean() - probability) <= slack
    if 0 < numerator < 30:  # exp(-15) is too rare for a control
        assert abs(draws.mean() - 1.1 * probability) > slack


def test_wide_scales_keep_their_spread():
    scale = 1 << 26
    assert discrete_gaussian(scale, 20_000, Noise.fixed(1)).double().std().item() == pytest.approx(scale, rel=0.03)
    scale = 1 << 50
    magnitude = discrete_laplace(scale, 20_000, Noise.fixed(2)).double().abs().mean().item()
    assert magnitude == pytest.approx(scale, rel=0.04)


@pytest.mark.parametrize("sampler", [discrete_laplace, discrete_gaussian])
@pytest.mark.parametrize("scale", [0, -1, 1 << 51])
def test_scales_beyond_64_bits_are_refused(sampler, scale):
    with pytest.raises(ValueError, match="grid steps"):
        sampler(scale, 1, Noise.fixed(1))


def test_no_draws_is_fine():
    assert discrete_gaussian(3, 0, Noise.fixed(1)).shape == (0,)
