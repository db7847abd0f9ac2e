r"""The singular value decomposition of a batch of matrices by products, QR and symmetric eigenproblems: for CUDA.

cuSOLVER decomposes matrices with a side above 32 one after the other. Here every step takes the whole batch, in
float64, and the number of launches does not depend on what the matrices hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from idpgan.device import is_gpu
from idpgan.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_SHARE = 1e-6  # of the largest entry: what stands below the matrix, so that its Gram matrix is well-conditioned
_RESIDUAL = 1e-10  # of the largest value: the most that an entry of ``U diag(S) V^T`` may be off
_EIGH = 32  # largest side of cuSOLVER's batched eigenproblem
_LEADING = 1e-5  # of the largest value: one pass finds these to 1e-11 of it; the second looks at the others alone


def gram_svd(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Decompose (B, m, n), m >= n, finite, float64, the largest entry of each in [1/2, 1) or all zero.

    A pass takes orthonormal V from the Gram matrix ``A^T A``, and ``A V = Q R`` by reflections. A product of
    orthonormal V with A rounds to eps of the largest value s_1, so ``A = Q R V^T`` holds to eps. R is diagonal but for
    what squaring lost: an entry of row i is at most ``eps s_1^2 / s_i``, and no larger than its column. So rows of
    ``s_i >= 1e-5 s_1`` are right to 1e-11 s_1 and the rest of R is 1e-5 s_1 at most. The second pass does the same with
    that rest, enlarged. What is left beside the diagonal is dropped: an error of at most 1e-10 s_1. Each matrix is
    compared with its factors; those that fail are decomposed again, together, by the eigenproblem.

    Returns:
        U (B, m, n), S (B, n) non-increasing, V (B, n, n). U and V are orthonormal to some 10 n eps; ``U diag(S) V^T``
        is within 1e-10 of the largest value.
    """
    factors = _decompose(matrices, right_vectors)
    U, S, V = factors
    residual = ((U * S.unsqueeze(1)) @ V.mT - matrices).abs().amax((1, 2))
    failed = ~(residual <= _RESIDUAL * S[:, 0])  # of NaN too
    if bool(failed.any()):
        index = failed.nonzero().squeeze(1)
        for factor, part in zip(factors, _decompose(matrices[index], eigenvectors), strict=True):
            factor[index] = part
    return factors


def _decompose(matrices: Tensor, find: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Take both passes, with V as ``find`` finds it."""
    Q, R, V = _pass(matrices, find(matrices))
    values = R.diagonal(dim1=1, dim2=2).abs()
    rest = values < _LEADING * values.amax(1, keepdim=True)
    pairs = rest.unsqueeze(1) & rest.unsqueeze(2)
    scale = torch.where(pairs, R.abs(), 0.0).amax((1, 2), keepdim=True).clamp_min(torch.finfo(R.dtype).tiny)
    order = 2.0 + torch.arange(R.shape[1], 0, -1, dtype=R.dtype, device=R.device)  # apart, so that none of them mix
    enlarged = torch.where(pairs, R / scale, 0.0) + torch.diag_embed(torch.where(rest, 0.0, order))
    inner, R, turn = _pass(R, find(enlarged))
    diagonal = R.diagonal(dim1=1, dim2=2)
    S, index = diagonal.abs().sort(dim=1, descending=True)
    U = torch.where(diagonal < 0, -1.0, 1.0).unsqueeze(1) * (Q @ inner)
    picked = index.unsqueeze(1)
    return U.take_along_dim(picked, 2), S, (V @ turn).take_along_dim(picked, 2)


def right_vectors(matrices: Tensor) -> Tensor:
    """Return V (B, n, n) that diagonalizes ``A^T A`` to eps of its norm, the largest value first.

    It comes from the eigenproblem, which CUDA solves in batches up to a side of 32; above, from cuSOLVER's batched
    approximate SVD of ``[A; 1e-6 I]``, which has the same V and no zero values: of A itself it may fail. One step of
    Newton and Schulz makes that V orthonormal to eps.
    """
    if is_gpu(matrices.device) and matrices.shape[2] > _EIGH:
        tail = _SHARE * torch.eye(matrices.shape[2], dtype=matrices.dtype, device=matrices.device)
        try:
            longer = torch.cat([matrices, tail.expand(len(matrices), -1, -1)], 1)
            V = torch.linalg.svd(longer, full_matrices=False, driver="gesvda").Vh.mT
            return V @ (1.5 * torch.eye(V.shape[2], dtype=V.dtype, device=V.device) - 0.5 * V.mT @ V)
        except torch.linalg.LinAlgError:
            pass
    return eigenvectors(matrices)


def eigenvectors(matrices: Tensor) -> Tensor:
    """Return `right_vectors` from the eigenproblem, on any device."""
    return torch.linalg.eigh(matrices.mT @ matrices).eigenvectors.flip(2)


def _pass(A: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q, R and V with ``A V = Q R``."""
    return *reflections(A @ V), V


def reflections(A: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``A = Q R`` by Householder's reflections, each of the whole batch: Q (B, m, n), R (B, n, n)."""
    batch, m, n = A.shape
    tiny = torch.finfo(A.dtype).tiny
    R, mirrors = A.clone(), A.new_zeros(batch, n, m, 1)
    for k in range(n):
        v = mirrors[:, k, k:]
        column = R[:, k:, k : k + 1]
        v.copy_(column / column.abs().amax(1, keepdim=True).clamp_min(tiny))  # squares of what rounding left underflow
        v[:, :1] += torch.where(v[:, :1] < 0, -1.0, 1.0) * torch.linalg.vector_norm(v, dim=1, keepdim=True)
        v /= torch.linalg.vector_norm(v, dim=1, keepdim=True).clamp_min(tiny)
        R[:, k:, k:] -= 2 * v @ (v.mT @ R[:, k:, k:])
    Q = torch.eye(m, n, dtype=A.dtype, device=A.device).repeat(batch, 1, 1)
    for k in reversed(range(n)):
        v = mirrors[:, k, k:]
        Q[:, k:, k:] -= 2 * v @ (v.mT @ Q[:, k:, k:])
    return Q, R[:, :n].triu()
