"""Every mechanism: B M = W, its sensitivity by brute force, its error by simulation, its epsilon by audit."""

# ruff: noqa: N806 (matrices keep their names from the papers)

import math

import numpy as np
import pytest
import torch
from factorizations import (
    MECHANISMS,
    error_table,
    factorization,
    sequential_quadratic,
    smooth_height,
    square_root_coefficients,
)
from scipy.optimize import brentq
from scipy.stats import norm as norm_law

from idpgan.audit import audit
from idpgan.audit.statistics import Nearness
from idpgan.continual.fenwick import ADJACENCY, fast_diagonal
from idpgan.errors import InputError
from idpgan.privacy import Ledger, Noise

EACH = [(name, norm) for name in MECHANISMS for norm in (1, 2)]


def dense(found, n):
    M = found.strategy(torch.eye(n, dtype=torch.float64)).T
    B = found.answers(torch.eye(M.shape[0], dtype=torch.float64)).T
    return B, M


@pytest.mark.parametrize(("name", "norm"), EACH)
@pytest.mark.parametrize("n", [1, 2, 7, 12, 33])
def test_factors_sensitivity_and_row_norms(name, norm, n):
    found = factorization(name, n, norm)
    B, M = dense(found, n)
    assert torch.allclose(B @ M, torch.ones(n, n).double().tril(), atol=1e-9)
    assert torch.allclose(B.square().sum(1), found.squares)
    largest = float(torch.linalg.vector_norm(M, ord=norm, dim=0).max())
    assert largest <= found.sensitivity * (1 + 1e-12)
    if name == "budget by level":  # which keeps something for further levels
        assert largest == pytest.approx(
            (6 / math.pi**2 * sum(k**-2 for k in range(1, n.bit_length() + 1))) ** (1 / norm)
        )
    elif name != "binary tree":  # which pays for nodes that no answer uses
        assert largest == pytest.approx(found.sensitivity)


@pytest.mark.parametrize(("name", "norm"), EACH)
def test_a_simulation_agrees_with_the_formula(name, norm):
    found = factorization(name, 100, norm)
    unit = 2.0 if norm == 1 else 1.0
    squares = found.release(torch.zeros(4000, 100), 1.0, Noise.fixed(norm)).square() / unit
    worst = int(found.variance.argmax())
    for measured, expected in (
        (squares.mean(1), found.variance.mean()),
        (squares[:, worst], found.variance.max()),
    ):
        error = measured.std() / len(measured) ** 0.5
        assert abs(measured.mean() - expected) < 3 * error
        assert abs(measured.mean() - 1.25 * expected) > 3 * error  # it would notice 12 % more noise


DATA = torch.tensor([3.0, 0.0, 2.0, 5.0, 1.0, 0.0, 4.0], dtype=torch.float64)
CONFIDENCE = 1 - 0.001 / len(EACH)


def gaussian_delta(multiplier, epsilon):
    """Balle and Wang (2018), Theorem 8."""
    half, shift = 0.5 / multiplier, epsilon * multiplier
    return norm_law.cdf(half - shift) - np.exp(epsilon) * norm_law.cdf(-half - shift)


def audited(name, norm, multiplier, delta, forget=False):
    """Audit the strategy's noisy answers: what is released is computed from them."""
    found, noise = factorization(name, 7, norm), Noise.fixed(3)
    column = int(torch.linalg.vector_norm(dense(found, 7)[1], ord=norm, dim=0).argmax())
    neighbor = DATA.clone()
    neighbor[column] += 1
    mechanism = found.mechanism(multiplier / found.sensitivity if forget else multiplier)

    def statistic(data, other):
        return Nearness(found.strategy(data), found.strategy(other), order=norm, unit=1.0)

    return audit(
        lambda rows: mechanism(found.strategy(rows), noise), DATA, neighbor,
        runs=20_000, delta=delta, confidence=CONFIDENCE, statistics=[statistic],
    )  # fmt: skip


