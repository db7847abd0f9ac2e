"""A decomposition that ends well where LAPACK's divide and conquer gives up."""

from pathlib import Path

import numpy as np
import pytest
import torch

from idpgan.attacks.subspace import subspace_scores
from idpgan.numerics.svd import batched_svd, safe_svd

# A release of SRA (drawn face, 120 x 128, epsilon 1.3) on which MKL's float32 gesdd fails, as torch 2.11 calls it.
HARD = torch.from_numpy(np.load(Path(__file__).parent / "svd_gives_up.npy"))


def assert_decomposed(matrices, factors, eps=1.2e-7):
    left, values, right = factors
    product = (left * values.unsqueeze(-2)) @ right
    assert (product - matrices).abs().max() < 60 * eps * values[..., :1].amax()
    assert (left.mT @ left - torch.eye(left.shape[-1])).abs().max() < 60 * eps
    assert (right @ right.mT - torch.eye(left.shape[-1])).abs().max() < 60 * eps
    assert (values.diff(dim=-1) <= 0).all()


@pytest.fixture
def stubborn(monkeypatch):
    """LAPACK that gives up on every batch, and on every matrix whose first entry is negative."""
    real, calls = torch.linalg.svd, []

    def svd(matrices, **options):
        calls.append(tuple(matrices.shape))
        if matrices.ndim > 2 or matrices[0, 0] < 0:
            raise torch.linalg.LinAlgError("linalg.svd: The algorithm failed to converge")
        return real(matrices, **options)

    monkeypatch.setattr(torch.linalg, "svd", svd)
    return calls


@pytest.mark.parametrize("shape", [(3, 7, 5), (2, 2, 5, 7), (4, 6)])
def test_one_failure_does_not_void_the_batch(shape, stubborn):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    matrices.view(-1, *shape[-2:])[0, 0, 0] = -1.0
    assert_decomposed(matrices, safe_svd(matrices))
    assert len(stubborn) > 1


def test_a_matrix_that_lapack_gives_up_on():
    batch = torch.stack([HARD, torch.eye(*HARD.shape), torch.zeros_like(HARD)])
    assert_decomposed(batch, safe_svd(batch))
    assert_decomposed(batch, batched_svd(batch))
    assert subspace_scores(batch[:1], batch[:1]).item() == pytest.approx(1.0, abs=1e-3)


def test_numbers_that_are_not_finite_are_an_error():
    with pytest.raises(torch.linalg.LinAlgError):
        safe_svd(torch.full((2, 3, 3), torch.nan))
