"""Each mechanism has its distribution (with controls that must be rejected) and keeps its contract per relation."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare, kstest, laplace, norm

from idpgan.errors import InputError
from idpgan.privacy import (
    DiscreteLaplace,
    Exponential,
    Gaussian,
    Grid,
    Laplace,
    Noise,
    NoisyMax,
    RandomizedResponse,
    Relation,
    RoundedGaussian,
    Unit,
)

REPLACE, ADD = (Unit.IMAGE, Relation.REPLACE_ONE), (Unit.IMAGE, Relation.ZERO_OUT)
ZEROS = torch.zeros(200, 200, dtype=torch.float64)


@pytest.mark.parametrize("noise_multiplier", [0.5, 2.0])
@pytest.mark.parametrize(("mechanism", "law"), [(Laplace, laplace), (Gaussian, norm)])
def test_continuous_noise_has_the_calibrated_distribution(mechanism, law, noise_multiplier):
    scale = 3.0 * noise_multiplier
    noise = mechanism(3.0, noise_multiplier, *REPLACE)(ZEROS, Noise.fixed(20)).flatten().numpy()
    assert kstest(noise, law(scale=scale).cdf).pvalue > 1e-3
    # Must be rejected: 10 % too little or too much, sensitivity forgotten, the other law of the same variance.
    other = norm(scale=scale * 2**0.5) if law is laplace else laplace(scale=scale / 2**0.5)
    for wrong in (law(scale=0.9 * scale), law(scale=1.1 * scale), law(scale=scale / 3), other):
        assert kstest(noise, wrong.cdf).pvalue < 1e-6


@pytest.mark.parametrize("mechanism", [Laplace(1.0, 1.0, *REPLACE), Gaussian(1.0, 1.0, *ADD)])
def test_successive_releases_are_fresh_and_independent_of_the_data(mechanism):
    noise = Noise.fixed(1)
    first, second = mechanism(ZEROS, noise).flatten(), mechanism(ZEROS, noise).flatten()
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / len(first) ** 0.5
    shifted = mechanism(ZEROS + 7, Noise.fixed(1)).flatten() - 7
    assert torch.allclose(shifted, first, atol=1e-12)


@pytest.mark.parametrize("mechanism", [Laplace(1.0, 1.0, *REPLACE), Gaussian(1.0, 1.0, *ADD)])
def test_float_mechanisms_keep_dtype_and_input_and_fail_closed(mechanism):
    answer = torch.ones(3, 4, dtype=torch.float32)
    released = mechanism(answer, Noise.fixed(1))
    assert (released.shape, released.dtype) == (answer.shape, answer.dtype)
    assert torch.equal(answer, torch.ones(3, 4))
    for bad in (torch.tensor([math.nan]), torch.tensor([math.inf]), torch.tensor([1])):
        with pytest.raises(ValueError, match="finite floating point"):
            mechanism(bad, Noise.fixed(1))


def test_noise_that_overflows_is_refused():
    with pytest.raises(ValueError, match="overflows"):
        Gaussian(1e38, 100.0, *ADD)(torch.zeros(1000), Noise.fixed(1))


@pytest.mark.parametrize("mechanism", [DiscreteLaplace(5, 40, *REPLACE), RoundedGaussian(5.0, 40, *ADD)])
def test_discrete_mechanisms_add_whole_steps(mechanism):
    steps = torch.full((100, 100), 1000)
    released = mechanism(steps, Noise.fixed(2)) - steps
    assert (released.dtype, released.shape) == (torch.int64, steps.shape)
    expected = 40.0 if isinstance(mechanism, DiscreteLaplace) else 40.0 * (2 / math.pi) ** 0.5  # mean absolute value
    assert released.abs().double().mean().item() == pytest.approx(expected, rel=0.04)
    assert mechanism.event.noise_multiplier == 8.0
    for bad in (torch.zeros(2), torch.tensor([1 << 62])):
        with pytest.raises(ValueError, match="whole grid steps"):
            mechanism(bad, Noise.fixed(1))


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_contract_of_a_rounded_histogram(relation, epsilon):
    """Brute force over all small data sets and neighbors: the exact likelihood ratio never exceeds e^epsilon."""
    sensitivity = 1 if relation is Relation.ZERO_OUT else 2  # a replaced record leaves one cell and enters another
    mechanism = DiscreteLaplace(sensitivity, math.ceil(sensitivity / epsilon), Unit.IMAGE, relation)

    def cells(data):
        return np.bincount(data, minlength=3)

    worst = 0.0
    data = np.array([0, 1, 1, 2])
    for i in range(len(data)):
        neighbors = (
            [np.delete(data, i)]
            if relation is Relation.ZERO_OUT
            else [np.concatenate([np.delete(data, i), [v]]) for v in range(3)]
        )
        for neighbor in neighbors:
            distance = abs(cells(data) - cells(neighbor)).sum()
            assert distance <= sensitivity
            worst = max(worst, distance / mechanism.scale)  # log-likelihood ratio at the worst output
    assert 0.99 * mechanism.event.pure <= worst <= epsilon * (1 + 1e-12)


def test_exponential_mechanism_has_its_probabilities():
    scores = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    chosen = Exponential(2.0, 1.5, *REPLACE)(scores.expand(40_000, 3), Noise.fixed(3)).numpy()
    weights = np.exp(1.5 * scores.numpy() / 4.0)
    expected = 40_000 * weights / weights.sum()
    assert chisquare(np.bincount(chosen, minlength=3), expected).pvalue > 1e-3
    forgotten = np.exp(1.5 * scores.numpy() / 2.0)  # the factor 2 of the sensitivity forgotten: must be rejected
    assert chisquare(np.bincount(chosen, minlength=3), 40_000 * forgotten / forgotten.sum()).pvalue < 1e-6


def test_exponential_mechanism_survives_huge_scores():
    scores = torch.tensor([-1e6, 0.0, -1e6], dtype=torch.float64)
    assert Exponential(1.0, 1.0, *REPLACE)(scores, Noise.fixed(1)).item() == 1


def test_noisy_max_is_private_by_enumeration():
    mechanism = NoisyMax(1.0, 1.0, *REPLACE)
    data, neighbor = torch.tensor([0.0, 0.0]), torch.tensor([1.0, -1.0])  # both scores moved by the sensitivity
    rates = [
        (mechanism(answer.double().expand(200_000, 2), Noise.fixed(4)) == 0).double().mean().item()
        for answer in (data, neighbor)
    ]
    assert abs(math.log(rates[1] / rates[0])) <= 1.0
    assert abs(math.log((1 - rates[0]) / (1 - rates[1]))) <= 1.0
    half_the_noise = NoisyMax(1.0, 4.0, *REPLACE)(neighbor.double().expand(200_000, 2), Noise.fixed(4))
    assert abs(math.log((1 - rates[0]) / (half_the_noise == 1).double().mean().item())) > 1.0


@pytest.mark.parametrize("categories", [2, 10])
def test_randomized_response_tells_the_truth_as_often_as_it_may(categories):
    mechanism = RandomizedResponse(categories, 1.0)
    answers = mechanism(torch.zeros(100_000, dtype=torch.int64), Noise.fixed(6)).numpy()
    weights = np.array([math.e] + [1.0] * (categories - 1))
    assert chisquare(np.bincount(answers, minlength=categories), 1e5 * weights / weights.sum()).pvalue > 1e-3
    wrong = np.array([math.e**1.1] + [1.0] * (categories - 1))
    assert chisquare(np.bincount(answers, minlength=categories), 1e5 * wrong / wrong.sum()).pvalue < 1e-6
    with pytest.raises(ValueError, match="labels"):
        mechanism(torch.tensor([categories]), Noise.fixed(1))
    with pytest.raises(InputError, match="at most 30"):
        RandomizedResponse(categories, 31.0)


@pytest.mark.parametrize("categories", [2, 10, 1000])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 20.0, 28.0, 30.0])
def test_randomized_response_lies_no_less_often_than_its_price_says(categories, epsilon):
    """Was 421 in 2^52 at epsilon = 30 where 421.4 are due: a pure epsilon of 30.001, or delta = 0.001 at 30."""

    class At(Noise):
        """All draws at one place of [0, 1), in units of 2^-62."""

        def __init__(self, place):
            self.place = place

        def uniform(self, shape):
            return torch.full(tuple(shape), ((self.place >> 10) + 0.5) * 2.0**-52, dtype=torch.float64)

        def integers(self, below, shape):
            return torch.full(tuple(shape), self.place * below >> 62)

    low, high = 0, 1 << 62  # lies up to low, tells the truth from high on
    while high - low > 1:
        middle = (low + high) // 2
        lies = RandomizedResponse(categories, epsilon)(torch.tensor([0]), At(middle)).item() != 0
        low, high = (middle, high) if lies else (low, middle)
    truth, each_lie = Fraction((1 << 62) - high, 1 << 62), Fraction(high, (1 << 62) * (categories - 1))
    realized = math.log(truth / each_lie)
    assert epsilon - 1e-4 * epsilon <= realized <= epsilon * (1 + 1e-15)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_impossible_parameters_are_refused(bad):
    for build in (Laplace, Gaussian):
        with pytest.raises(InputError, match="positive and finite"):
            build(1.0, bad, *REPLACE)
        with pytest.raises(InputError, match="positive and finite"):
            build(bad, 1.0, *REPLACE)


EVERY = {
    Laplace: {"sensitivity": 1.0, "noise_multiplier": 1.0},
    Gaussian: {"sensitivity": 1.0, "noise_multiplier": 1.0},
    DiscreteLaplace: {"sensitivity": 1, "scale": 1},
    RoundedGaussian: {"sensitivity": 1.0, "scale": 1},
    Exponential: {"sensitivity": 1.0, "epsilon": 1.0},
    NoisyMax: {"sensitivity": 1.0, "epsilon": 1.0},
    RandomizedResponse: {"categories": 2, "epsilon": 1.0},
}


@pytest.mark.parametrize("build", EVERY, ids=lambda kind: kind.__name__)
def test_parameters_of_other_types_are_refused_before_anything_is_drawn(build):
    """Was a TypeError, or was accepted until the event was asked for."""
    assert build(**EVERY[build], unit=Unit.LABEL, relation=Relation.REPLACE_ONE).event
    for unit, relation in (("image", Relation.REPLACE_ONE), (Unit.IMAGE, "replace-one"), (None, None)):
        with pytest.raises(InputError, match="a Unit and a Relation"):
            build(**EVERY[build], unit=unit, relation=relation)
    for name in EVERY[build]:
        for value in ("1", None, True, [1], 10**400):
            with pytest.raises(InputError, match=name):
                build(**EVERY[build] | {name: value}, unit=Unit.LABEL, relation=Relation.REPLACE_ONE)
        if type(EVERY[build][name]) is int:
            with pytest.raises(InputError, match="whole number"):
                build(**EVERY[build] | {name: 2.5}, unit=Unit.LABEL, relation=Relation.REPLACE_ONE)


def test_rounding_the_noise_is_rounding_the_noisy_answer():
    """What makes round(Z) as private as Z: on whole numbers x + round(Z) = round(x + Z)."""
    mechanism = RoundedGaussian(4.0, 6, *ADD)
    assert mechanism.event == Gaussian(1.0, 1.5, *ADD).event
    noise = mechanism(torch.zeros(40_000, dtype=torch.int64), Noise.fixed(3))
    moved = mechanism(torch.full((40_000,), 1000), Noise.fixed(3))
    assert torch.equal(moved - 1000, noise)
    released = np.rint(1000 + np.random.default_rng(5).normal(0, 6, 40_000)).astype(int)  # the other way round
    bins = np.arange(-15, 17) - 0.5
    observed, expected = np.histogram(noise, bins)[0], np.histogram(released - 1000, bins)[0]
    assert chi2_contingency([observed, expected]).pvalue > 1e-3
    less = np.rint(np.random.default_rng(5).normal(0, 5.4, 40_000))  # a tenth less noise must be rejected
    assert chi2_contingency([observed, np.histogram(less, bins)[0]]).pvalue < 1e-6


def test_a_release_on_a_fine_grid_has_the_noise_that_was_asked_for():
    # From a real query to a discrete release: 10,304 pixels in [0, 1], unit image, epsilon = 1.
    pixels, epsilon = 112 * 92, 1.0
    grid = Grid.fine(pixels, pixels, norm=1)
    sensitivity = grid.l1(pixels, pixels)
    mechanism = DiscreteLaplace(sensitivity, math.ceil(sensitivity / epsilon), *REPLACE)
    released = grid.value(mechanism(grid.round(torch.full((pixels,), 0.5)), Noise.fixed(9)))
    assert mechanism.event.pure <= epsilon
    assert (released - 0.5).abs().mean().item() == pytest.approx(pixels / epsilon, rel=0.05)


@pytest.mark.parametrize("kind", [Laplace, Gaussian, DiscreteLaplace, RoundedGaussian])
@pytest.mark.parametrize("numbers", [1, 20])
def test_the_largest_error_is_within_the_bound_as_often_as_it_says(kind, numbers):
    """4,000 releases: the share above the bound is alpha up to chance; four fifths of it are exceeded more often."""
    scale = {"noise_multiplier": 3.0} if kind in (Laplace, Gaussian) else {"scale": 300}
    sensitivity = 100.0 if kind is Laplace or kind is Gaussian else 100
    mechanism = kind(sensitivity=sensitivity, unit=Unit.IMAGE, relation=Relation.REPLACE_ONE, **scale)
    dtype = torch.float64 if "noise_multiplier" in scale else torch.int64
    zeros = torch.zeros(4000, numbers, dtype=dtype)
    errors = mechanism(zeros, Noise.fixed(7)).abs().amax(1)
    bound = mechanism.within(0.1, numbers)
    assert abs(float((errors > bound).double().mean()) - 0.1) < 0.02
    assert float((errors > 0.8 * bound).double().mean()) > 0.14
    for bad in ((0.0, 1), (1.0, 1), (0.1, 0), (0.1, 1.5)):
        with pytest.raises(InputError):
            mechanism.within(*bad)
