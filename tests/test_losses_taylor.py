"""The Taylor loss of IDP-GAN: against the true loss, against its own coefficients, and its sensitivity by force."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idpgan.models.losses import (
    ORDERS,
    OUTPUT_LOSSES,
    squared_error,
    taylor_coefficients,
    taylor_cross_entropy,
    taylor_curvature,
    taylor_polynomial,
    taylor_sensitivity,
)


def true_cross_entropy(z, y):
    """``y log(1 + e^-z) + (1 - y) log(1 + e^z)``, summed over outputs: what eq. 10 means without its sign slips."""
    softplus = torch.nn.functional.softplus
    return (y * softplus(-z) + (1 - y) * softplus(z)).sum(1)


def derivatives(loss, y):
    """Value, first and second derivatives at z = 0 of each of M outputs."""
    z = torch.zeros(1, len(y), dtype=torch.float64)
    value = loss(z, y[None])[0]
    gradient = torch.autograd.functional.jacobian(lambda v: loss(v, y[None])[0], z)
    hessian = torch.autograd.functional.hessian(lambda v: loss(v, y[None])[0], z)
    return value, gradient.flatten(), hessian.flatten(2).reshape(len(y), len(y))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_value_and_two_derivatives_are_those_of_the_true_loss(targets):
    y = torch.tensor(targets, dtype=torch.float64)
    for found, wanted in zip(derivatives(taylor_cross_entropy, y), derivatives(true_cross_entropy, y), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_the_printed_signs_would_be_seen():
    def printed(z, y):  # eq. 10-11 as printed: a minus in front of everything
        return -true_cross_entropy(z, y)

    y = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for found, wrong in zip(derivatives(taylor_cross_entropy, y), derivatives(printed, y), strict=True):
        assert not torch.allclose(found, wrong, atol=0.1)


def test_the_error_is_of_order_four():
    y = torch.tensor([[1.0]], dtype=torch.float64)
    errors = [
        (taylor_cross_entropy(z, y) - true_cross_entropy(z, y)).abs().item()
        for z in (torch.full((1, 1), value, dtype=torch.float64) for value in (0.1, 0.2))
    ]
    assert math.log2(errors[1] / errors[0]) == pytest.approx(4, abs=0.05)


def record(seed, batch=5, outputs=3, features=4):
    rng = torch.Generator().manual_seed(seed)
    h = torch.rand(batch, features, generator=rng, dtype=torch.float64) * 2 - 1
    y = torch.randint(2, (batch, outputs), generator=rng).double()
    w = torch.randn(outputs, features, generator=rng, dtype=torch.float64)
    return h, y, w


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([("cross-entropy", math.log(2)), ("squared-error", 0.5)]))
def test_the_loss_is_the_polynomial_of_its_coefficients(seed, loss):
    h, y, w = record(seed)
    first, second = taylor_coefficients(h, y, loss[0])
    polynomial = taylor_polynomial(first.sum(0), second.sum(0).expand(3, 4, 4), w)
    assert torch.allclose(OUTPUT_LOSSES[loss[0]](h @ w.T, y).sum(), polynomial + 5 * 3 * loss[1])
    # Linear in the coefficients: noise on them is the same polynomial of the noise.
    noise = torch.randn(3, 4), torch.randn(3, 4, 4)
    noise = noise[0].double(), (noise[1] + noise[1].mT).double()
    both = taylor_polynomial(first.sum(0) + noise[0], second.sum(0) + noise[1], w)
    assert torch.allclose(both, polynomial + taylor_polynomial(*noise, w))


def test_the_squared_error_is_exact_far_from_zero_where_the_expansion_is_not():
    z, y = torch.tensor([[6.0, -6.0]], dtype=torch.float64), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert squared_error(z, y).item() == 2 * (6 - 1) ** 2 / 2
    assert derivatives(squared_error, torch.tensor([0.5]))[1].item() == 0  # without a label order 1 vanishes
    assert taylor_cross_entropy(z, y).item() > true_cross_entropy(z, y).item() + 1


@pytest.mark.parametrize("loss", ["cross-entropy", "squared-error"])
@pytest.mark.parametrize(("outputs", "features"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_no_replaced_record_moves_the_coefficients_further_than_the_sensitivity(outputs, features, loss):
    levels = torch.linspace(-1, 1, 5, dtype=torch.float64).tolist()
    records = [
        (torch.tensor([h], dtype=torch.float64), torch.tensor([y], dtype=torch.float64))
        for h in itertools.product(levels, repeat=features)
        for y in itertools.product((0.0, 1.0), repeat=outputs)
    ]
    vectors = []
    for h, y in records:
        first, second = taylor_coefficients(h, y, loss)
        vectors.append(torch.cat([first.flatten(), second.expand(outputs, features, features).flatten()]))
    stacked = torch.stack(vectors)
    worst = torch.cdist(stacked, stacked, p=1).max().item()
    bound = taylor_sensitivity(outputs, features, loss)
    assert worst <= bound
    assert (worst > taylor_sensitivity(outputs, features)) == (loss == "squared-error")  # the other's is too small
    assert worst > 0.55 * bound  # so a bound that forgets a factor 2 would be caught
    # What the proof for labels uses: with h fixed, another class moves 2 d numbers by at most a each.
    h = torch.ones(1, features, dtype=torch.float64)
    rows = (torch.tensor([row], dtype=torch.float64) for row in ([1.0, 0.0], [0.0, 1.0]))
    old, new = (taylor_coefficients(h, row, loss) for row in rows)
    change = (old[0] - new[0]).abs()
    assert change.max() == ORDERS[loss][0]
    assert int((change > 0).sum()) == 2 * features
    assert torch.equal(old[1], new[1])


def test_the_sensitivity_is_the_papers():
    assert taylor_sensitivity(1, 8) == 8 + 16
    assert taylor_sensitivity(11, 32) == 11 * (32 + 256)
    assert taylor_sensitivity(11, 32, "squared-error") == 11 * (64 + 1024)


def test_curvature_tells_whether_the_loss_has_a_lower_bound():
    good = torch.eye(3).expand(1, 3, 3)
    bad = torch.diag(torch.tensor([1.0, 1.0, -0.5]))[None]
    second = torch.cat([good, bad])
    assert (taylor_curvature(second, 0.0) < 0).tolist() == [False, True]
    assert (taylor_curvature(second, 2.0) < 0).tolist() == [False, False]  # the L2 term gives it one
    direction = torch.tensor([0.0, 0.0, 1e3])
    far = taylor_polynomial(torch.zeros(1, 3), bad, direction[None])
    assert far < -1e5