@pytest.mark.parametrize(("name", "norm"), EACH)
def test_an_audit_finds_no_more_than_epsilon(name, norm):
    epsilon, delta = (1.0, 0.0) if norm == 1 else (3.0, 1e-2)
    multiplier = 1.0 if norm == 1 else brentq(lambda m: gaussian_delta(m, epsilon) - delta, 0.1, 10)
    found = audited(name, norm, multiplier, delta).epsilon_lower
    assert 0.3 * epsilon < found <= epsilon


@pytest.mark.parametrize("name", ["noise per output", "fenwick", "binary tree"])
def test_a_forgotten_sensitivity_is_caught(name):
    assert audited(name, 1, 1.0, 0.0, forget=True).epsilon_lower > 1.0


def test_square_root_coefficients_are_those_of_jax_privacy():
    """`toeplitz.optimal_max_error_strategy_coefs`: 1, 1/2, 3/8, 5/16, ... = binomial(2k, k) / 4^k, C @ C = ones."""
    coefficients = square_root_coefficients(6)
    golden = torch.tensor([1, 1 / 2, 3 / 8, 5 / 16, 35 / 128, 63 / 256], dtype=torch.float64)
    assert torch.allclose(coefficients, golden, rtol=1e-15)
    assert float(factorization("square-root toeplitz", 10, 2).variance.max()) == pytest.approx(3.2089, abs=1e-4)


def test_the_last_of_ten_sums_with_gaussian_noise():
    """Variances of a single release (notes): 6.1 with weights, about 3.2 with the square root."""
    assert float(factorization("fda", 10, 2).variance[-1]) == pytest.approx(6.1, abs=0.05)
    assert float(factorization("square-root toeplitz", 10, 2).variance[-1]) == pytest.approx(3.2, abs=0.05)


def test_the_height_of_the_smooth_mechanism():
    """The authors' code takes the least even height h with binomial(h, h/2) > T, and h/2 ones: 4, 10, 24 here."""
    for steps, height in ((5, 4), (250, 10), (10**6, 24)):
        tall, ones = smooth_height(steps, 2)
        assert ones * (tall - ones) <= (height // 2) ** 2
        assert tall <= height
    assert smooth_height(250, 2) == (10, 5)
    # Pure epsilon: fewer nodes per value, more per answer, pays.
    tall, ones = smooth_height(10**6, 1)
    assert ones * (tall - ones) ** 2 < 12 * 12**2


def test_the_table_is_exact_and_sorted():
    rows = error_table(1023, epsilon=0.5, delta=1e-6)
    assert [row.mean for row in rows] == sorted(row.mean for row in rows)
    found = {(row.mechanism, row.noise): row for row in rows}
    assert len(found) == 2 * len(MECHANISMS)
    assert found["fda", "Laplace"].mean == pytest.approx(2 * fast_diagonal(1023)[1] / 1023 / 0.25)
    assert found["fenwick", "Laplace"].largest == pytest.approx(2 * 10 * 10**2 / 0.25)
    assert {row.noise for row in error_table(7, 1.0)} == {"Laplace"}


def test_a_release_is_charged_once_and_first():
    ledger = Ledger(*ADJACENCY)
    factorization("fda", 3).release(torch.tensor([[1.0, 2.0, 3.0]]), 2.0, Noise.fixed(0), ledger)
    assert ledger.epsilon(0.0) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="finite"):
        factorization("fda", 3).release(torch.tensor([1.0, float("nan"), 3.0]), 2.0, Noise.fixed(0))


def test_unknown_mechanisms_are_named():
    with pytest.raises(InputError, match="known: noise per step"):
        factorization("magic", 3)
    with pytest.raises(InputError, match="norms 1 and 2"):
        factorization("fda", 3, norm=3)


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("n", [*range(1, 17), 33, 64])
def test_the_closed_form_is_the_solvers_optimum(n, norm):
    weights, objective = fast_diagonal(n, norm)
    solved, least = sequential_quadratic(n, norm)
    assert objective == pytest.approx(least, rel=1e-9)
    assert torch.allclose(weights, solved, atol=1e-6)
