"""The exact samplers against their probability mass functions, with controls that must be rejected."""

import bisect

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, norm

from idpgan.privacy import Noise, discrete
from idpgan.privacy.discrete import (
    _drawn_cells,
    _fraction_survives,
    _GeometricCells,
    _NormalCells,
    _place_survives,
    _rounded_gaussian,
    _Uniforms,
    discrete_laplace,
    rounded_gaussian,
)

COUNT = 100_000


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    """Let every law below be that of blocks with parts of the stream of their own, as of a large release."""
    monkeypatch.setattr(discrete, "BLOCK", 1 << 15)


def _p_value(draws, probability):
    """Chi-square of integer draws against probability(x), tails pooled to expected counts >= 20."""
    reach = int(abs(draws).max()) + 200
    support = np.arange(-reach, reach + 1)
    expected = probability(support)
    expected = expected / expected.sum() * len(draws)
    observed = np.bincount(draws + reach, minlength=len(support))
    inside = expected >= 20
    f_obs = np.append(observed[inside], observed[~inside].sum())
    f_exp = np.append(expected[inside], expected[~inside].sum())
    keep = f_exp > 0
    return chisquare(f_obs[keep], f_exp[keep] * f_obs[keep].sum() / f_exp[keep].sum()).pvalue


@pytest.mark.parametrize("scale", [1, 2, 13])
def test_discrete_laplace(scale):
    draws = discrete_laplace(scale, COUNT, Noise.fixed(scale)).numpy()
    assert _p_value(draws, lambda x: np.exp(-abs(x) / scale)) > 1e-3
    for wrong in (0.95 * scale, 1.05 * scale):
        assert _p_value(draws, lambda x, wrong=wrong: np.exp(-abs(x) / wrong)) < 1e-6
    assert _p_value(draws, lambda x: np.exp(-(x**2) / (4 * scale**2))) < 1e-6  # Gaussian of the same variance, about


def rounded_normal(std, shift=0.0):
    """Probabilities of round(std Z + shift), from the near tail."""
    return lambda x: norm.sf(abs(x - shift) - 0.5, scale=std) - norm.sf(abs(x - shift) + 0.5, scale=std)


@pytest.mark.parametrize("scale", [1, 2, 3, 13])
def test_rounded_gaussian_has_its_exact_probabilities(scale):
    draws = rounded_gaussian(scale, COUNT, Noise.fixed(scale)).numpy()
    assert _p_value(draws, rounded_normal(scale)) > 1e-3
    # Must be rejected: a tenth less noise, a little more, rounding that moves every number, twice as many zeros.
    for wrong in (rounded_normal(0.9 * scale), rounded_normal(1.05 * scale), rounded_normal(scale, 0.5)):
        assert _p_value(draws, wrong) < 1e-6
    floor = np.floor(np.random.default_rng(1).normal(0, scale, COUNT)).astype(int)
    toward_zero = np.trunc(np.random.default_rng(2).normal(0, scale, COUNT)).astype(int)
    less = np.rint(np.random.default_rng(3).normal(0, 0.9 * scale, COUNT)).astype(int)
    for draws in (floor, toward_zero, less):
        assert _p_value(draws, rounded_normal(scale)) < 1e-6
    if scale < 3:  # the discrete Gaussian is another law; wider ones look alike
        many = rounded_gaussian(scale, 500_000, Noise.fixed(1)).numpy()
        assert _p_value(many, rounded_normal(scale)) > 1e-3
        assert _p_value(many, lambda x: np.exp(-(x**2) / (2 * scale**2))) < 1e-6


@pytest.mark.parametrize("scale", [63, 65, 1000, 1 << 20, 1 << 40])
def test_wide_scales_follow_their_distribution_in_bins(scale):
    """160 bins of a twentieth of the scale: finer than what a cell of 1 / 64 could blur, and the last bits uniform."""
    edges = np.unique(np.round(scale * np.linspace(-4, 4, 161)).astype(np.int64))
    ratio = np.expm1(-1 / scale) + 2  # 1 + exp(-1 / scale)

    def laplace(x, scale):
        return np.where(x >= 0, 1 - np.exp(-(x + 1) / scale) / ratio, np.exp(x / scale) / ratio)

    def p_value(draws, below):
        counts = np.diff(np.searchsorted(np.sort(draws), edges, side="right"), prepend=0, append=len(draws))
        return chisquare(counts, np.diff(below, prepend=0, append=1) * len(draws)).pvalue

    for sampler, below in (
        (discrete_laplace, laplace),
        (rounded_gaussian, lambda x, scale: norm.cdf((x + 0.5) / scale)),
    ):
        draws = sampler(scale, 3 * COUNT, Noise.fixed(scale)).numpy()
        assert p_value(draws, below(edges, scale)) > 1e-3
        for wrong in (0.97 * scale, 1.03 * scale):
            assert p_value(draws, below(edges, wrong)) < 1e-6
        if scale >= 1000:
            assert chisquare(np.bincount(draws % 8)).pvalue > 1e-3


@pytest.mark.parametrize("scale", [1, 3])
def test_ties_between_digits_are_broken_by_more_digits(scale):
    """With half steps for digits comparisons tie often."""
    draws = _rounded_gaussian(scale, COUNT, Noise.fixed(scale), 0)
    assert _p_value(draws, rounded_normal(scale)) > 1e-3


