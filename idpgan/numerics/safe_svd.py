"""The library's singular value decomposition, made to end well on every finite matrix."""

from __future__ import annotations

import torch
from torch import Tensor


def safe_svd(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose ``A = U diag(S) Vh`` by ``torch.linalg.svd``, and where that gives up, by QR iteration.

    Divide and conquer (LAPACK gesdd) fails on rare matrices: "The algorithm failed to converge because the input matrix
    is ill-conditioned or has too many repeated singular values". One such is a release of SRA, whose isotonic step
    repeats values. One failure voids the whole batch, so its matrices are then taken one by one.

    ``matrices`` are (..., m, n), floating point, finite. Returns U (..., m, r), S (..., r) non-increasing and
    Vh (..., r, n), r = min(m, n).

    Raises:
        torch.linalg.LinAlgError: If an entry is not finite (on the CPU).
    """
    try:
        return torch.linalg.svd(matrices, full_matrices=False)
    except torch.linalg.LinAlgError:
        if not bool(matrices.isfinite().all()):
            raise
    parts = [_one(matrix) for matrix in matrices.flatten(0, -3)] if matrices.ndim > 2 else [_one(matrices)]
    stacked = (torch.stack(factor) for factor in zip(*parts, strict=True))
    left, values, right = (factor.reshape(*matrices.shape[:-2], *factor.shape[1:]) for factor in stacked)
    return left, values, right


def _one(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    try:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    except torch.linalg.LinAlgError:
        import scipy.linalg

        factors = scipy.linalg.svd(matrix.double().cpu().numpy(), full_matrices=False, lapack_driver="gesvd")
        left, values, right = (torch.from_numpy(factor).to(matrix) for factor in factors)
    return left, values, right
