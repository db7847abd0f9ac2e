r"""Factors ``A ~= B L`` of private images, whole batches at a time.

Zhang Xiaojian, Fu Congcong, Meng Xiaofeng (2020), "Face image publication combining matrix factorization and
differential privacy", Journal of Image and Graphics 25(4), doi:10.11834/jig.190308, sections 2.2 and 3.2.

Nothing here is private: every factor is computed from the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from idpgan.numerics.svd import batched_svd

AddNoise = Callable[[Tensor], Tensor]
_LRM_INNER_STEPS = 5  # alternations per multiplier update
_LRM_PENALTY = 10.0  # initial penalty; if it is 1, most rows of L shrink to zero at once and stay there
_LRM_DOUBLING = 10  # multiplier updates after which the penalty doubles (Yuan et al. 2015, Algorithm 1)


class Svd(NamedTuple):
    """Thin singular value decomposition ``A = U diag(S) Vh`` with k = min(m, n).

    Attributes:
        U: (N, m, k); columns beyond the rank are zero.
        S: (N, k), non-increasing; zero beyond the rank.
        Vh: (N, k, n); rows beyond the rank are zero.
        kept: (N, k) bool, True up to the rank.
    """

    U: Tensor
    S: Tensor
    Vh: Tensor
    kept: Tensor

    @property
    def rank(self) -> Tensor:
        """Numerical rank of each image, int64 (N,)."""
        return self.kept.sum(-1)


def decompose(images: Tensor, rank: int | None = None) -> Svd:
    """Decompose images (N, m, n); singular values below ``max(m, n) * machine epsilon * largest`` count as zero.

    ``rank`` triplets are computed, at most min(m, n); None computes all. The attributes have ``rank`` in place of k.
    """
    short = min(images.shape[-2:])
    left, values, right = batched_svd(images, short if rank is None else min(rank, short))
    tolerance = max(images.shape[-2:]) * torch.finfo(images.dtype).eps
    kept = values > tolerance * values[:, :1]
    if not bool(kept.all()):
        left, values, right = left * kept[:, None, :], values * kept, right * kept[:, :, None]
    return Svd(left, values, right, kept)


def eigen_design(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``B = U sqrt(S)`` (N, m, k) and ``L = sqrt(S) Vh`` (N, k, n): MM's factors, and the start of LRA."""
    svd = decompose(images)
    root = svd.S.sqrt()
    return svd.U * root[:, None, :], root[:, :, None] * svd.Vh


def non_increasing(values: Tensor, kept: Tensor) -> Tensor:
    r"""Project the first entries of each row onto non-increasing sequences, in least squares (section 3.2.3).

    ``result_h = min_{i <= h} max_{j >= h} mean(values[i..j])`` (Robertson, Wright, Dykstra 1988). Theorem 6 of the
    paper prints the formula for *non-decreasing* sequences, which gives 10 as the first entry of its own example {10,
    14, 9}; the formula here gives the example's result {12, 12, 9}.

    ``kept`` (N, k) is True on a prefix of each row of ``values``; entries after the prefix are ignored and become 0.

    Example:
        >>> non_increasing(torch.tensor([[10.0, 14.0, 9.0]]), torch.ones(1, 3, dtype=torch.bool))
        tensor([[12., 12.,  9.]])
    """
    exact = torch.where(kept, values, 0).double()
    size = exact.shape[1]
    result = torch.full_like(exact, torch.inf)
    lengths = torch.arange(1, size + 1, dtype=torch.float64, device=values.device)
    for start in range(size):  # shared by the whole batch
        means = exact[:, start:].cumsum(1) / lengths[: size - start]
        means = means.masked_fill(~kept[:, start:], -torch.inf)
        highest = means.flip(1).cummax(1).values.flip(1)
        result[:, start:] = torch.minimum(result[:, start:], highest)
    return torch.where(kept, result, 0).to(values.dtype)


