r"""Six matrix publishers, as published: LAP, LRA, SRA, ESRA, and for comparison LRM and MM.

Zhang Xiaojian, Fu Congcong, Meng Xiaofeng (2020), "Face image publication combining matrix factorization and
differential privacy", Journal of Image and Graphics 25(4), doi:10.11834/jig.190308.

**None of them is private.** They are included for measurements and attacks, and `idpgan.publish.release` reports their
proven epsilon as infinite. Their claim is theorem 7: epsilon for one column, replace-one.

All take images (N, m, n) in [0, 1], float32 or float64, and give the same shape, dtype and device, not clamped.
``D1`` is the largest column L1 norm. Noise is continuous Laplace noise, as in the paper. The factors ``A ~= B L`` are
computed from the images, whole batches at a time, and no factor is private (sections 2.2 and 3.2).

Each method is charged as an unprotected read. The audits attack a certain leak: the column space of the output (its
singular vectors, or its left factor, carry no noise), its rank, or the scale of the noise.

docs/reference/deviations.md, matrix 1 to 10, lists what the paper omits or gets wrong;
docs/methods/matrix-publishers.md explains why none is private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pydantic
import torch
from torch import Tensor

from idpgan.audit.statistics import Maker, Nearness, NoiseScale, OutputRank, Statistic, SubspaceDistance
from idpgan.device import by_device
from idpgan.numerics.svd import batched_svd
from idpgan.privacy import Exponential, Noise, Relation, Unit
from idpgan.privacy.matrix import add_laplace, column_norm, noisy_product
from idpgan.publish.plan import Algorithm, Options, Publisher, Shape, as_published, publisher_entry

_CHUNK_NUMBERS = 1 << 20, 1 << 27  # `by_device`: numbers in one factor in LRA's sweeps and LRM's updates
_NO_CHOICE = -1e300  # score of an r beyond the rank: its probability underflows to 0
AddNoise = Callable[[Tensor], Tensor]
_LRM_INNER_STEPS = 5  # alternations per multiplier update
_LRM_PENALTY = 10.0  # initial penalty; if it is 1, most rows of L shrink to zero at once and stay there
_LRM_DOUBLING = 10  # multiplier updates after which the penalty doubles (Yuan et al. 2015, Algorithm 1)
_CLAIM = "Zhang, Fu and Meng (2020), theorem 7"
_SCALE_SHAPE = (28, 20)  # enough numbers to estimate the scale of their noise


class LraOptions(Options):
    """Options of LRA; the defaults are the paper's (section 4.2).

    Attributes:
        sweeps: Passes of gradient descent over all pixels.
        learning_rate: gamma.
        regularization: tau.
    """

    sweeps: int = pydantic.Field(default=100, ge=1)
    learning_rate: float = pydantic.Field(default=0.01, gt=0)
    regularization: float = pydantic.Field(default=0.1, ge=0)


class EsraOptions(Options):
    """Options of ESRA.

    Attributes:
        refine: Whether noisy singular values are made non-increasing (section 3.2.3).
    """

    refine: bool = True


class SraOptions(EsraOptions):
    """Options of SRA.

    Attributes:
        rank: Singular values to keep; an image of smaller rank keeps all of its own.
    """

    rank: int = pydantic.Field(default=100, ge=1)


class LrmOptions(Options):
    """Options of LRM.

    Attributes:
        iterations: Multiplier updates of the augmented Lagrangian.
    """

    iterations: int = pydantic.Field(default=20, ge=1)


def lap_published(images: Tensor, epsilon: float, options: Options, noise: Noise) -> Tensor:
    """LAP, eq. 5: ``A + Lap(D1 A / epsilon)``. A black image has D1 A = 0 and is released exactly."""
    return noisy_product(None, images, column_norm(images) / epsilon, noise)


def lra(images: Tensor, epsilon: float, options: LraOptions, noise: Noise) -> Tensor:
    """LRA, section 3.2.1: ``B (L + Lap(D1 L / epsilon))`` with B and L from `descend`."""

    def add_noise(L: Tensor) -> Tensor:
        return add_laplace(L, (column_norm(L) / epsilon)[:, None, None], noise)

    released = []
    for part in _chunks(images):
        B, L = descend(part, add_noise, **options.model_dump())
        released.append(noisy_product(B, L, column_norm(L) / epsilon, noise))  # line 7 of the last pass, and line 8
    return torch.cat(released)


def lrm(images: Tensor, epsilon: float, options: LrmOptions, noise: Noise) -> Tensor:
    """LRM: ``B (L + Lap(D1 L / epsilon))`` with the factors of `low_rank_mechanism`."""
    B, L = lrm_factors(images, options.iterations)
    return noisy_product(B, L, column_norm(L) / epsilon, noise)


def lrm_factors(images: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Return `low_rank_mechanism` of many images, in chunks; the factors do not depend on epsilon."""
    parts = [low_rank_mechanism(part, iterations=iterations) for part in _chunks(images)]
    return torch.cat([B for B, _ in parts]), torch.cat([L for _, L in parts])


