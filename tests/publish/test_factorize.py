"""Factors and projections against loops, scipy and their defining conditions."""

# ruff: noqa: N803, N806 (matrices keep their names from the papers)

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import isotonic_regression

from idpgan.privacy import Noise
from idpgan.privacy.matrix import add_laplace, column_norm
from idpgan.publish.matrix import (
    decompose,
    descend,
    eigen_design,
    low_rank_mechanism,
    non_increasing,
    project_columns,
)
from tests.publish.pictures import pictures

NUMBERS = st.floats(-1e3, 1e3, width=32)


def test_the_example_of_the_paper():
    values = torch.tensor([[10.0, 14.0, 9.0]])
    assert non_increasing(values, torch.ones(1, 3, dtype=torch.bool)).tolist() == [[12.0, 12.0, 9.0]]
    # Theorem 6 as printed, min over j of max over i of the means: 10 in front, which is not a projection.
    means = {(i, j): values[0, i : j + 1].mean().item() for i in range(3) for j in range(i, 3)}
    assert min(max(means[i, j] for i in range(j + 1)) for j in range(3)) == 10.0


@settings(max_examples=60, deadline=None)
@given(values=arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=NUMBERS))
def test_refinement_is_isotonic_regression(values):
    refined = non_increasing(torch.from_numpy(values), torch.ones(values.shape, dtype=torch.bool)).numpy()
    expected = np.stack([isotonic_regression(row, increasing=False).x for row in values])
    np.testing.assert_allclose(refined, expected, atol=1e-9 * (1 + abs(values).max()))


def test_refinement_keeps_to_each_rows_prefix():
    values = Noise.fixed(1).normal((50, 30))
    lengths = torch.arange(50) % 31
    kept = torch.arange(30) < lengths[:, None]
    refined = non_increasing(values, kept)
    for row, length in enumerate(lengths.tolist()):
        expected = isotonic_regression(values[row, :length].numpy(), increasing=False).x if length else np.empty(0)
        np.testing.assert_allclose(refined[row, :length].numpy(), expected, atol=1e-12)
    assert not refined[~kept].any()


def test_rank_and_zero_columns_of_the_decomposition():
    images = pictures(4, 7, 5)
    images[1] = 0
    images[2] = 0.4
    images[3, :, 2:] = images[3, :, :1]
    svd = decompose(images)
    assert svd.rank.tolist() == [5, 0, 1, 2]
    assert torch.allclose((svd.U * svd.S[:, None]) @ svd.Vh, images, atol=1e-12)
    assert not svd.U[2, :, 1:].any()
    B, L = eigen_design(images)
    assert torch.allclose(B @ L, images, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(values=arrays(np.float64, st.tuples(st.just(2), st.integers(1, 6), st.integers(1, 4)), elements=NUMBERS))
def test_projection_on_the_l1_ball_meets_its_conditions(values):
    """For the projection p of v: |p|_1 <= 1, and (v - p).(q - p) <= 0 at every corner q of the ball."""
    matrices = torch.from_numpy(values)
    projected = project_columns(matrices)
    assert (column_norm(projected) <= 1 + 1e-9).all()
    gap = matrices - projected
    at_corner = gap.abs().amax(-2)  # largest (v - p).q over corners q = +- e_i
    assert (at_corner <= (gap * projected).sum(-2) + 1e-6 * (1 + abs(values).max())).all()
    inside = matrices.abs().sum(-2) <= 1
    assert torch.equal(projected.mT[inside], matrices.mT[inside])


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (1, 3), (3, 1)])
def test_diagonals_are_the_sequential_algorithm(shape):
    """Lines 2-7 pixel by pixel, in the order of the cyclic diagonals, with the same noise."""
    images, (m, n) = pictures(2, *shape), shape
    rate, tau = 0.05, 0.1

    def add(noise):
        return lambda L: add_laplace(L, column_norm(L)[:, None, None] / 2.0, noise)

    B, L = descend(images, add(Noise.fixed(5)), sweeps=3, learning_rate=rate, regularization=tau)
    slow_B, slow_L = eigen_design(images)
    add_noise = add(Noise.fixed(5))
    for _ in range(3):
        drawn = (add_noise(slow_L) - slow_L) * (slow_L != 0).any(2, keepdim=True)
        for image in range(2):
            for offset in range(max(m, n)):
                for step in range(min(m, n)):
                    moved = (step + offset) % max(m, n)
                    i, j = (moved, step) if m >= n else (step, moved)
                    b, right = slow_B[image, i].clone(), slow_L[image, :, j].clone()
                    noisy = right + drawn[image, :, j]
                    error = images[image, i, j] - b @ noisy
                    gamma_b, gamma_l = (min(rate, 1 / max(v @ v, torch.tensor(1e-300))) for v in (noisy, b))
                    slow_B[image, i] = b + gamma_b * (error * noisy - tau * b)
                    slow_L[image, :, j] = right + gamma_l * (error * b - tau * right)
    assert torch.allclose(B, slow_B, atol=1e-10)
    assert torch.allclose(L, slow_L, atol=1e-10)


@pytest.mark.trained
def test_descent_without_noise_approaches_a_regularized_fit():
    images = pictures(3, 12, 9)
    B, L = descend(images, lambda L: L, sweeps=200, learning_rate=0.01, regularization=0.01)
    assert (B @ L - images).square().mean() < 0.01 * images.square().mean()
    assert not torch.equal(B, eigen_design(images)[0])


def test_the_printed_step_explodes_and_the_capped_one_does_not():
    images = pictures(1, 24, 20)

    def add(L):
        return add_laplace(L, column_norm(L)[:, None, None] / 0.1, Noise.fixed(6))

    B, L = descend(images, add, sweeps=20, learning_rate=0.01, regularization=0.1)
    assert bool(B.isfinite().all() & L.isfinite().all())
    noisy = add(eigen_design(images)[1])
    assert 0.01 * noisy.square().sum(1).min() > 20  # an update multiplies the error by 1 minus this


@pytest.mark.trained
def test_low_rank_mechanism_is_feasible_and_better_than_no_factorisation():
    images = pictures(21, 20, 14)
    images[20] = 0
    B, L = low_rank_mechanism(images, iterations=50)
    assert (column_norm(L) <= 1 + 1e-9).all()
    assert (B @ L - images).norm() < 0.03 * images.norm()
    assert B.square().sum() < 0.8 * images.square().sum()  # B = A, L = I has |A|^2
    assert not (B @ L)[20].any()
    once = low_rank_mechanism(images[:1], iterations=50)
    assert torch.allclose(once[0], B[:1], rtol=1e-6)  # images do not influence each other
