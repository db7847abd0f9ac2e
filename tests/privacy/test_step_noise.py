"""Noise of exact steps: part 4 of the proof in `idpgan.privacy.dpsgd`, and frauds that must be caught."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest, norm

from idpgan.privacy import DPSGDPlan, Noise
from tests.privacy.test_exact_steps import PLAN, S


def coarse(monkeypatch, multiplier):
    """Noise on a grid so coarse that a test sees its steps."""
    monkeypatch.setattr(DPSGDPlan, "grid", 0.5)
    return DPSGDPlan(0.5, 1.0, 1, multiplier).grid_noise(100_000, Noise.fixed(4)).numpy()


def test_the_noise_is_a_rounded_normal_of_the_scale_that_is_charged_for(monkeypatch):
    numbers = coarse(monkeypatch, 1.5)  # 3 steps
    assert numbers.dtype == np.int64
    edges = np.arange(-9, 10)
    counts = np.histogram(numbers, np.concatenate([[-np.inf], edges + 0.5, [np.inf]]))[0]

    def p_value(scale, offset):
        law = np.diff(norm(offset, scale).cdf(np.concatenate([[-np.inf], edges + 0.5, [np.inf]])))
        return chisquare(counts, law * len(numbers)).pvalue

    assert p_value(3.0, 0.0) > 1e-3
    for scale, offset in ((2.7, 0.0), (3.3, 0.0), (3.0, 0.5), (3.0, -0.5), (3.0, 0.1)):  # less, more, another offset
        assert p_value(scale, offset) < 1e-3


def test_the_fine_noise_is_normal_and_never_below_what_is_charged_for():
    plan = DPSGDPlan(0.5, 2.0, 1, 1.7)
    numbers = plan.grid_noise(50_000, Noise.fixed(1)).double().numpy() / (1.7 * S)
    assert kstest(numbers, norm.cdf).pvalue > 1e-3
    assert kstest(numbers / 0.9, norm.cdf).pvalue < 1e-3  # 10 % too little
    assert math.ceil(plan.noise_multiplier / plan.grid) >= 1.7 * S


@pytest.mark.parametrize(("multiplier", "bits"), [(1e-30, 32), (1.0, 32), (2.0**17, 32), (2.0**18, 31), (2.0**40, 9)])
def test_the_grid_is_public_and_leaves_room_for_the_noise(multiplier, bits):
    plan = DPSGDPlan(0.1, 3.0, 5, multiplier)
    assert plan.event.grid == plan.grid == 2.0**-bits
    assert math.ceil(multiplier / plan.grid) <= 2**50


def step_of(sums, seed=3):
    weight = torch.zeros(len(sums), dtype=torch.float64, requires_grad=True)
    PLAN.noisy_step(torch.optim.SGD([weight], 1.0), {"w": weight}, {"w": sums}, Noise.fixed(seed))
    return -weight.detach() * PLAN.divisor / PLAN.step


def test_what_is_released_is_whole_and_the_sum_only_moves_it():
    sums = torch.tensor([0.0, 7.0, -S, 2.0**40])
    empty, moved = step_of(torch.zeros(4).double()), step_of(sums.double())
    assert torch.allclose(empty, empty.round(), rtol=0, atol=1e-4)
    assert torch.allclose(moved - empty, sums.double(), rtol=0, atol=1e-3)
    assert (empty.abs() > S / 1000).all()  # an empty batch is a step with noise


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.5, 2.0**54])
def test_a_sum_that_is_not_whole_is_not_released(bad):
    with pytest.raises(ValueError, match="nothing is released"):
        step_of(torch.tensor([1.0, bad]).double())


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.5, 2.0**54])
def test_a_gpu_does_not_wait_to_see_a_sum_that_is_not_whole_and_no_weight_outlives_it(bad, monkeypatch):
    monkeypatch.setattr("idpgan.privacy.dpsgd.is_gpu", lambda device: True)
    monkeypatch.setattr("idpgan.privacy.dpsgd.sent", lambda tensor, device: tensor)
    assert step_of(torch.tensor([1.0, bad]).double()).isnan().all()
    assert step_of(torch.tensor([1.0, 2.0]).double()).isfinite().all()
