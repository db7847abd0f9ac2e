"""The matrix mechanism: its sensitivity by brute force, its noise, and the error that the papers state."""

# ruff: noqa: N806 (matrices keep their names from the papers)

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, laplace

from idpgan.errors import InputError
from idpgan.privacy import MatrixMechanism, Noise, Relation, Unit, compose_epsilon
from idpgan.privacy.matrix import add_laplace, column_norm, noisy_product

EVENT = (Unit.EVENT, Relation.ZERO_OUT)


def prefix_sums(size):
    """Fenwick factors of the running count, with B M = lower-triangular ones."""
    M, B = torch.zeros(size, size).double(), torch.zeros(size, size).double()
    for p in range(1, size + 1):
        t = p
        while t <= size:
            M[t - 1, p - 1], t = 1.0, t + (t & -t)
        t = p
        while t > 0:
            B[p - 1, t - 1], t = 1.0, t - (t & -t)
    return B, M


def test_the_sensitivity_is_the_largest_distance_of_all_neighbors():
    """All 2 x 2 data of values 0, 1, 2, all changes of entrywise L1 distance at most 2."""
    M = torch.tensor([[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]]).double()
    mechanism = MatrixMechanism(torch.eye(3).double(), M, 1.0, 2.0, *EVENT)
    data = [torch.tensor(values).double().view(2, 2) for values in itertools.product(range(3), repeat=4)]
    pairs = [(x, y) for x, y in itertools.combinations(data, 2) if (x - y).abs().sum() <= 2]
    largest = max((M @ (x - y)).abs().sum().item() for x, y in pairs)
    assert largest == pytest.approx(mechanism.sensitivity) == 12.0


def test_norms_of_rows_or_in_l2_would_be_too_small():
    M = torch.tensor([[1.0, -2.0], [0.5, 3.0], [0.0, 1.0]]).double()
    moved = (M @ torch.tensor([[0.0], [1.0]]).double()).abs().sum()
    assert moved == column_norm(M) == 6.0
    assert moved > M.square().sum(0).sqrt().max()
    assert moved > M.abs().sum(1).max()


def test_the_noise_has_the_scale_of_the_sensitivity():
    M = torch.tensor([[2.0, 0.0], [1.0, 1.0]]).double()
    mechanism = MatrixMechanism(torch.eye(2).double(), M, 0.5, 1.0, *EVENT)
    noise = mechanism(torch.zeros(20_000, 2, 1).double(), Noise.fixed(1)).flatten().numpy()
    assert kstest(noise, laplace(scale=1.5).cdf).pvalue > 1e-3
    for wrong in (1.35, 1.65, 0.5, 1.0):
        assert kstest(noise, laplace(scale=wrong).cdf).pvalue < 1e-6
    assert mechanism.event.pure == pytest.approx(2.0)
    assert compose_epsilon([mechanism.event], 0.0) == pytest.approx(2.0)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_fenwick_has_the_error_of_the_paper(epsilon):
    B, M = prefix_sums(3)
    mechanism = MatrixMechanism(B, M, 1 / epsilon, 1.0, *EVENT)
    assert torch.equal(B @ M, torch.ones(3, 3).double().tril())
    assert mechanism.expected_error() == pytest.approx(32 / epsilon**2)  # equation 5.2 of the chapter, N = 3
    x = torch.tensor([[1.0], [0.0], [1.0]]).double().expand(20_000, 3, 1)
    error = (mechanism(x, Noise.fixed(2)) - x.cumsum(1)).square().sum((1, 2)).mean().item()
    assert error == pytest.approx(32 / epsilon**2, rel=0.05)


def test_batches_have_independent_noise_and_keep_their_form():
    B, M = prefix_sums(5)
    mechanism = MatrixMechanism(B, M, 1.0, 1.0, *EVENT)
    released = mechanism(torch.zeros(4, 2000, 5, 1), Noise.fixed(3))
    assert (released.shape, released.dtype) == ((4, 2000, 5, 1), torch.float32)
    assert abs(np.corrcoef(released[0, :, 4, 0], released[1, :, 4, 0])[0, 1]) < 5 / math.sqrt(2000)


def test_a_scale_of_zero_adds_nothing_and_scales_are_per_matrix():
    L = torch.ones(2, 3, 400)
    noisy = noisy_product(None, L, torch.tensor([0.0, 2.0]), Noise.fixed(4))
    assert torch.equal(noisy[0], L[0])
    assert (noisy[1] - 1).abs().mean().item() == pytest.approx(2.0, rel=0.15)
    product = noisy_product(torch.full((2, 1, 3), 2.0), L, torch.tensor([0.0, 0.0]), Noise.fixed(4))
    assert torch.equal(product, torch.full((2, 1, 400), 6.0))


@pytest.mark.parametrize(
    ("answer", "scale"), [(math.nan, 1.0), (math.inf, 1.0), (0.0, math.nan), (0.0, -1.0), (0.0, math.inf)]
)
def test_noise_fails_closed(answer, scale):
    with pytest.raises(ValueError, match="finite"):
        add_laplace(torch.tensor([answer]), torch.tensor([scale]), Noise.fixed(1))


def test_what_does_not_fit_is_refused():
    B, M = prefix_sums(3)
    with pytest.raises(InputError, match="do not fit"):
        MatrixMechanism(B, M[:2], 1.0, 1.0, *EVENT)
    with pytest.raises(InputError, match="not be zero"):
        MatrixMechanism(B, M * 0, 1.0, 1.0, *EVENT)
    with pytest.raises(ValueError, match="must be"):
        MatrixMechanism(B, M, 1.0, 1.0, *EVENT)(torch.zeros(4, 1), Noise.fixed(1))
    with pytest.raises(ValueError, match="overflows"):
        add_laplace(torch.zeros(100), torch.tensor(3e38), Noise.fixed(1))
