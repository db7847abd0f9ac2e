"""What OpenDP does in place of ours: its noisy max is permute and flip, at its price; its sums, its price of RAPPOR."""

import itertools
import math

import numpy as np
import pytest
import torch
from papers.literature.rappor import Rappor
from scipy.stats import chisquare

from idpgan.audit import audit
from idpgan.audit.statistics import LogProbability

dp = pytest.importorskip("opendp.prelude", reason="the extra `survey`")
dp.enable_features("contrib")


def permute_and_flip(scores, scale):
    """The law, from its definition: over all orders."""
    take = np.exp((np.array(scores) - max(scores)) / scale)
    chances = np.zeros(len(scores))
    for order in itertools.permutations(range(len(scores))):
        left = 1.0
        for candidate in order:
            chances[candidate] += left * take[candidate]
            left *= 1 - take[candidate]
    return chances / math.factorial(len(scores))


def noisy_max(scores, scale):
    """The same by integration: the largest of ``score + E`` with exponential noise."""
    x = np.linspace(min(scores), max(scores) + 40 * scale, 400_001)
    below = np.stack([np.where(x >= s, -np.expm1(-(x - s).clip(0) / scale), 0.0) for s in scores])
    density = np.stack([np.where(x >= s, np.exp(-(x - s).clip(0) / scale) / scale, 0.0) for s in scores])
    return np.array(
        [np.trapezoid(density[i] * np.delete(below, i, 0).prod(0), x) for i in range(len(scores))],
    )


def noisy_max_of(scale, monotonic=False):
    scores = dp.vector_domain(dp.atom_domain(T=int)), dp.linf_distance(T=int, monotonic=monotonic)
    return dp.m.make_noisy_max(*scores, dp.max_divergence(), scale=scale)


def test_its_noisy_max_is_permute_and_flip():
    scores, scale = [0, 3, 5, 4], 4
    law = permute_and_flip(scores, scale)
    assert np.allclose(law, noisy_max(scores, scale), atol=1e-4)
    chosen = noisy_max_of(4.0)
    drawn = np.bincount([chosen(scores) for _ in range(20_000)], minlength=4)
    assert chisquare(drawn, 20_000 * law).pvalue > 1e-6  # its bits are the system's
    weights = np.exp(np.array(scores) / scale)  # the exponential mechanism's law must be rejected
    assert chisquare(drawn, 20_000 * weights / weights.sum()).pvalue < 1e-6


@pytest.mark.parametrize("monotone", [False, True])
def test_its_price_holds_on_all_neighbors(monotone):
    price, worst = noisy_max_of(2.0, monotone).map(1), 0.0
    for scores in itertools.product(range(-3, 4), repeat=3):
        law = permute_and_flip(scores, 2)
        for move in itertools.product((-1, 0, 1), repeat=3):
            if monotone and min(move) < 0 < max(move):
                continue
            other = permute_and_flip(np.array(scores) + move, 2)
            worst = max(worst, np.abs(np.log(law / other)).max())
    assert 0.7 * price < worst <= price * (1 + 1e-12)
    assert price == pytest.approx(0.5 if monotone else 1.0)


def test_monotone_prices_do_not_hold_for_scores_that_move_both_ways():
    """The negative control of the flag."""
    law, other = permute_and_flip([0, -2], 2), permute_and_flip([1, -3], 2)
    assert np.abs(np.log(law / other)).max() > noisy_max_of(2.0, True).map(1)


def test_it_is_audited_to_most_of_its_price():
    data, neighbor = torch.ones(8).long(), torch.zeros(8).long()
    data[0], neighbor[0] = 0, 1
    laws = [noisy_max([first] + [0] * 7, 2) for first in (-1, 1)]  # the others share what the first one leaves
    ratio = torch.tensor(np.log((laws[1] / laws[1].sum()) / (laws[0] / laws[0].sum())))
    bounds = []
    for scale in (2.0, 1.0):  # half the noise: caught at the price of the whole
        chosen = noisy_max_of(scale)

        def release(rows, chosen=chosen):
            return torch.tensor([chosen(row) for row in rows.tolist()])

        found = audit(
            release, data, neighbor, runs=10_000, confidence=0.9999, statistics=[lambda *_: LogProbability(ratio)]
        )
        bounds.append(found.epsilon_lower)
    assert 0.4 < bounds[0] <= noisy_max_of(2.0).map(1) < bounds[1]


def test_sums_and_the_price_of_a_kept_response_are_ours():
    read = dp.m.make_laplace(dp.atom_domain(T=int), dp.absolute_distance(T=int), scale=10.0)
    assert dp.c.make_composition([read] * 100).map(1) == pytest.approx(10.0)
    kept = dp.m.make_randomized_response_bitvec(dp.bitvector_domain(max_weight=2), dp.discrete_distance(), f=0.5)
    assert kept.map(1) == pytest.approx(Rappor(hashes=2, f=0.5).epsilon(None)) == pytest.approx(4 * math.log(3))
