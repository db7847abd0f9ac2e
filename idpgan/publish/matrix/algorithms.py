r"""Six matrix publishers, as published: LAP, LRA, SRA, ESRA, and for comparison LRM and MM.

Zhang Xiaojian, Fu Congcong, Meng Xiaofeng (2020), "Face image publication combining matrix factorization and
differential privacy", Journal of Image and Graphics 25(4), doi:10.11834/jig.190308.

**None of them is private.** They are included for measurements and attacks, and `idpgan.publish.release` reports their
proven epsilon as infinite. Their claim is theorem 7: epsilon for one column, replace-one.

All take images (N, m, n) in [0, 1], float32 or float64, and give the same shape, dtype and device, not clamped.
``D1`` is the largest column L1 norm. Noise is continuous Laplace noise, as in the paper.

docs/reference/deviations.md, matrix 1 to 9, lists what the paper omits or gets wrong;
docs/methods/matrix-publishers.md explains why none is private.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pydantic
import torch
from torch import Tensor

from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.matrix import add_laplace, column_norm, noisy_product
from idpgan.privacy.mechanisms import Exponential
from idpgan.privacy.noise import Noise
from idpgan.publish.matrix.factorize import Svd, decompose, descend, eigen_design, low_rank_mechanism, non_increasing
from idpgan.publish.plan import Options

_CHUNK_NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 27}  # numbers in one factor in LRA's sweeps and LRM's updates
_NO_CHOICE = -1e300  # score of an r beyond the rank: its probability underflows to 0


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
    """LRA, section 3.2.1: ``B (L + Lap(D1 L / epsilon))`` with B and L from `factorize.descend`."""

    def add_noise(L: Tensor) -> Tensor:
        return add_laplace(L, (column_norm(L) / epsilon)[:, None, None], noise)

    released = []
    for part in _chunks(images):
        B, L = descend(part, add_noise, **options.model_dump())
        released.append(noisy_product(B, L, column_norm(L) / epsilon, noise))  # line 7 of the last pass, and line 8
    return torch.cat(released)


def lrm(images: Tensor, epsilon: float, options: LrmOptions, noise: Noise) -> Tensor:
    """LRM: ``B (L + Lap(D1 L / epsilon))`` with the factors of `factorize.low_rank_mechanism`."""
    B, L = lrm_factors(images, options.iterations)
    return noisy_product(B, L, column_norm(L) / epsilon, noise)


def lrm_factors(images: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Return `factorize.low_rank_mechanism` of many images, in chunks; the factors do not depend on epsilon."""
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
    return images.split(max(1, _CHUNK_NUMBERS.get(images.device.type, 1 << 20) // size))