def descend(
    images: Tensor, add_noise: AddNoise, *, sweeps: int, learning_rate: float, regularization: float
) -> tuple[Tensor, Tensor]:
    r"""Run LRA's stochastic gradient descent on eq. 8; return ``B`` (N, m, k) and ``L`` (N, k, n) without noise.

    Lines 2-7 of the listing: for each pixel, ``e = a_ij - b_i . l~_j``, ``b_i += gamma (e l~_j - tau b_i)`` and ``l_j
    += gamma (e b_i - tau l_j)``, both from the old values ("simultaneously"), with ``l~_j`` the noisy l_j. Updates of
    pixels that share neither row nor column are independent, so a cyclic diagonal is updated at once, for all images:
    this *is* the sequential algorithm, in the order of the diagonals (Gemulla et al. 2011).

    Order of the pixels, redrawn noise, the cap of the step, k and the start:
    docs/reference/deviations.md, matrix 3 to 6.

    ``add_noise`` maps L (N, k, n) to its noisy copy, once per sweep over all pixels; ``learning_rate`` is gamma,
    ``regularization`` tau.
    """
    B, L = eigen_design(images)
    Bt, L = B.mT.contiguous(), L.contiguous()  # (N, k, m) and (N, k, n): a diagonal is a slice of both, not a gather
    kept = (L != 0).any(2, keepdim=True)  # (N, k, 1)
    for _ in range(sweeps):
        drawn = (add_noise(L) - L) * kept
        for i, j in _diagonals(*images.shape[-2:]):
            left, right = Bt[:, :, i], L[:, :, j]  # views (N, k, length): b_i and l_j of the diagonal's pixels
            noisy = right + drawn[:, :, j]
            pixels = images[:, i, j].diagonal(dim1=1, dim2=2)
            error = (pixels - (left * noisy).sum(1))[:, None]
            step_b, step_l = _capped(learning_rate, noisy), _capped(learning_rate, left)
            right.mul_(1 - step_l * regularization).addcmul_(step_l * error, left)
            left.mul_(1 - step_b * regularization).addcmul_(step_b * error, noisy)
    return Bt.mT, L


def _diagonals(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of each cyclic diagonal; one that wraps around the longer side comes in two parts."""
    short, long = min(rows, columns), max(rows, columns)
    for offset in range(long):
        cut = min(short, long - offset)
        pieces = [(slice(0, cut), slice(offset, offset + cut)), (slice(cut, short), slice(0, short - cut))]
        for along_short, along_long in pieces[: 1 if cut == short else 2]:
            yield (along_long, along_short) if rows >= columns else (along_short, along_long)


def _capped(rate: float, other: Tensor) -> Tensor:
    """Return the capped step (N, 1, length) for the factor that is multiplied by ``other`` (N, k, length)."""
    return other.square().sum(1, keepdim=True).clamp(min=1 / rate).reciprocal()


def low_rank_mechanism(images: Tensor, *, iterations: int) -> tuple[Tensor, Tensor]:
    r"""Return ``B`` (N, m, k) and ``L`` (N, k, n) of the low-rank mechanism, ``A ~= B L``, of images (N, m, n).

    min ``1/2 tr(B^T B)`` subject to ``A = B L`` and columns of L in the unit L1 ball (Yuan et al. 2012, 2015), by an
    augmented Lagrangian: B in closed form, L by projected gradient, then the multiplier, ``iterations`` times; the
    penalty doubles every ten updates. ``A = B L`` holds up to a residual. Our own choices:
    docs/reference/deviations.md, matrix 7.
    """
    svd = decompose(images)
    size = svd.S[:, :1, None]  # (N, 1, 1)
    root = svd.rank.clamp(min=1).to(images.dtype).sqrt()[:, None, None]
    target = images / torch.where(size > 0, size, 1)
    L = svd.Vh / root
    multiplier = torch.zeros_like(target)
    identity = torch.eye(L.shape[1], dtype=images.dtype, device=images.device)
    penalty = _LRM_PENALTY
    for iteration in range(iterations):
        pull = penalty * target + multiplier
        for _ in range(_LRM_INNER_STEPS):
            B = _best_left(L, pull, penalty, identity)
            gram = B.mT @ B
            steepness = penalty * gram.abs().sum(-1).amax(-1)[:, None, None]  # bounds the largest eigenvalue
            slope = penalty * gram @ L - B.mT @ pull
            L = project_columns(L - slope / torch.where(steepness > 0, steepness, 1))
        multiplier = multiplier + penalty * (target - _best_left(L, pull, penalty, identity) @ L)
        penalty *= 2.0 if iteration % _LRM_DOUBLING == _LRM_DOUBLING - 1 else 1.0
    return _best_left(L, penalty * target + multiplier, penalty, identity) * size, L


def _best_left(L: Tensor, pull: Tensor, penalty: float, identity: Tensor) -> Tensor:
    """Return ``pull L^T (penalty L L^T + I)^-1``, the minimizer over B."""
    factor = torch.linalg.cholesky(penalty * (L @ L.mT) + identity)
    return torch.cholesky_solve(L @ pull.mT, factor).mT


def project_columns(matrices: Tensor) -> Tensor:
    """Project every column of (N, k, n) onto the unit L1 ball (Duchi et al. 2008, Figure 1, all columns at once)."""
    magnitude = matrices.abs()
    ordered = magnitude.sort(-2, descending=True).values
    count = torch.arange(1, ordered.shape[-2] + 1, dtype=ordered.dtype, device=ordered.device)[:, None]
    threshold = (ordered.cumsum(-2) - 1) / count
    last = (ordered > threshold).sum(-2, keepdim=True).clamp(min=1) - 1
    shrunk = (magnitude - threshold.gather(-2, last).clamp(min=0)).clamp(min=0) * matrices.sign()
    return torch.where(magnitude.sum(-2, keepdim=True) > 1, shrunk, matrices)
