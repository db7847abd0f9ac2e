r"""Singular value decomposition of a batch of matrices in one call, on the CPU and on CUDA.

``A = U diag(S) V^T`` per matrix: all triplets by LAPACK on the CPU and by `gram_svd` on CUDA, a few
leading ones by subspace iteration. This module checks the input, chooses between them (`choose_method`), cuts the
batch into chunks by memory, and on the CPU spreads the chunks over threads. Nothing here adds noise, so nothing here is
a release.

The singular value decomposition of a batch of matrices by products, QR and symmetric eigenproblems: for CUDA.

cuSOLVER decomposes matrices with a side above 32 one after the other. Here every step takes the whole batch, in
float64, and the number of launches does not depend on what the matrices hold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING

from idpgan.device import by_device, is_gpu, set_threads
from idpgan.errors import InputError
from idpgan.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


Factors = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor"]

LAPACK = "lapack"  # divide and conquer on the CPU, `gram_svd` on CUDA
SUBSPACE = "subspace"  # for truncated SVD only; where it does not converge, the library's full decomposition is used

_CHUNK_BYTES = 64 << 20, 4 << 30  # `by_device`: working memory of a chunk
_COPIES = 8  # approximate number of float64 matrices of size (m + n) x n that a method holds at once
_MAX_CHUNK = 32_768  # cuSOLVER's batched eigenproblem refuses 65,536 matrices
_WIDEST_BLOCK = 0.35  # share of the shorter side above which LAPACK's full decomposition was faster
_PROBED = 32  # one matrix in this many is tried before all go through `subspace`
_FEWEST_PROBED = 8  # a call with fewer matrices is not probed
_SAFE_CONDITION = 1e4  # of the wanted triplets: what `subspace` squares stays above the rounding of float32
_MORE_ROUNDS = 2  # extra rounds of `subspace`; with them rank 20 worked on all of ORL's faces and all drawn faces tried
_NEARLY = 200.0  # a residual up to this multiple of its limit gets more rounds, cheaper than a full decomposition


def batched_svd(matrices: torch.Tensor, rank: int | None = None) -> Factors:
    """Decompose every matrix of a batch, or find its leading singular triplets.

    Singular values are within a few eps of the largest one of the matrix, U and V orthonormal to about 20 eps, also for
    rank-deficient and zero matrices (eps: 1.2e-7 for float32, 2.2e-16 for float64); on CUDA, for float64, ``U S Vh`` is
    within 1e-10 of the largest value. Signs of the vectors, and the basis
    within equal singular values, are not fixed: they may differ between methods and devices. The result carries no
    gradient. On the CPU at most ``torch.get_num_threads()`` threads work; the caller's setting does not change.

    Args:
        matrices: (N, m, n), float32 or float64, finite, N >= 0, m and n >= 1; not modified.
        rank: Number r of triplets to return, 1 to min(m, n); None is min(m, n).

    Returns:
        U (N, m, r), S (N, r) non-increasing and non-negative, Vh (N, r, n); dtype and device of the input.
        ``(U * S.unsqueeze(1)) @ Vh`` is the best approximation of rank r.

    Raises:
        InputError: If the shape, dtype or rank is not as above or an entry is NaN or infinite.

    Example:
        >>> U, S, Vh = batched_svd(torch.eye(3).expand(5, 3, 3), rank=2)
        >>> U.shape, S[0].tolist(), Vh.shape
        (torch.Size([5, 3, 2]), [1.0, 1.0], torch.Size([5, 2, 3]))
    """
    _check(matrices, rank)
    with torch.inference_mode(False), torch.no_grad():  # inference mode is per thread; its tensors would fail in others
        matrices = matrices.detach()
        _, m, n = matrices.shape
        name = choose_method(matrices.dtype, m, n, rank)
        return decompose(matrices, rank, name)


def choose_method(dtype: torch.dtype, m: int, n: int, rank: int | None = None) -> str:
    """Return the name of the method for matrices of this kind, as measured on the CPU."""
    short = min(m, n)
    narrow = block_size(short if rank is None else rank) <= _WIDEST_BLOCK * short
    return SUBSPACE if narrow and dtype == torch.float32 else LAPACK


def decompose(matrices: Tensor, rank: int | None, method: str) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose with ``LAPACK`` or ``SUBSPACE`` on any device; `batched_svd` without its checks.

    On one thread "lapack" is one call of the library. On several, each thread makes that call for its chunks
    on a thread count of 1: the same routine on the same matrices.
    """
    count, m, n = matrices.shape
    tall = matrices.mT if m < n else matrices
    long, short, rank = max(m, n), min(m, n), min(m, n) if rank is None else rank
    if method == SUBSPACE and count >= _FEWEST_PROBED:
        # `subspace` fails on flat spectra. If it works for less than nine in ten, the full method alone is faster.
        _, holds = subspace(_scaled(tall[::_PROBED])[0], rank)
        if not bool(holds.double().mean() >= 0.9):
            method = LAPACK
    threads = max(1, min(torch.get_num_threads() if not is_gpu(matrices.device) else 1, count))
    if threads == 1 and method == LAPACK and not is_gpu(matrices.device):
        U, S, V = _solve(tall, rank, method)
        return (V, S, U.mT) if m < n else (U, S, V.mT)
    # Column-major, as LAPACK returns them; transposing at the end avoids a second copy.
    left, right = matrices.new_empty(count, rank, long), matrices.new_empty(count, rank, short)
    values = matrices.new_empty(count, rank)

    def work(start: int, stop: int) -> None:
        with torch.no_grad():  # a per-thread setting
            U, S, V = _solve(tall[start:stop], rank, method)
            left[start:stop], values[start:stop], right[start:stop] = U.mT, S, V.mT

    chunk = by_device(matrices.device, *_CHUNK_BYTES) // (_COPIES * 8 * (long + short) * short)
    chunk = max(1, min(chunk, _MAX_CHUNK, -(-count // threads)))
    bounds = [*range(0, count, chunk), count]
    if threads == 1:
        for start, stop in pairwise(bounds):
            work(start, stop)
    else:
        _on_threads(work, list(pairwise(bounds)), threads)
    return (right.mT, values, left) if m < n else (left.mT, values, right)


def _solve(tall: Tensor, rank: int, method: str) -> Factors:
    """Decompose one chunk of (B, m, n), m >= n, and cut it to the rank."""
    if method == LAPACK and is_gpu(tall.device):
        A, exponent = _scaled(tall.double())
        U, S, V = (factor[..., :rank].to(tall.dtype) for factor in gram_svd(A))
        return U, torch.ldexp(S, exponent.unsqueeze(1)), V
    if method == LAPACK:  # LAPACK scales by itself
        U, S, Vh = safe_svd(tall)
        return U[..., :rank], S[:, :rank], Vh.mT[..., :rank]
    A, exponent = _scaled(tall)
    (U, S, V), holds = subspace(A, rank)
    if not bool(holds.all()):
        index = (~holds).nonzero().squeeze(1)
        U[index], S[index], V[index] = _solve(A[index], rank, LAPACK)
    return U, torch.ldexp(S, exponent.unsqueeze(1)), V


def _scaled(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Divide each matrix by a power of two, so that squares neither overflow nor underflow; this rounds nothing."""
    exponent = torch.frexp(matrices.abs().amax((1, 2))).exponent
    return torch.ldexp(matrices, -exponent[:, None, None]), exponent


def _on_threads(work: Callable[[int, int], None], tasks: Sequence[tuple[int, int]], threads: int) -> None:
    """Call ``work`` for every task on threads with one intra-op thread each; LAPACK runs outside Python's lock."""
    with ThreadPoolExecutor(threads, "svd", functools.partial(set_threads, 1)) as pool:
        for future in [pool.submit(work, *task) for task in tasks]:
            future.result()


def _check(matrices: Tensor, rank: int | None) -> None:
    if matrices.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"matrices must be a tensor of float32 or float64, got {matrices.dtype}. Convert with .float()."
        )
    shape = tuple(matrices.shape)
    if len(shape) != 3 or 0 in shape[1:]:
        raise InputError(
            f"matrices must have shape (N, m, n) with m, n >= 1, got {shape}. "
            "Give one matrix as matrix[None], and channels as matrices of their own."
        )
    if matrices.device.type not in ("cpu", "cuda"):
        raise InputError(f"matrices must be on cpu or cuda, got {matrices.device}. Move them with .cpu().")
    limit = min(shape[1:])
    if rank is not None and not 1 <= rank <= limit:
        raise InputError(
            f"rank = {rank!r} must be an integer from 1 to {limit}, the smaller side of {shape[1]} x {shape[2]} "
            "matrices. Leave it out for all singular values."
        )
    if matrices.numel() and not bool(torch.stack(matrices.aminmax()).isfinite().all()):
        finite = matrices.isfinite().all(2).all(1)
        bad = (~finite).nonzero().squeeze(1)
        raise InputError(
            f"{len(bad)} of {shape[0]} matrices hold NaN or infinite entries, first matrix {int(bad[0])}: they have no "
            "singular values. Remove or repair them before the decomposition."
        )


# The methods ----------------------------------------------------------------------------------------------------


def safe_svd(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose ``A = U diag(S) Vh`` by ``torch.linalg.svd``, or by QR iteration if that fails to converge.

    Divide and conquer (LAPACK gesdd) fails on rare matrices: "The algorithm failed to converge because the input matrix
    is ill-conditioned or has too many repeated singular values". One such is a release of SRA, whose isotonic step
    repeats values. One failure invalidates the whole batch, so its matrices are then decomposed one by one.

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
    parts: list[Sequence[Tensor]] = []
    for matrix in matrices.reshape(-1, *matrices.shape[-2:]):
        try:
            parts.append(torch.linalg.svd(matrix, full_matrices=False))
        except torch.linalg.LinAlgError:
            import scipy.linalg

            factors = scipy.linalg.svd(matrix.double().cpu().numpy(), full_matrices=False, lapack_driver="gesvd")
            parts.append([torch.from_numpy(factor).to(matrix) for factor in factors])
    stacked = (torch.stack(factor) for factor in zip(*parts, strict=True))
    left, values, right = (factor.reshape(*matrices.shape[:-2], *factor.shape[1:]) for factor in stacked)
    return left, values, right


def block_size(rank: int) -> int:
    """Return how many vectors `subspace` iterates: more than the rank, since the last ones converge slowly.

    A multiple of eight, for the kernels of matrix products: 32 vectors are faster than 30.
    """
    return -(-(rank + max(8, rank // 2)) // 8) * 8


def subspace(A: Tensor, rank: int) -> tuple[Factors, Tensor]:
    r"""Subspace iteration on ``A^T A`` with Rayleigh-Ritz, float32, for the leading ``rank`` singular triplets.

    A block of ``block_size(rank)`` vectors from a fixed random start (Halko, Martinsson, Tropp 2011, with more
    power steps), orthonormalized between steps; the last steps are Chebyshev polynomials, which damp what lies below
    the block's smallest value faster than powers. Products are float32, orthonormalization and Ritz values float64.
    Matrices that nearly converged get up to two more rounds of the last step.

    Returns:
        The factors (B, m, r), (B, r), (B, n, r), and a mask (B,) of the matrices where they hold: residual
        ``||A^T u - s v||`` of each triplet at most 16 eps of the largest singular value (``A v = s u`` holds by
        construction), singular values within eps, and s_r above 1e-4 of the largest. The others, with a flat or a
        short spectrum, need a full decomposition.
    """
    batch, _, n = A.shape
    block = min(n, block_size(rank))
    generator = torch.Generator().manual_seed(8)  # start of an iteration; privacy does not depend on it
    G = A.mT @ A
    X = G @ torch.randn(n, block, generator=generator).to(A.device)
    works = torch.ones(batch, dtype=torch.bool, device=A.device)
    for degree in (1, 1, 2):
        X, works = _orthonormalize(X, works)
        X = _chebyshev(lambda Y: G @ Y, X, degree)
    X, works = _orthonormalize(X, works)
    factors, X, miss = _ritz_round(A, X, works, rank)
    for _ in range(_MORE_ROUNDS):
        index = ((miss > 1) & (miss < _NEARLY)).nonzero().squeeze(1)
        if len(index) == 0:
            break
        better, X[index], miss[index] = _ritz_round(A[index], X[index], works[index], rank)
        for factor, part in zip(factors, better, strict=True):
            factor[index] = part
    return factors, miss <= 1


def _ritz_round(A: Tensor, X: Tensor, works: Tensor, rank: int) -> tuple[Factors, Tensor, Tensor]:
    """Move an orthonormal block (B, n, b) nearer to the leading space, by products with A alone: G loses small values.

    Returns:
        The Ritz factors, the block of Ritz vectors, and the largest residual over its limit (B,): at most 1 where the
        factors hold, infinite where this iteration cannot find them.
    """
    X = _chebyshev(lambda Y: A.mT @ (A @ Y), X, 2)
    X64, works = _orthonormalize(*_orthonormalize(X.double(), works))
    A64 = A.double()
    B = A64 @ X64
    squares, Q = torch.linalg.eigh(B.mT @ B)
    squares, Q = squares.flip(-1)[:, :rank], Q.flip(-1)
    V, B = X64 @ Q, B @ Q[:, :, :rank]
    X, V = V.to(A.dtype), V[:, :, :rank]
    residual = torch.linalg.vector_norm(A64.mT @ B - V * squares.unsqueeze(1), dim=1)
    S = squares.clamp_min(0).sqrt()
    limit = 16 * torch.finfo(A.dtype).eps * S * S[:, :1]
    miss = (residual / limit).amax(1)
    usable = works & (S[:, -1] * _SAFE_CONDITION > S[:, 0])
    U = B / S.unsqueeze(1)
    return (U.to(A.dtype), S.to(A.dtype), V.to(A.dtype)), X, torch.where(usable, miss, torch.inf)


def _chebyshev(times: Callable[[Tensor], Tensor], X: Tensor, degree: int) -> Tensor:
    """Return ``T_degree(2 G / a - 1) X``, a the smallest ``||G x||`` of the columns: what lies below a is damped.

    ``times`` multiplies a block, such as X (B, n, b), by G. Degree 1 is ``G X``, unshifted.
    """
    Y = times(X)
    if degree == 1:
        return Y
    scale = 2 / torch.linalg.vector_norm(Y[:, :, -1:], dim=1, keepdim=True).clamp_min(torch.finfo(X.dtype).tiny)
    Y = scale * Y - X
    for _ in range(degree - 1):
        X, Y = Y, 2 * (scale * times(Y) - Y) - X
    return Y


def _orthonormalize(X: Tensor, holds: Tensor) -> tuple[Tensor, Tensor]:
    """Return X's columns made orthonormal in their order, by Cholesky QR, and the mask (B,) of success so far; else 0.

    Condition up to 1e7; orthonormal to eps * condition^2 of float64, in the dtype of X.
    """
    X64 = X.double()
    products = X64.mT @ X64
    lengths = products.diagonal(dim1=1, dim2=2).clamp_min(1e-300).rsqrt()
    L, info = torch.linalg.cholesky_ex(products * lengths.unsqueeze(1) * lengths.unsqueeze(2))
    holds = holds & (info == 0)
    inverse = torch.linalg.solve_triangular(L, torch.diag_embed(lengths), upper=False)
    inverse = torch.where(holds[:, None, None], inverse, 0.0)
    return X @ inverse.mT.to(X.dtype), holds


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