@pytest.mark.parametrize("bits", [3, 8, 13, 62])
def test_cells_have_their_probabilities_however_few_bits_decide(bits):
    draws = _drawn_cells(_NormalCells(), 20_000, Noise.fixed(bits), bits)
    assert _p_value(draws, lambda k: np.where(k >= 0, np.exp(-((k / 64) ** 2) / 2), 0)) > 1e-3
    assert _p_value(draws, lambda k: np.where(k >= 0, np.exp(-((k / 64) ** 2) / 1.8), 0)) < 1e-6
    draws = _drawn_cells(_GeometricCells(3, 7), 20_000, Noise.fixed(bits), bits)
    assert _p_value(draws, lambda k: np.where(k >= 0, np.exp(-k * 3 / 7), 0)) > 1e-3
    assert _p_value(draws, lambda k: np.where(k >= 0, np.exp(-k * 3.2 / 7), 0)) < 1e-6


@pytest.mark.parametrize("cells", [_NormalCells(), _GeometricCells(1, 1), _GeometricCells(5, 300)])
def test_the_guide_gives_the_cell_that_the_bounds_give(cells):
    """Next to every bound, and where the first bits change: the cell of the bounds, or one of its two neighbors."""
    exact = cells.bounds(200)
    at = [bound + by for bound in cells.bounds(62) for by in (-2, -1, 0, 1, 2)]
    at += [(first << 48) + by for first in range(0, 1 << 14, 7) for by in (-1, 0, 1)]
    at = [value for value in at if 0 <= value < 1 << 62]

    class Given:
        def __init__(self):
            self.first = True

        def integers(self, below, shape):
            values = torch.tensor(at) if self.first else torch.full(shape, below // 2)
            self.first = False
            return values

    found = _drawn_cells(cells, len(at), Given())
    for value, cell in zip(at, found.tolist(), strict=True):
        low, high = (bisect.bisect_right(exact, (value + part) << 138) for part in (0, 1))
        assert low <= cell <= high


@pytest.mark.parametrize("cell", [0, 1, 100, 1500])
def test_a_place_is_kept_with_its_probability(cell, monkeypatch):
    noise = Noise.fixed(cell)
    x = _Uniforms(COUNT, 8, noise)  # few digits: ties are frequent
    kept = _place_survives(x, np.full(COUNT, cell), noise.integers(8192, (COUNT,)).numpy(), 8, noise)
    place = x.digit(0) / 8 + x.digit(1) / 64 + 1 / 128
    probability = np.exp(-place * (2 * cell + place) / 8192)
    slack = 5 * (probability * (1 - probability)).sum() ** 0.5 + 1e-4 * COUNT / 8
    assert abs(kept.sum() - probability.sum()) <= slack
    for part in (place < 0.25, place > 0.75):
        assert abs(kept[part].sum() - probability[part].sum()) <= slack
    if cell >= 100:
        assert abs(kept.sum() - (probability**1.2).sum()) > slack  # a fifth steeper
    if cell == 1500:  # who gives up at the first tie keeps too many
        monkeypatch.setattr(discrete, "_less", lambda left, right, rows: left.digit(0) < right.digit(0)[rows])
        kept = _place_survives(x, np.full(COUNT, cell), noise.integers(8192, (COUNT,)).numpy(), 8, noise)
        assert kept.sum() > probability.sum() + slack


def test_zero_is_not_counted_twice():
    # The classical slip: sign and magnitude drawn apart make zero twice as likely. P(0) = tanh(1 / 2 t) for scale t.
    draws = discrete_laplace(1, COUNT, Noise.fixed(1))
    assert (draws == 0).double().mean().item() == pytest.approx(np.tanh(0.5), abs=5 * (0.25 / COUNT) ** 0.5)


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 3), (1, 1), (5, 7)])
def test_bernoulli_exp(numerator, denominator):
    noise = Noise.fixed(5)
    choice = noise.integers(denominator, (COUNT,)).numpy()
    draws = _fraction_survives(np.full(COUNT, numerator), denominator, choice, noise)
    probability = np.exp(-numerator / denominator)
    slack = 5 * (probability * (1 - probability) / COUNT) ** 0.5
    assert abs(draws.mean() - probability) <= slack
    if numerator:
        assert abs(draws.mean() - 1.1 * probability) > slack


def test_wide_scales_keep_their_spread():
    scale = 1 << 50
    draws = rounded_gaussian(scale, 200_000, Noise.fixed(1)).double()
    assert (draws / scale).std().item() == pytest.approx(1, rel=0.01)  # 6 standard errors; a tenth less is not
    assert draws.abs().max() > 4 * scale  # the tail is there
    magnitude = discrete_laplace(scale, 20_000, Noise.fixed(2)).double().abs().mean().item()
    assert magnitude == pytest.approx(scale, rel=0.04)


@pytest.mark.parametrize("sampler", [discrete_laplace, rounded_gaussian])
@pytest.mark.parametrize("scale", [0, -1, 1 << 51])
def test_scales_beyond_64_bits_are_refused(sampler, scale):
    with pytest.raises(ValueError, match="grid steps"):
        sampler(scale, 1, Noise.fixed(1))


def test_no_draws_is_fine_and_many_batches_are_one_stream():
    assert rounded_gaussian(3, 0, Noise.fixed(1)).shape == (0,)
    draws = rounded_gaussian(3, 300_000, Noise.fixed(1)).double()
    assert len(draws) == 300_000
    halves = draws[:150_000], draws[150_000:]
    assert abs((halves[0] * halves[1]).mean().item()) < 5 * 9 / 150_000**0.5
