"""Relevance, allocation and binning: conservation, known networks, and what a bin may not do."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from idpgan.errors import InputError
from idpgan.models.initialize import seeded_init
from idpgan.models.perturbed import PixelNoise, allocate, bin_allocation, mean_relevance, propagate_relevance
from idpgan.privacy import compose_epsilon


def images(count=4, seed=0):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def network(bias=False):
    with seeded_init(3):
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=bias), nn.ReLU(), nn.AvgPool2d(2),
            nn.Flatten(), nn.Linear(64, 10, bias=bias), nn.LeakyReLU(0.2), nn.Linear(10, 3, bias=bias),
        )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 3])  # 3: a score near zero, of which the stabiliser keeps more than 1e-4
def test_a_linear_network_hands_back_weight_times_pixel(seed):
    with seeded_init(seed):
        linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 2, bias=False))
    x, labels = images(), torch.tensor([0, 1, 1, 0])
    outputs = linear(x).detach()
    score = outputs.gather(1, labels[:, None]).abs().view(4, 1, 1, 1)
    handed = score / (score + 1e-6 * outputs.abs().max())  # the epsilon rule's share
    expected = x * linear[1].weight[labels].view(4, 1, 8, 8) * handed
    assert torch.allclose(propagate_relevance(linear, x, labels), expected, rtol=1e-4, atol=1e-6)


def test_without_biases_the_score_is_conserved():
    x, labels = images(), torch.tensor([0, 1, 2, 0])
    net = network()
    score = net(x).gather(1, labels[:, None]).squeeze(1)
    relevance = propagate_relevance(net, x, labels).flatten(1).sum(1)
    assert torch.allclose(relevance, score, rtol=1e-3, atol=1e-5)
    biased = network(bias=True)  # negative control: a bias keeps a share
    kept = biased(x).gather(1, labels[:, None]).squeeze(1) - propagate_relevance(biased, x, labels).flatten(1).sum(1)
    assert kept.abs().max() > 1e-2


def test_a_pixel_that_no_weight_touches_gets_the_floor_and_the_others_the_rest():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    with torch.no_grad():
        linear[1].weight[:, :32] = 0
    relevance = mean_relevance(linear, images(7), torch.zeros(7, dtype=torch.int64), batch_size=3)
    assert relevance.shape == (1, 8, 8)
    assert relevance.flatten()[:32].abs().max() == 0
    beta = allocate(relevance, 0.1)
    assert len(set(beta[:32])) == 1
    assert max(beta[:32]) <= min(beta[32:])


def test_an_unknown_layer_is_refused():
    with pytest.raises(InputError, match="no rule for a layer of kind Sigmoid"):
        propagate_relevance(nn.Sequential(nn.Flatten(), nn.Sigmoid()), images(), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(InputError, match="public images"):
        mean_relevance(network(), images(0), torch.zeros(0, dtype=torch.int64))


relevances = st.lists(st.floats(-50, 50), min_size=2, max_size=60).filter(lambda row: any(abs(v) > 1e-3 for v in row))


@settings(max_examples=50, deadline=None)
@given(relevances, st.floats(0.01, 1))
def test_an_allocation_sums_to_n_and_keeps_the_order(row, floor):
    beta = allocate(torch.tensor(row, dtype=torch.float64), floor)
    assert math.fsum(beta) == pytest.approx(len(row), rel=1e-9)
    assert min(beta) > 0
    ranked = sorted(range(len(row)), key=lambda i: abs(row[i]))
    assert all(beta[a] <= beta[b] * (1 + 1e-12) for a, b in itertools.pairwise(ranked))
    binned = bin_allocation(beta, 8)
    assert sum(count for _, count in binned) == len(beta)
    # Each divisor is stated by one at least as large: k pixels have at least as many stated divisors above them.
    stated = sorted((top for top, count in binned for _ in range(count)), reverse=True)
    assert all(a >= b for a, b in zip(stated, sorted(beta, reverse=True), strict=True))


@pytest.mark.parametrize("bad", [0.0, -0.1, 1.1])
def test_a_floor_out_of_range_is_refused(bad):
    with pytest.raises(InputError, match="floor"):
        allocate(torch.ones(3), bad)


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.tensor([1.0, math.nan])])
def test_no_relevance_is_refused(bad):
    with pytest.raises(InputError, match="mean relevance"):
        allocate(bad, 0.1)


def test_binning_rounds_up_and_a_uniform_allocation_costs_what_it_did():
    uniform = PixelNoise((1, 8, 8), 40.0, "once")
    same = PixelNoise((1, 8, 8), 40.0, "once", (1.0,) * 64)
    assert same.events() == uniform.events()
    beta = allocate(torch.rand(64, generator=torch.Generator().manual_seed(1)), 0.1)
    noise = PixelNoise((1, 8, 8), 40.0, "once", beta)
    exact = [uniform.events()[0].repeated(1).__class__("laplace", e.unit, e.relation, 40.0 / (2 * b))
             for e in uniform.events() for b in beta]  # fmt: skip
    fine, binned = compose_epsilon(exact, 1e-5), noise.proven(1e-5).epsilon
    assert fine <= binned <= 1.1 * fine
    assert binned > uniform.proven(1e-5).epsilon  # uneven noise costs more at delta > 0
    # The pure bound n R / b0 stays, up to the rounding of the bins.
    assert sum(event.pure * event.count for event in exact) == pytest.approx(uniform.pure_epsilon, rel=1e-9)
    assert sum(event.pure * event.count for event in noise.events()) <= 1.1 * uniform.pure_epsilon
