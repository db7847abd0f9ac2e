r"""Singular value decomposition of a batch of matrices in one call, on the CPU and on CUDA.

``A = U diag(S) V^T`` per matrix. `idpgan.numerics.svd_methods` has the methods and their accuracy. This module checks
the input, chooses the method by device, dtype, shape and rank (``choose_method``), cuts the batch into chunks by
memory, and on the CPU spreads the chunks over threads. Nothing here adds noise, so nothing here is a release.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.errors import InputError
from idpgan.numerics import svd_methods

DECOMPOSITIONS: dict[str, Callable[[Tensor], svd_methods.Factors]] = {
    "lapack": svd_methods.lapack,
    "gram": svd_methods.gram,
    "gram-block-jacobi": functools.partial(svd_methods.gram, eigensolver=svd_methods.block_jacobi_eigh),
    "jacobi": svd_methods.jacobi,
}
SUBSPACE = "subspace"  # for truncated SVD only; where it does not converge, the device's full method is used

_CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 4 << 30}  # working memory of a chunk
_COPIES = 8  # approximate number of float64 matrices of size (m + n) x n that a method holds at once
_MAX_CHUNK = 32_768
_WIDEST_BLOCK = 0.35  # share of the shorter side above which LAPACK's full decomposition was faster
_PROBED = 32  # one matrix in this many is tried before all go through `subspace`
_FEWEST_PROBED = 8  # a call with fewer matrices is not probed
_settings_lock = threading.Lock()  # torch has one thread count for future threads: one call at a time changes it


@typed
def batched_svd(matrices: Tensor, rank: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose every matrix of a batch, or find its leading singular triplets.

    Singular values are within a few eps of the largest one of the matrix, U and V orthonormal to about 20 eps, also for
    rank-deficient and zero matrices (eps: 1.2e-7 for float32, 2.2e-16 for float64). Signs of the vectors, and the basis
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
        name = choose_method(matrices.device.type, matrices.dtype, m, n, rank)
        return decompose(matrices, rank, name)


def choose_method(device: str, dtype: torch.dtype, m: int, n: int, rank: int | None = None) -> str:
    """Return the name of the method for matrices of this kind.

    The CPU rows are measured (``benchmarks/svd.py``). The CUDA rows are not measured: they follow from torch's
    dispatch. ``torch.linalg.svd`` loops over matrices larger than 32 x 32, and so does ``torch.linalg.eigh`` above 32
    in torch 2.11 (pytorch issue 175585; pull request 175403 makes it one call): hence products and eigenproblems of
    size 32.
    """
    long, short = max(m, n), min(m, n)
    rank = short if rank is None else rank
    if dtype == torch.float32 and svd_methods.block_size(rank) <= _WIDEST_BLOCK * short:
        return SUBSPACE
    if device == "cpu":
        return "lapack"
    if long <= 32:
        return "lapack"  # cuSOLVER's gesvdjBatched
    return "gram" if short <= 32 else "gram-block-jacobi"


def decompose(matrices: Tensor, rank: int | None, method: str) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose with a method of ``DECOMPOSITIONS`` or ``SUBSPACE`` on any device; `batched_svd` without its checks.

    On one thread of the CPU "lapack" is one call of the library. On several, each thread makes that call for its chunks
    on a thread count of 1: the same routine on the same matrices.
    """
    count, m, n = matrices.shape
    tall = matrices.mT if m < n else matrices
    long, short, rank = max(m, n), min(m, n), min(m, n) if rank is None else rank
    device = matrices.device.type
    if method == SUBSPACE and count >= _FEWEST_PROBED:
        # `subspace` fails on flat spectra. If it works for less than nine in ten, the full method alone is faster.
        _, holds = svd_methods.subspace(_scaled(tall[::_PROBED])[0], rank)
        if not bool(holds.double().mean() >= 0.9):
            method = choose_method(device, matrices.dtype, m, n)
    threads = min(torch.get_num_threads() if device == "cpu" else 1, count)
    if device == "cpu" and threads == 1 and method == "lapack":
        U, S, V = _solve(tall, rank, method)
        return (V, S, U.mT) if m < n else (U, S, V.mT)
    # Column-major, as LAPACK returns them; transposing at the end avoids a second copy.
    left, right = matrices.new_empty(count, rank, long), matrices.new_empty(count, rank, short)
    values = matrices.new_empty(count, rank)

    def work(start: int, stop: int) -> None:
        with torch.no_grad():  # a per-thread setting
            U, S, V = _solve(tall[start:stop], rank, method)
            left[start:stop], values[start:stop], right[start:stop] = U.mT, S, V.mT

    chunk = _CHUNK_BYTES[device] // (_COPIES * 8 * (long + short) * short)
    chunk = max(1, min(chunk, _MAX_CHUNK, -(-count // max(threads, 1))))
    bounds = [*range(0, count, chunk), count]
    if threads <= 1:
        for start, stop in pairwise(bounds):
            work(start, stop)
    else:
        _on_threads(work, list(pairwise(bounds)), threads)
    return (right.mT, values, left) if m < n else (left.mT, values, right)


def _solve(tall: Tensor, rank: int, method: str) -> svd_methods.Factors:
    """Decompose one chunk of (B, m, n), m >= n, and cut it to the rank."""
    if method == "lapack":  # LAPACK scales by itself
        U, S, V = DECOMPOSITIONS[method](tall)
        return U[..., :rank], S[:, :rank], V[..., :rank]
    A, exponent = _scaled(tall)
    if method == SUBSPACE:
        factors, holds = svd_methods.subspace(A, rank)
        if not bool(holds.all()):
            index = (~holds).nonzero().squeeze(1)
            full = choose_method(A.device.type, A.dtype, *A.shape[1:])
            for part, better in zip(factors, DECOMPOSITIONS[full](A[index]), strict=True):
                part[index] = better[..., :rank]
    else:
        factors = DECOMPOSITIONS[method](A)
    U, S, V = factors
    return U[..., :rank], torch.ldexp(S[:, :rank], exponent.unsqueeze(1)), V[..., :rank]


def _scaled(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Divide each matrix by a power of two, so that squares neither overflow nor underflow; this rounds nothing."""
    exponent = torch.frexp(matrices.abs().amax((1, 2))).exponent
    return torch.ldexp(matrices, -exponent[:, None, None]), exponent


def _on_threads(work: Callable[[int, int], None], tasks: Sequence[tuple[int, int]], threads: int) -> None:
    """Call ``work`` for every task on threads with one intra-op thread each; LAPACK runs outside Python's lock.

    ``torch.set_num_threads`` sets the count of the calling thread and of all threads to come. A worker first reads the
    count; otherwise torch would read the common count at its first operation and overwrite the worker's setting.
    """
    common: list[int] = []
    ready = threading.Barrier(threads + 1)

    def start_worker() -> None:
        common.append(torch.get_num_threads())
        ready.wait()  # all have read the count
        torch.set_num_threads(1)
        ready.wait()  # all have set their count

    with ThreadPoolExecutor(threads, "svd", start_worker) as pool:
        with _settings_lock:
            futures = [pool.submit(work, *task) for task in tasks]  # starts the workers
            ready.wait()
            ready.wait()
            # Restores the common count from a separate thread, so that the caller's count does not change.
            restoring = threading.Thread(target=torch.set_num_threads, args=(common[0],))
            restoring.start()
            restoring.join()
        for future in futures:
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
    if matrices.device.type not in _CHUNK_BYTES:
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