def mm(images: Tensor, epsilon: float, options: Options, noise: Noise) -> Tensor:
    """MM: ``B (L + Lap(D1 L / epsilon))`` with the eigen design ``B = Q sqrt(D), L = sqrt(D) P^T`` (Li et al. 2015).

    The paper does not state the formula: docs/reference/deviations.md, matrix 8.
    """
    B, L = eigen_design(images)
    return noisy_product(B, L, column_norm(L) / epsilon, noise)


def sra(images: Tensor, epsilon: float, options: SraOptions, noise: Noise) -> Tensor:
    """SRA, section 3.2.2: ``Q_r (D_r + Lap(lambda_1 / epsilon)) P_r^T``, r = min(`rank`, rank of the image)."""
    svd = decompose(images, options.rank)
    return _rebuild(svd, svd.kept, epsilon, noise, refine=options.refine)


def esra(images: Tensor, epsilon: float, options: EsraOptions, noise: Noise) -> Tensor:
    """ESRA: r by the exponential mechanism with eps1 = epsilon / 2, then SRA with eps2 = epsilon / 2.

    The listing writes epsilon twice: docs/reference/deviations.md, matrix 9.
    """
    svd = decompose(images)
    choice = score_ranks(svd, epsilon)
    exponential = Exponential(1.0, epsilon / 2, Unit.COLUMN, Relation.REPLACE_ONE)
    preference = choice.scores.double() / choice.sensitivity.double()[:, None]
    drawn = exponential((-preference).masked_fill(~svd.kept, _NO_CHOICE), noise)  # r - 1, (N,)
    chosen = svd.kept & (torch.arange(svd.kept.shape[1], device=images.device) <= drawn[:, None])
    return _rebuild(svd, chosen, epsilon / 2, noise, refine=options.refine)


class RankScores(NamedTuple):
    """ESRA's error estimate for each r, and the sensitivity that the paper uses for it.

    Attributes:
        scores: (N, k), for r = 1 .. k; smaller is better; meaningless beyond the rank.
        sensitivity: (N,), 1 for a black image.
    """

    scores: Tensor
    sensitivity: Tensor


