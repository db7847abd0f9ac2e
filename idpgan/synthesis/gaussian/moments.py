r"""Image -> the numbers whose sums are released: count, first and second moments in one vector of norm at most 1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from idpgan.data.images import Images, to_float
from idpgan.models.gaussian import count_coefficients, low_spectrum
from idpgan.privacy.precision import full_precision
from idpgan.synthesis.aggregate.cells import shares

_TILE_NUMBERS = 1 << 23  # of a call's vectors: 64 MiB


def count_moments(image_shape: Sequence[int], coefficients: int) -> int:
    """Return the length D of a vector: the upper triangle of a (q + 1) x (q + 1) matrix."""
    size = count_coefficients(image_shape, coefficients) + 1
    return size * (size + 1) // 2


class MomentMap:
    r"""The vector v(x) of an image x, fixed before any private image is read.

    With q orthonormal functions B of low frequency, a public center m and public standard deviations s,
    ``y = s^-1 (B^T x - m) / (clip sqrt(q))``, shortened to norm 1 where it is longer;
    ``z = (sqrt(t), sqrt(1 - t) y)``; v is the upper triangle of ``z z^T``, off the diagonal times sqrt(2). Its entries
    hold a constant that counts, the first moments of y and the second ones.

    Proof of the norm. ``|z|^2 = t + (1 - t) |y|^2 <= 1``, and the weights sqrt(2) give the triangle the Frobenius norm
    of the symmetric matrix: ``|v| = |z z^T|_F = |z|^2 <= 1``. It is reached by every y of norm 1. A null record adds
    v = 0, count included, so that zeroing out a record moves one sum by at most 1 (`privacy.sums` has the rest:
    rounding, other relations, people).

    Dividing by s before the noise makes the noise on each coefficient a like share of it: white noise on the
    coefficients themselves would drown all frequencies but the lowest.

    Args:
        image_shape: (C, H, W).
        coefficients: `ModelConfig.coefficients`.
        contrast: Standard deviation of pixels on [-1, 1] that s assumes, beside a spectrum of 1 / f^2.
        clip: Norm that is kept, in multiples of sqrt(q); 1 is the length of a typical image if m and s are right.
        count_share: t in (0, 1).

    Attributes:
        size: q.
        dimensions: D.
    """

    def __init__(
        self, image_shape: Sequence[int], coefficients: int, *, contrast: float, clip: float, count_share: float
    ) -> None:
        spectrum = low_spectrum(image_shape, coefficients)
        self.image_shape = tuple(image_shape)
        self.basis = spectrum.basis  # (C H W, q)
        self.size = self.basis.shape[1]
        self.dimensions = count_moments(image_shape, coefficients)
        self.count_share, self._clip = count_share, clip
        self._prior = spectrum.variance * math.prod(image_shape) * contrast**2
        self.set_public(torch.zeros(self.size, dtype=torch.float64), self._prior)

    def set_public(self, center: Tensor, variance: Tensor) -> None:
        """Take m and s^2, (q,) each, float64."""
        self.center, self.scale = center, variance.sqrt() * self._clip * math.sqrt(self.size)
        self.variance = variance

    def learn_public(self, public: Images) -> None:
        """Take m and s from public images; where these say too little of a coefficient, s is that of the spectrum."""
        found = self.coefficients(to_float(public.images))
        kept = len(found) / (len(found) + _PRIOR_IMAGES)
        center = found.mean(0)
        self.set_public(center, kept * (found - center).square().mean(0) + (1 - kept) * self._prior)

    def coefficients(self, images: Tensor) -> Tensor:
        """Transform images (B, C, H, W) in [-1, 1] to (B, q) float64."""
        return images.flatten(1).double() @ self.basis.to(images.device)

    def __call__(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) in [-1, 1] to vectors (B, D) float64 of norm at most 1."""
        y = (self.coefficients(images) - self.center.to(images.device)) / self.scale.to(images.device)
        y = y / y.norm(dim=1, keepdim=True).clamp(min=1)
        constant = y.new_full((len(y), 1), math.sqrt(self.count_share))
        z = torch.cat([constant, math.sqrt(1 - self.count_share) * y], dim=1)
        rows, columns = torch.triu_indices(self.size + 1, self.size + 1, device=z.device)
        return z[:, rows] * z[:, columns] * torch.where(rows == columns, 1.0, math.sqrt(2.0))

    def matrices(self, sums: Tensor) -> Tensor:
        """Return sums (rows, D) as the symmetric matrices ``sum z z^T``, (rows, q + 1, q + 1)."""
        side = self.size + 1
        rows, columns = torch.triu_indices(side, side)
        entries = sums / torch.where(rows == columns, 1.0, math.sqrt(2.0))
        matrices = sums.new_zeros(len(sums), side, side)
        matrices[:, rows, columns] = entries
        matrices[:, columns, rows] = entries
        return matrices


_PRIOR_IMAGES = 100  # public images that weigh as much as the spectrum


def private_moments(
    private: Images, moments: MomentMap, *, conditional: bool, cap: int | None
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield (vectors, cells, weights) of all private images: the one place of this method that reads them.

    Every call maps equally many rows, padded where images are few, and null records keep their rows: the arithmetic of
    a row, down to the last bit, depends on that row's image alone. The vector of a null record is zero.

    Args:
        private: Read here, after the release was charged.
        moments: Fixed.
        conditional: Whether an image's cell is its class; else there is one cell.
        cap: Images of one person that count, for unit person; None for unit image.
    """
    tile = max(1, _TILE_NUMBERS // moments.dimensions)
    kept, weights = shares(private, cap)
    for index in kept.split(tile):
        batch, num = private.select(index), len(index)
        images = to_float(batch.images)
        images = torch.cat([images, images.new_zeros(tile - num, *images.shape[1:])])
        with torch.no_grad(), full_precision():
            vectors = moments(images)[:num]
        if batch.null is not None:
            vectors = vectors.masked_fill(batch.null[:, None], 0.0)
        labels = batch.labels if conditional and batch.labels is not None else torch.zeros(num, dtype=torch.int64)
        yield vectors, labels.to(vectors.device), None if weights is None else weights[index].to(vectors.device)
