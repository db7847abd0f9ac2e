"""Smooth sensitivity is exact by brute force, its noise keeps to its price, and local sensitivity is caught."""

import itertools
import math

import numpy as np
import pytest
import torch
from papers.literature.samplers import heavy_tailed, rounded_laplace
from papers.literature.smooth_sensitivity import (
    SmoothMedian,
    admissible,
    gaussian_dilation_delta,
    heavy_tail_rates,
    laplace_dilation_delta,
    local_sensitivity,
    smooth_sensitivity,
)
from scipy.integrate import quad
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path
from scipy.stats import kstest, laplace, norm

from idpgan.audit import audit
from idpgan.audit.statistics import Statistic
from idpgan.errors import InputError
from idpgan.privacy import (
    Budget,
    BudgetError,
    Ledger,
    Noise,
    Relation,
    Unit,
)

REPLACE, ZERO_OUT = Relation.REPLACE_ONE, Relation.ZERO_OUT
GRID = (0.0, 1.0, 4.0, 5.0)  # low and high are its ends
NULL = math.nan
LAWS = [("cauchy", 0.0), ("laplace", 1e-4), ("gaussian", 1e-4)]
HALVES = [1.0, math.log(2), norm.ppf(0.75)]  # the median of |Z| of each


def median(data):
    there = sorted(x for x in data if not math.isnan(x))
    return there[(len(there) + 1) // 2 - 1] if there else GRID[0]


def neighbors(data, relation):
    for place, value in enumerate(data):
        for other in GRID if relation is REPLACE or math.isnan(value) else (NULL,):
            yield (*data[:place], other, *data[place + 1 :])


def brute_force(positions, relation):
    """All data sets, their distances in steps, and their local sensitivities, from the definition."""
    universe = list(itertools.product(GRID if relation is REPLACE else (*GRID, NULL), repeat=positions))
    numbers = {repr(data): number for number, data in enumerate(universe)}
    ways = np.array([(one, numbers[repr(o)]) for one, data in enumerate(universe) for o in neighbors(data, relation)])
    answers = np.array([median(data) for data in universe])
    local = np.zeros(len(universe))
    for ends in (ways.T, ways.T[::-1]):  # a step counts in both directions
        np.maximum.at(local, ends[0], np.abs(answers[ends[1]] - answers[ends[0]]))
    graph = csr_matrix((np.ones(len(ways)), ways.T), shape=2 * (len(universe),))
    return torch.tensor(universe).double(), shortest_path(graph, directed=False, unweighted=True), local


@pytest.mark.parametrize("relation", [REPLACE, ZERO_OUT])
@pytest.mark.parametrize("positions", [1, 2, 3, 4])
def test_smooth_sensitivity_is_exact_by_brute_force(relation, positions):
    universe, steps, local = brute_force(positions, relation)
    assert np.array_equal(local_sensitivity(universe, GRID[0], GRID[-1], relation).numpy(), local)
    largest = smooth_sensitivity(universe, GRID[0], GRID[-1], 0.0, relation)  # the global one, from anywhere
    assert largest.tolist() == [local.max()] * len(universe)
    for beta in (0.1, 0.7):
        exact = (np.exp(-beta * steps) * local).max(1)
        ours = smooth_sensitivity(universe, GRID[0], GRID[-1], beta, relation).numpy()
        assert np.allclose(ours, exact, rtol=1e-12, atol=0)


@pytest.mark.parametrize("relation", [REPLACE, ZERO_OUT])
@pytest.mark.parametrize("positions", [3, 4])
@pytest.mark.parametrize(("law", "delta"), LAWS)
def test_the_scale_is_a_smooth_bound_on_all_neighbors(relation, positions, law, delta):
    """On the grid: above local sensitivity / alpha, and a rung of the ladder apart at most."""
    mechanism = SmoothMedian(GRID[0], GRID[-1], 2.0, Unit.IMAGE, relation, delta, law, steps=5000)
    universe = list(itertools.product(GRID if relation is REPLACE else (*GRID, NULL), repeat=positions))
    scales = dict(zip(map(repr, universe), mechanism.scales(torch.tensor(universe).double()).tolist(), strict=True))
    ratios = [
        (scales[repr(data)] / scales[repr(other)], 1000 * abs(median(data) - median(other)) / scales[repr(data)])
        for data in universe
        for other in neighbors(data, relation)
    ]
    assert max(ratio for ratio, _ in ratios) <= math.exp(mechanism.beta)
    assert max(ratio for ratio, _ in ratios) > 1  # the scale does move
    assert 0.9 * mechanism.alpha < max(shift for _, shift in ratios) <= mechanism.alpha


def test_the_scale_is_at_most_a_rung_above_the_smooth_sensitivity():
    mechanism = SmoothMedian(0.0, 1.0, 1.0, Unit.IMAGE, REPLACE)
    values = torch.rand(20, 101, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    exact = smooth_sensitivity(values, 0.0, 1.0, mechanism.beta) * mechanism.steps / mechanism.alpha
    assert ((mechanism.scales(values) / exact).log() <= 2 * mechanism.beta).all()


@pytest.mark.parametrize("exponent", [2, 3, 4, 8])
def test_the_rates_of_the_heavy_tail_are_its_largest_log_derivatives(exponent):
    z = np.linspace(-30, 30, 2_000_001)

    def log_density(shift=0.0, spread=0.0):
        return spread - np.log1p(np.abs(np.exp(spread) * (z + shift)) ** exponent)

    per_shift, per_scale = heavy_tail_rates(exponent)
    assert np.abs(log_density(1e-4) - log_density()).max() / 1e-4 == pytest.approx(per_shift, rel=1e-3)
    assert np.abs(log_density(0, 1e-4) - log_density()).max() / 1e-4 == pytest.approx(per_scale, rel=1e-3)


@pytest.mark.parametrize(
    ("delta_of", "density"),
    [
        (laplace_dilation_delta, lambda z: math.exp(-abs(z)) / 2),
        (gaussian_dilation_delta, lambda z: math.exp(-z * z / 2) / math.sqrt(2 * math.pi)),
    ],
)
def test_the_price_of_a_scale_is_the_integral_of_the_densities(delta_of, density):
    beta, epsilon = 0.2, 0.5
    for spread in (beta, -beta, beta / 2):

        def excess(z, spread=spread):
            narrow = math.exp(spread) * density(math.exp(spread) * z)
            return max(density(z) - math.exp(epsilon) * narrow, 0.0)

        exact = 2 * quad(excess, 0, 40, limit=400, points=[1, 2, 3, 4, 6])[0]
        assert exact <= delta_of(beta, epsilon) * (1 + 1e-6)
        if spread == beta:
            assert exact == pytest.approx(delta_of(beta, epsilon), rel=1e-4)


@pytest.mark.parametrize(("law", "delta"), LAWS)
def test_our_constants_are_at_least_those_of_the_paper(law, delta):
    """Nissim, Raskhodnikova, Smith 2007: Lemma 2.6 (g + 1 for both rates), Examples 2 and 3."""
    alpha, beta = admissible(law, 1.0, delta)
    if law == "cauchy":
        for exponent in (2, 4, 8):
            assert min(admissible(law, 1.0, 0.0, exponent)) >= 1 / (2 * (exponent + 1))
    else:
        log = math.log(2 / delta)
        assert alpha >= (0.5 if law == "laplace" else 1 / (5 * math.sqrt(2 * log))) * (1 - 1e-9)
        assert beta >= (1 / (2 * log) if law == "laplace" else 1 / (4 * (1 + log)))


def test_the_exact_samplers_have_their_laws():
    drawn = rounded_laplace(1000, 20_000, Noise.fixed(1)).numpy()
    assert kstest(drawn / 1000, laplace.cdf).pvalue > 1e-3
    assert kstest(drawn / 1000, laplace(scale=1.1).cdf).pvalue < 1e-6
    small = rounded_laplace(1, 40_000, Noise.fixed(2)).numpy()
    assert (small == 0).mean() == pytest.approx(1 - math.exp(-0.5), abs=0.01)
    assert (small > 1).mean() == pytest.approx(math.exp(-1.5) / 2, abs=0.006)
    z = np.linspace(0, 1e4, 2_000_001)
    for exponent in (2, 4):
        drawn = heavy_tailed(torch.full((10_000,), 1000), exponent, Noise.fixed(3)).double().numpy() / 1000
        cdf = np.cumsum(1 / (1 + z**exponent)) * (z[1] - z[0])
        total = math.pi / 2 if exponent == 2 else math.pi / (2 * math.sqrt(2))
        law = np.interp(np.abs(drawn), z, np.minimum(cdf / total, 1.0))
        assert kstest(law, "uniform").pvalue > 1e-3
        assert kstest(np.interp(np.abs(drawn) * 1.1, z, np.minimum(cdf / total, 1.0)), "uniform").pvalue < 1e-3
        assert abs(np.sign(drawn).mean()) < 0.05


class Spread(Statistic):
    """How near the released number is to one half, where the median of both neighbors lies: shows the noise's scale."""

    name = "distance from one half"

    def __init__(self, data, neighbor):
        pass

    def __call__(self, outputs):
        return -(outputs[:, 0] - 0.5).abs()


class Height(Spread):
    """The released number itself."""

    def __call__(self, outputs):
        return outputs[:, 0]


JUMP = torch.tensor([0.0] * 4 + [1.0] * 5).double()  # a majority of one: the median moves over the whole range
NARROW = torch.tensor([0.0, 0.5, 0.5, 0.5, 1.0]).double()  # local sensitivity 0
WIDE = torch.tensor([0.0, 0.0, 0.5, 0.5, 1.0]).double()  # 1/2: the third value may be taken to 0


def replaced(values, place, value):
    return torch.cat([values[:place], torch.tensor([value]).double(), values[place + 1 :]])


@pytest.mark.parametrize(("law", "delta"), LAWS)
@pytest.mark.parametrize("relation", [REPLACE, ZERO_OUT])
def test_the_median_keeps_to_its_price(law, delta, relation):
    mechanism, noise = SmoothMedian(0.0, 1.0, 4.0, Unit.IMAGE, relation, delta, law), Noise.fixed(5)
    gone = NULL if relation is ZERO_OUT else 0.0
    pairs = [(JUMP, replaced(JUMP, 8, gone)), (NARROW, WIDE if relation is REPLACE else replaced(NARROW, 0, NULL))]
    found = [
        audit(
            lambda rows: mechanism(rows, noise)[:, None], data, neighbor, runs=10_000, delta=delta,
            confidence=1 - 1e-4, statistics=[Spread, Height],
        ).epsilon_lower
        for data, neighbor in pairs
    ]  # fmt: skip
    assert max(found) <= 4.0
    if relation is REPLACE:
        assert found[0] > 0.2  # the game does see the jump


def test_local_sensitivity_in_the_place_of_the_smooth_one_is_caught():
    """The negative control: noise of scale LS / alpha is none at all where nothing moves within one step."""
    mechanism, noise = SmoothMedian(0.0, 1.0, 1.0, Unit.IMAGE, REPLACE), Noise.fixed(6)

    def broken(rows):
        there = rows.sort(1).values
        local = torch.maximum(there[:, 3] - there[:, 2], there[:, 2] - there[:, 1])
        drawn = heavy_tailed((local * mechanism.steps / mechanism.alpha).long().clamp(min=1), 4, noise)
        return (there[:, 2] + drawn / mechanism.steps)[:, None]

    assert audit(broken, NARROW, WIDE, runs=4000, confidence=1 - 1e-4, statistics=[Spread]).epsilon_lower > 3


@pytest.mark.parametrize(("law", "delta"), LAWS)
def test_a_release_is_charged_before_it_is_kept_and_refused_beyond_the_target(law, delta):
    mechanism = SmoothMedian(0.0, 1.0, 1.0, Unit.IMAGE, ZERO_OUT, delta, law)
    values = torch.rand(501, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    noise = Noise.fixed(1)  # not by the name of the test, by which the second noise is large at times
    ledger = Ledger(Unit.IMAGE, ZERO_OUT, Budget(1.0, max(delta, 1e-3)))
    released = ledger.release([mechanism.event], lambda: {"median": mechanism(values, noise)}, noise=noise)["median"]
    assert abs(released - values.median()) < 0.2
    assert ledger.epsilon(delta) == 1.0
    with pytest.raises(BudgetError, match="exceed"):
        ledger.charge(mechanism.event)
    with pytest.raises(BudgetError, match="zero-out"):
        ledger.charge(SmoothMedian(0.0, 1.0, 1.0, Unit.IMAGE, REPLACE, delta, law).event)


@pytest.mark.parametrize(("law", "delta", "half"), [(*row, half) for row, half in zip(LAWS, HALVES, strict=True)])
def test_the_noise_has_the_scale_that_is_priced(law, delta, half):
    """Half of all lie within the scale times the median of |Z|; noise scaled by 0.9 is 0.03 to 0.04 off, 6 to 8 sd."""
    mechanism = SmoothMedian(0.0, 1.0, 4.0, Unit.IMAGE, REPLACE, delta, law)
    values = torch.linspace(0.4, 0.6, 101, dtype=torch.float64).expand(10_000, 101)
    scale = mechanism.scales(values[:1]).item() / mechanism.steps
    assert 15 / mechanism.steps < scale < 0.05  # far above the grid, and not clamped by the range
    inside = ((mechanism(values, Noise.fixed(8)) - 0.5).abs() <= half * scale).double().mean()
    assert inside == pytest.approx(0.5, abs=0.02)


def test_the_noise_is_far_below_that_of_the_global_sensitivity():
    values = 0.5 + 0.1 * torch.randn(1001, generator=torch.Generator().manual_seed(3), dtype=torch.float64).clamp(-4, 4)
    mechanism = SmoothMedian(0.0, 1.0, 1.0, Unit.IMAGE, REPLACE)
    released = mechanism(values.expand(500, 1001), Noise.fixed(7))
    assert (released - values.median()).abs().median() < 0.02  # the Laplace mechanism: 0.7


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"low": 2.0}, "below high"),
        ({"high": math.inf}, "below high"),
        ({"low": -1e308, "high": 1e308}, "below high"),  # its width is infinite, and the answer would be NaN
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": "1"}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 1e-5}, "delta"),
        ({"law": "laplace"}, "delta"),
        ({"law": "normal"}, "no noise 'normal'"),
        ({"exponent": 1}, "exponent"),
        ({"steps": 1}, "steps"),
        ({"epsilon": 1e-3}, "nearly the global"),
        ({"relation": "zero-out-one"}, "Relation"),
    ],
)
def test_bad_settings_are_refused(change, match):
    settings = {"low": 0.0, "high": 1.0, "epsilon": 1.0, "unit": Unit.IMAGE, "relation": REPLACE} | change
    with pytest.raises(InputError, match=match):
        SmoothMedian(**settings)


def test_bad_values_are_refused():
    mechanism = SmoothMedian(0.0, 1.0, 1.0, Unit.IMAGE, REPLACE)
    with pytest.raises(InputError, match="NaN"):
        mechanism(torch.tensor([NULL, 0.5]), Noise.fixed(1))
    with pytest.raises(ValueError, match="floating point"):
        mechanism(torch.tensor([1, 0]), Noise.fixed(1))
    with pytest.raises(InputError, match="declared range"):
        smooth_sensitivity(torch.tensor([2.0]), 0.0, 1.0, 0.1)
