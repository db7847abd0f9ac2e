"""The Fenwick tree: matrices, implicit products, and the closed-form weights against a solver and known values."""

# ruff: noqa: N806 (matrices keep their names from the papers)

import time

import pytest
import torch
from dp_accounting.rdp import rdp_privacy_accountant as rdp

from idpgan.continual import fast_diagonal
from idpgan.continual.fenwick import (
    ADJACENCY,
    accumulate,
    chain,
    matrices,
    node_sums,
    parents,
    prefix_sums,
    shares,
    uses,
)
from idpgan.errors import InputError
from idpgan.privacy import MatrixMechanism

SIZES = [1, 2, 3, 5, 6, 7, 8, 12, 31, 33, 64, 100]


def listed(n):
    """M and B by the chapter's loops, its two slips mended: `<= n`, and B[p, t] for B[t, p]."""
    M, B = torch.zeros(n, n).double(), torch.zeros(n, n).double()
    for p in range(1, n + 1):
        t = p
        while t <= n:
            M[t - 1, p - 1], t = 1.0, t + (t & -t)
        t = p
        while t > 0:
            B[p - 1, t - 1], t = 1.0, t - (t & -t)
    return B, M


@pytest.mark.parametrize("n", SIZES)
def test_the_matrices_are_the_chapters(n):
    B, M = matrices(n)
    assert torch.equal(B, listed(n)[0])
    assert torch.equal(M, listed(n)[1])
    assert torch.equal(B @ M, torch.ones(n, n).double().tril())
    assert torch.equal(B.sum(0), uses(n))


@pytest.mark.parametrize("n", [*range(1, 70), 255, 256, 257])
def test_how_many_ones_theorems_1_and_2_count(n):
    """The largest column of M, the first, has floor(log2 n) + 1; row p of B has as many as p in binary."""
    B, M = matrices(n)
    assert M.sum(0).max() == M[:, 0].sum() == n.bit_length()
    assert B.sum(1).tolist() == [p.bit_count() for p in range(1, n + 1)]


def test_implicit_products_of_batches_and_of_a_stream_in_two_parts():
    values = torch.randint(9, (2, 3, 77), generator=torch.Generator().manual_seed(0))
    nodes = node_sums(values)
    assert torch.equal(nodes.double(), values.double() @ matrices(77)[1].T)
    assert torch.equal(prefix_sums(nodes), values.cumsum(-1))
    for split in (1, 31, 32, 40, 76):
        known = chain(split)
        earlier = torch.nn.functional.pad(values.cumsum(-1), (1, 0))[..., known]
        sums = accumulate(nodes[..., split:], earlier, split + 1, parents(split + 1, 77, known))
        assert torch.equal(sums[..., len(known) :], values.cumsum(-1)[..., split:])


@pytest.mark.parametrize(
    ("n", "total"), [(3, 25.0839), (7, 144.7093), (12, 479.3784), (31, 2204.4503), (100, 16451.67)]
)
def test_totals_that_were_found_by_slsqp(n, total):
    """Total squared errors at epsilon = 1, from the project's notes, checked there against scipy's SLSQP."""
    assert 2 * fast_diagonal(n)[1] == pytest.approx(total, rel=3e-6)
    weights, (B, M) = fast_diagonal(n)[0], matrices(n)
    dense = MatrixMechanism(B / weights, weights[:, None] * M, 1.0, 1.0, *ADJACENCY)
    assert dense.expected_error() == pytest.approx(total, rel=3e-6)


def test_the_chapters_example_of_three_steps():
    """32 / eps^2 without weights and 26 with its hand-made (1, 1, 2); the best weights have 25.08."""
    c = uses(3)
    assert 2 * 2**2 * float(c.sum()) == 32
    assert 2 * 2**2 * float((c / torch.tensor([1.0, 1.0, 2.0]) ** 2).sum()) == 26
    assert 2 * fast_diagonal(3)[1] < 26


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("later", [0, 9])
@pytest.mark.parametrize("n", [*SIZES, 1000])
def test_weights_are_feasible_and_their_error_is_the_objective(n, later, norm):
    weights, objective = fast_diagonal(n, norm, later)
    B, M = matrices(n)
    assert float((M.T @ weights**norm).max()) <= 1 + 1e-12
    counted = torch.ones(n).double()
    counted[-1] += later
    assert float((counted @ B.square()) @ weights**-2) == pytest.approx(objective, rel=1e-12)


@pytest.mark.parametrize("exponent", [0.3, 0.4])
def test_another_exponent_would_be_worse(exponent):
    """The control of the closed form: a split by another power is feasible and costs more."""
    left, count = fast_diagonal(31)[1], 32.0
    share = left**exponent / (left**exponent + count**exponent)
    assert left / share**2 + count / (1 - share) ** 2 > 1.0005 * (left ** (1 / 3) + count ** (1 / 3)) ** 3


@pytest.mark.parametrize("n", [*SIZES, 1000])
def test_whole_shares_never_exceed_the_budget(n):
    budget = (1 << 40) + 12345
    split = shares(1, n, n, budget)
    assert split.dtype == torch.int64
    loads = matrices(n)[1].long().T @ split
    assert int(loads.max()) <= budget
    assert torch.allclose(split.double() / budget, fast_diagonal(n)[0], rtol=1e-9, atol=0)


def test_a_part_of_the_shares_needs_no_others():
    whole = shares(1, 1000, 1000, later=3)
    for first, last in ((1, 1), (512, 512), (1000, 1000), (300, 900)):
        assert torch.equal(shares(first, last, 1000, later=3), whole[first - 1 : last])
    started = time.process_time()
    far = shares(12345678901234, 12345678901240, 10**17)  # O(log n): nobody could hold the others
    assert time.process_time() - started < 0.5
    assert bool(((far > 0) & (far < 1)).all())


def test_gaussian_weights_for_a_gaussian_stream():
    """Laplace weights used for Gaussian noise cost 3.4 times the variance at 10 steps and 5.3 times at 100 (notes)."""
    for n, times in ((10, 3.4), (100, 5.3)):
        laplace, (_, best) = fast_diagonal(n)[0], fast_diagonal(n, norm=2)
        assert float((uses(n) / laplace).sum()) > best  # as variances of w = lambda, feasible by themselves
        assert float((uses(n) / laplace**2).sum()) / best == pytest.approx(times, abs=0.06)


@pytest.mark.parametrize("steps", [1, 3, 4, 7, 8, 100, 1000])
def test_the_plain_trees_depth_is_that_of_dp_accounting(steps):
    order, sigma = 8.0, 3.0
    priced = rdp._compute_rdp_single_epoch_tree_aggregation(sigma, steps, [order])[0]
    depth = float(matrices(steps)[1].sum(0).max())
    assert priced == pytest.approx(order * depth / (2 * sigma**2))


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "3", 1 << 61])
def test_a_number_of_steps_that_is_none(n):
    with pytest.raises(InputError, match="whole number"):
        fast_diagonal(n)


def test_bad_arguments():
    with pytest.raises(InputError, match="norm"):
        fast_diagonal(3, norm=3)
    with pytest.raises(InputError, match="too small"):
        shares(1, 1000, 1000, 5)
    with pytest.raises(InputError, match="first"):
        shares(5, 4, 10)
    with pytest.raises(InputError, match="whole number"):
        matrices(1 << 20)


@pytest.mark.slow
def test_a_million_steps_in_a_second():
    started = time.process_time()
    fast_diagonal(10**6)
    assert time.process_time() - started < 1
