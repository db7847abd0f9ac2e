r"""A public model of faces, and image estimates from noisy numbers by this model: post-processing, without a charge.

The model is fitted on drawn faces of no real people (`idpgan.data.faces`) and shipped as ``face_prior.safetensors``:
mean, covariance along rows and columns, and the directions of largest variance, at 48 x 40 pixels.
``benchmarks/face_prior.py`` refits it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from idpgan.device import check_memory
from idpgan.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

FILE = Path(__file__).with_name("face_prior.safetensors")
SHAPE = (48, 40)  # (H, W) of the stored model
DIRECTIONS = 12
_MATRICES = 6  # least number of (m, m) and (n, n) matrices in an estimate
_FINEST = 1e-3  # independent variance of a single pixel along rows and along columns, as a share of the whole


def fit(faces: Tensor) -> dict[str, Tensor]:
    r"""Fit the model on public faces.

    ``rows`` and ``columns`` are factors of a separable covariance, ``Cov(X_ij, X_kl) = rows_ik columns_jl``: the
    second moments of the centered faces along each side, scaled so that the product has their total variance.

    Args:
        faces: (N, H, W) in [0, 1].

    Returns:
        ``mean`` (H, W), ``rows`` (H, H), ``columns`` (W, W) and ``directions`` (12, H, W): principal components times
        their standard deviation; float32.
    """
    values = faces.double()
    mean = values.mean(0)
    centered = values - mean
    rows = torch.einsum("nij,nkj->ik", centered, centered) / len(values)
    columns = torch.einsum("nij,nik->jk", centered, centered) / len(values)
    total = rows.trace().sqrt()
    covariance = torch.einsum("na,nb->ab", *[centered.flatten(1)] * 2) / len(values)
    variances, vectors = torch.linalg.eigh(covariance)
    strongest = (vectors * variances.clamp(min=0).sqrt())[:, -DIRECTIONS:].flip(1).T
    fitted = {"mean": mean, "rows": rows / total, "columns": columns / total}
    fitted["directions"] = strongest.reshape(-1, *faces.shape[1:])
    return {name: value.float().contiguous() for name, value in fitted.items()}


@functools.cache
def _model() -> Mapping[str, Tensor]:
    from safetensors.torch import load_file

    return {name: value.double() for name, value in load_file(FILE).items()}


def _resampling(size: int, kept: int) -> Tensor:
    """Return linear interpolation from ``kept`` points of a line to ``size``, (size, kept) float64."""
    place = ((torch.arange(size, dtype=torch.float64) + 0.5) * kept / size - 0.5).clamp(0, kept - 1)
    return (1 - (place[:, None] - torch.arange(kept)).abs()).clamp(min=0)


@dataclass(frozen=True, eq=False)
class Estimate:
    """The best linear estimate of an image from noisy numbers ``A X B^T`` + noise; see `Prior.estimate`.

    Attributes:
        mean: Of the model, (m, n).
        expected: A mean B^T, (p, q).
        gain: 1 / (a b^T + variance), (p, q).
        into: U (p, p) and V (q, q).
        back: rows A^T U (m, p) and columns B^T V (n, q).
        error: Expected squared error of a pixel, under the model.
    """

    mean: Tensor
    expected: Tensor
    gain: Tensor
    into: tuple[Tensor, Tensor]
    back: tuple[Tensor, Tensor]
    error: float

    def __call__(self, numbers: Tensor) -> Tensor:
        """Map noisy numbers (N, p, q) to images (N, m, n), float64."""
        public = (self.mean, self.expected, self.gain, *self.into, *self.back)
        mean, expected, gain, U, V, left, right = (part.to(numbers.device) for part in public)
        return mean + left @ (U.mT @ (numbers - expected) @ V * gain) @ right.mT


@dataclass(frozen=True, eq=False)
class Prior:
    """A Gaussian model of images with a separable covariance.

    Attributes:
        mean: (m, n).
        rows: (m, m).
        columns: (n, n).
    """

    mean: Tensor
    rows: Tensor
    columns: Tensor

    def estimate(self, A: Tensor, B: Tensor, variance: float) -> Estimate:
        r"""Return the estimate of X from ``Y = A X B^T`` plus noise of a known variance.

        With K = A rows A^T = U diag(a) U^T and L = B columns B^T = V diag(b) V^T,

            ``X = mean + rows A^T U ((U^T (Y - A mean B^T) V) / (a b^T + variance)) (columns B^T V)^T``:

        the posterior mean where noise is Gaussian, and the best linear estimate for any noise of that variance.
        """
        a, U = torch.linalg.eigh(A @ self.rows @ A.mT)
        b, V = torch.linalg.eigh(B @ self.columns @ B.mT)
        gain = 1 / (a.clamp(min=0)[:, None] * b.clamp(min=0) + variance)
        left, right = self.rows @ A.mT @ U, self.columns @ B.mT @ V
        explained = left.square().sum(0) @ gain @ right.square().sum(0)
        error = (self.rows.trace() * self.columns.trace() - explained) / self.mean.numel()
        return Estimate(self.mean, A @ self.mean @ B.mT, gain, (U, V), (left, right), float(error))


def _check_memory(shape: tuple[int, int]) -> None:
    """Refuse images for which the model is too large, since an untrusted release may claim any size."""
    check_memory(
        8 * (_MATRICES * (shape[0] ** 2 + shape[1] ** 2) + 2 * DIRECTIONS * shape[0] * shape[1]),
        f"the model of faces of {shape[0]} x {shape[1]} pixels",
        "Publish smaller images.",
    )


@functools.lru_cache(maxsize=16)
def face_prior(shape: tuple[int, int]) -> Prior:
    """Return the model of faces of (m, n) pixels, with a little independent variance of each pixel.

    Raises:
        InputError: If the model does not fit into memory.
    """
    _check_memory(shape)
    model = _model()
    down, across = (_resampling(size, kept) for size, kept in zip(shape, SHAPE, strict=True))

    def covariance(kept: Tensor, line: Tensor) -> Tensor:
        resampled = line @ kept @ line.mT
        return resampled + _FINEST * resampled.diagonal().mean() * torch.eye(len(line), dtype=torch.float64)

    mean = down @ model["mean"] @ across.mT
    return Prior(mean, covariance(model["rows"], down), covariance(model["columns"], across))


@functools.lru_cache(maxsize=16)
def face_directions(shape: tuple[int, int]) -> Tensor:
    """Return the directions of variation of faces, (12, m, n): an image is the mean plus normal multiples of them.

    Raises:
        InputError: If the directions do not fit into memory.
    """
    _check_memory(shape)
    down, across = (_resampling(size, kept) for size, kept in zip(shape, SHAPE, strict=True))
    return down @ _model()["directions"] @ across.mT