def score_ranks(svd: Svd, epsilon: float) -> RankScores:
    r"""Return eq. 11 and theorem 5 for r = 1 .. min(m, n).

    ``U(r) = sqrt(m - r) + sqrt(sum_{i>r} lambda_i^2) + sqrt(max(n - r, 0)) + sqrt(2 sum_{i<=r} lambda_i^2) / epsilon``:
    singular vectors have norm 1, so the sums over unused vectors are their numbers. The paper's sensitivity is ``D1 Q +
    2 D1 D + D1 P^T``. Its text says once that a larger U means less error; eq. 12, which is implemented, says a smaller
    U.
    """
    rows, columns = svd.U.shape[-2], svd.Vh.shape[-1]
    energy = svd.S.double().square()
    used = energy.cumsum(-1)
    left_out = energy.flip(-1).cumsum(-1).flip(-1) - energy
    r = torch.arange(1, energy.shape[1] + 1, dtype=torch.float64, device=energy.device)
    vectors = (rows - r).sqrt() + (columns - r).clamp(min=0).sqrt()
    scores = vectors + left_out.sqrt() + math.sqrt(2) * used.sqrt() / epsilon
    sensitivity = column_norm(svd.U) + 2 * svd.S[:, 0] + column_norm(svd.Vh)
    return RankScores(scores, torch.where(sensitivity > 0, sensitivity, 1).double())


def _rebuild(svd: Svd, chosen: Tensor, epsilon: float, noise: Noise, *, refine: bool) -> Tensor:
    """Add Lap(lambda_1 / epsilon) to the chosen singular values and multiply the factors again."""
    noisy = add_laplace(svd.S, svd.S[:, :1] / epsilon, noise)
    values = non_increasing(noisy, chosen) if refine else noisy * chosen
    return (svd.U * values[:, None, :]) @ svd.Vh


def _chunks(images: Tensor) -> tuple[Tensor, ...]:
    """Cut a batch into chunks that fit the cache or fill the GPU."""
    size = max(images.shape[-2:]) * min(images.shape[-2:])
    return images.split(max(1, by_device(images.device, *_CHUNK_NUMBERS) // size))


# The factors --------------------------------------------------------------------------------------------------------


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


# Audits and the table -----------------------------------------------------------------------------------------------


def column_space(data: Tensor, neighbor: Tensor) -> Statistic:
    """Return the subspace test for the whole column space."""
    return SubspaceDistance(data, neighbor, rank=min(data.shape[-2:]))


class RowSpace(SubspaceDistance):
    """The subspace test for the whole row space."""

    def __init__(self, data: Tensor, neighbor: Tensor) -> None:
        super().__init__(data.mT, neighbor.mT, rank=min(data.shape[-2:]))
        self.name = "row " + self.name

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return the scores (R,) of outputs (R, m, n)."""
        return super().__call__(outputs.mT)


def black_images(images: Tensor) -> tuple[str, ...]:
    """Return a note of how many images get no noise because they are black."""
    black = int((images.flatten(1).amax(1) == 0).sum())
    if not black:
        return ()
    return (f"{black} of {len(images)} images are black and were released exactly, without any noise.",)


def _publisher(
    name: str, algorithm: Algorithm, audited: Options, *makers: Maker, pair: str = "full-rank", shape: Shape = (8, 6)
) -> Publisher:
    """Return a publisher of the paper; ``audited`` are the options of its audit.

    These options differ from the defaults where the defaults take long and do not affect the attacked leak.
    """
    plan = as_published(name, algorithm, _CLAIM, black_images)
    audit = publisher_entry(name, plan, audited, *makers, units=(Unit.COLUMN,), pair=pair, shape=shape)
    return Publisher(type(audited), plan, audit)


_LAP = _publisher("lap-published", lap_published, Options(), NoiseScale, Nearness, pair="brighter", shape=_SCALE_SHAPE)
_SPACES = (column_space, RowSpace, OutputRank)
PUBLISHERS = {
    "lap-published": _LAP,
    "lra": _publisher("lra", lra, LraOptions(sweeps=10), OutputRank, NoiseScale, pair="low-rank"),
    "sra": _publisher("sra", sra, SraOptions(), *_SPACES),
    "esra": _publisher("esra", esra, EsraOptions(), *_SPACES),
    "lrm": _publisher("lrm", lrm, LrmOptions(iterations=3), column_space, OutputRank),
    "mm": _publisher("mm", mm, Options(), column_space, OutputRank),
}
