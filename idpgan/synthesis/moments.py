r"""Images -> noisy sums of moments -> one normal distribution a class.

`MomentMap` maps an image to the numbers whose sums are released: count, first and second moments in one vector of norm
at most 1. `estimate_normals` is post-processing of the noisy sums. How noise is held down: `synthesis.shrinkage`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from idpgan.data.images import Images, to_float
from idpgan.models.gaussian import CONTRAST, VARIANCE, count_numbers, light_of, low_spectrum, odd_coefficients
from idpgan.models.registration import Registration, displaced, odd_displacements, shape_variance
from idpgan.privacy.dpsgd import full_precision
from idpgan.private.released_once import shares
from idpgan.synthesis.shrinkage import denoised, shared

_TILE_NUMBERS = 1 << 21  # of a call's vectors: 16 MiB, which the allocator keeps; fresh pages cost more than arithmetic
_MOST_ROWS = 1000  # and images of a call, always: fewer are padded
_PRIOR_IMAGES = 100  # public images that weigh as much as the spectrum
_MOST_POWER = 16.0  # P: four times the length that is kept
_POWER_SHARE = 0.05  # r, of the squared norm
# Statements on photographs, checked on drawn faces and on ORL
CLIP, COUNT_SHARE = 0.7, 0.2

DROPPED = {"contrast": CONTRAST, "clip": CLIP, "count_share": COUNT_SHARE}
"""Keys of [method] of idpgan 0.3 of a method that releases moments, at what is constant since."""


class Sums(NamedTuple):
    """Noisy sums over the images of each row.

    Attributes:
        counts: (rows,).
        first: Of y, (rows, q).
        second: Of y y^T, (rows, q, q).
        power: Of the squared length before it was cut, (rows,).
        second_std: Standard deviation of the noise on the diagonal of `second`, (q,); off it, sqrt(2) times less.
    """

    counts: Tensor
    first: Tensor
    second: Tensor
    power: Tensor
    second_std: Tensor


def count_moments(
    image_shape: Sequence[int], latent_dim: int, shape: int = 0, *, symmetric: bool = False, light: bool = False
) -> int:
    """Return the length D of a vector: the upper triangle of a (q + 1) x (q + 1) matrix, and the power.

    ``latent_dim`` is that of `ModelConfig`, ``shape`` and ``light`` are of its `Drawing`; ``symmetric`` leaves two
    blocks of the triangle.
    """
    size = count_numbers(image_shape, latent_dim, shape, light=light)
    odd = int(_odd(image_shape, latent_dim, shape).sum()) if symmetric else 0
    return (size - odd + 1) * (size - odd + 2) // 2 + odd * (odd + 1) // 2 + 1


def _odd(image_shape: Sequence[int], latent_dim: int, shape: int) -> Tensor:
    """Return which coefficients, of an image and of its displacement, the mirror image has with the other sign."""
    return torch.cat([odd_coefficients(image_shape, latent_dim), odd_displacements(shape)])


class MomentMap:
    r"""The vector v(x) of an image x, fixed before any private image is read.

    With q orthonormal functions B of low frequency, a public center m and public standard deviations s,
    ``u = s^-1 (B^T x - m) / (clip sqrt(q))``, and y is u, shortened to norm 1 where it is longer. With
    ``z = (sqrt(t), sqrt(1 - t) y)`` and ``p = min(|u|^2 / P, 1)``, v is ``sqrt(1 - r)`` times the upper triangle of
    ``z z^T``, off the diagonal times sqrt(2), and then ``sqrt(r) p``. Its entries hold a constant that counts, the
    first moments of y, the second ones, and the power that the shortening took from the contrast of the images.

    Where images are registered, ``B^T x`` is that of the image brought into place on the template, followed by the
    coefficients of its displacement, both of which y shortens together. They are functions of x and of the template,
    which was released before (`synthesis.template`), and the proof does not ask where u comes from. Where each class
    has a template and a center m of its own, they are functions of x and of its class, which belongs to the record.

    With light, u is that of ``B^T x`` at one contrast, followed by the logarithms of the contrasts (`models.light`): a
    function of x alone, which public constants bound, and again the proof does not ask where u comes from. Registered,
    it is the contrasts of the texture that are taken out, and the coefficients of the displacement come last.

    Proof of the norm. ``|z|^2 = t + (1 - t) |y|^2 <= 1``, and the weights sqrt(2) give the triangle the Frobenius norm
    of the symmetric matrix, ``|z z^T|_F = |z|^2 <= 1``. So ``|v|^2 = (1 - r) |z|^4 + r p^2 <= 1``, with equality for
    every u of norm at least sqrt(P). A null record adds v = 0, count included, so that zeroing out a record moves one
    sum by at most 1 (`privacy.sums` has the rest: rounding, other relations, people).

    *Mirror symmetry.* In the mirror image the coefficients e of even functions stay, and the others, o, change their
    signs; m is even. The mean of v over both signs of o has zeros for the first moments of o and for products of e and
    o, which are left out. The products of o with each other get a further factor w, ``w^2 = (1 + t) / (1 - t)``. Proof
    that ``|v| <= 1`` still: with ``a = |e|^2`` and ``b = |o|^2`` in y, the triangle has the squared norm
    ``t^2 + 2 t (1 - t) a + (1 - t)^2 (a^2 + w^2 b^2)``. It is convex in (a, b), and ``a, b >= 0``, ``a + b <= 1`` is a
    triangle, so it is largest at a corner: t^2 at (0, 0), 1 at (1, 0), and ``t^2 + (1 - t)^2 w^2 = 1`` at (0, 1). No
    larger w would do. Signs are changed, and no mirror image is registered: v is a function of one image as before.

    Dividing by s before the noise makes the noise on each coefficient a like share of it: white noise on the
    coefficients themselves would drown all frequencies but the lowest.

    Args:
        image_shape: (C, H, W).
        latent_dim: `ModelConfig.latent_dim`.
        shape: `Drawing.shape`; above 0 `template` has to be set before the first image is mapped.
        contrast: Standard deviation of pixels on [-1, 1] that s assumes, beside a spectrum of 1 / f^2.
        clip: Norm that is kept, in multiples of sqrt(q); 1 is the length of a typical image if m and s are right.
        count_share: t in (0, 1).
        symmetric: Whether to leave out what a mirror, left for right, would negate.
        light: `Drawing.light`.

    Attributes:
        size: q.
        dimensions: D.
        odd: Coefficients that the mirror image would negate, (q,) bool; none unless symmetric.
        light: What takes contrasts out of coefficients; None without.
        registration: Brings images into place; None without.
        template: (T, C, H, W) float32, onto which they are brought: one for all, or one for each class.
        center: m, (q,) float64, or (T, q) where each class has its own.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        latent_dim: int,
        *,
        shape: int = 0,
        contrast: float = CONTRAST,
        clip: float = CLIP,
        count_share: float = COUNT_SHARE,
        symmetric: bool = False,
        light: bool = False,
    ) -> None:
        spectrum = low_spectrum(image_shape, latent_dim)
        self.image_shape = tuple(image_shape)
        self._settings = {"contrast": contrast, "clip": clip, "count_share": count_share, "symmetric": symmetric}
        self._latent_dim = latent_dim
        self.basis = spectrum.basis  # (C H W, q)
        self.size = count_numbers(image_shape, latent_dim, shape, light=light)
        self.dimensions = count_moments(image_shape, latent_dim, shape, symmetric=symmetric, light=light)
        odd = _odd(image_shape, latent_dim, shape) & symmetric
        contrasts = torch.zeros(self.size - len(odd), dtype=torch.float64)
        texts = len(odd) - 2 * shape
        self.odd = torch.cat([odd[:texts], contrasts.bool(), odd[texts:]])
        self.light = light_of(self.image_shape, latent_dim) if light else None
        self.registration = Registration(image_shape, shape) if shape else None
        self.template: Tensor | None = None
        self.center: Tensor
        self.count_share, self._clip = count_share, clip
        texture = spectrum.variance * math.prod(image_shape) * contrast**2
        self._prior = torch.cat([texture, contrasts + VARIANCE, shape_variance(shape)])
        self.set_public(torch.zeros(self.size, dtype=torch.float64), self._prior)

    def unregistered(self) -> MomentMap:
        """Return the map of the same settings for images as they lie."""
        return MomentMap(self.image_shape, self._latent_dim, **self._settings)  # type: ignore[arg-type]

    def set_template(self, template: Tensor) -> None:
        """Take released templates, (T, C, H, W) or (C, H, W), onto which images are brought; m is their texture.

        As a mean image it leaves less of u to be shortened than grey does, and costs nothing more. With light m is that
        of the template as it lies, at contrasts of 0 (their logarithms): at contrast 1 a mean image would be longer
        than the mean of images at contrast 1.
        """
        self.template = template.view(-1, *self.image_shape)
        texture = self.template.flatten(1).double() @ self.basis
        at_rest = texture.new_zeros(len(texture), self.size - texture.shape[1])
        center = torch.cat([texture, at_rest], dim=1).masked_fill(self.odd, 0.0)
        self.center = center[0] if len(center) == 1 else center

    def set_public(self, center: Tensor, variance: Tensor, covariance: Tensor | None = None) -> None:
        """Take m, (q,) or (T, q), s^2, (q,), and the covariance of y in public images, (q, q), where there are any."""
        self.center, self.scale = center, variance.sqrt() * self._clip * math.sqrt(self.size)
        self.variance, self.covariance = variance, covariance

    def learn_public(self, public: Images) -> None:
        """Take m, s and the covariance of y from public images; few of them leave s that of the spectrum.

        Where each class has a center, it is that of the public images of this class, and stays where there are none.
        """
        labels = torch.zeros(len(public), dtype=torch.int64) if public.labels is None else public.labels.cpu()
        parts = zip(public.images.split(_MOST_ROWS), labels.split(_MOST_ROWS), strict=True)
        coefficients = torch.cat([self.coefficients(to_float(part), rows) for part, rows in parts])
        kept = len(public) / (len(public) + _PRIOR_IMAGES)
        if self.odd.any():
            mirrored = torch.where(self.odd, -coefficients, coefficients)
            coefficients, labels = torch.cat([coefficients, mirrored]), labels.repeat(2)
        center = coefficients.mean(0)
        if self.center.dim() == 2:
            centers = ((labels == label, m) for label, m in enumerate(self.center))
            center = torch.stack([coefficients[members].mean(0) if members.any() else m for members, m in centers])
        center = center.masked_fill(self.odd, 0.0)
        spread = (coefficients - of_rows(center.view(-1, self.size), labels)).square().mean(0)
        self.set_public(center, kept * spread + (1 - kept) * self._prior)
        y = self._shortened(coefficients, labels)[0]
        self.covariance = y.T.cov(correction=0)

    def coefficients(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Transform images (B, C, H, W) in [-1, 1] of classes (B,) to (B, q) float64; None: there is one template."""
        if self.registration is None:
            numbers = images.flatten(1).double() @ self.basis.to(images.device)
            return numbers if self.light is None else self.light.taken_out(numbers)
        if self.template is None:
            raise RuntimeError("images are registered to a template, and none has been released yet.")
        shapes = self.registration(images, of_rows(self.template, rows).to(images.device))
        texture = displaced(images, shapes).flatten(1).double() @ self.basis.to(images.device)
        texture = texture if self.light is None else self.light.taken_out(texture)
        return torch.cat([texture, shapes.double()], dim=1)

    def __call__(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Map images (B, C, H, W) in [-1, 1], and their classes (B,), to vectors (B, D) float64 of norm at most 1."""
        z, power = self.parts(images, rows)
        vectors = z.new_empty(len(z), self.dimensions)
        odd = torch.cat([torch.zeros(1, dtype=torch.bool), self.odd])
        heavier = self._heavier(odd).to(z.device)
        weighted, start = math.sqrt(2.0) * heavier * z, 0
        diagonal = []
        # A row of the triangle is a slice of the vectors: slices are faster than gathering by an index.
        others = {bool(kind): z[:, (odd == kind).to(z.device)] for kind in odd.unique()}
        places = torch.where(odd, odd.cumsum(0), (~odd).cumsum(0)) - 1
        for row, (kind, place) in enumerate(zip(odd.tolist(), places.tolist(), strict=True)):
            right = others[kind][:, place:]
            torch.mul(weighted[:, row : row + 1], right, out=vectors[:, start : start + right.shape[1]])
            diagonal.append(start)
            start += right.shape[1]
        vectors[:, diagonal] = heavier * z.square()
        vectors[:, start:] = power
        return vectors

    @functools.cached_property
    def _triangle(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows and columns of the entries of ``z z^T`` that are released, and their weights, (D - 1,) each."""
        rows, columns = torch.triu_indices(self.size + 1, self.size + 1)
        odd = torch.cat([torch.zeros(1, dtype=torch.bool), self.odd])
        kept = odd[rows] == odd[columns]
        rows, columns = rows[kept], columns[kept]
        weights = torch.where(rows == columns, 1.0, math.sqrt(2.0))
        return rows, columns, weights * self._heavier(odd[rows])

    def _heavier(self, odd: Tensor) -> Tensor:
        """Return w where a second moment is one of odd coefficients, else 1, float64."""
        return 1 + (self.odd_weight - 1) * odd.double()

    @property
    def odd_weight(self) -> float:
        """w, of the second moments of coefficients that the mirror image would negate."""
        return math.sqrt((1 + self.count_share) / (1 - self.count_share))

    def parts(self, images: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what vectors are made of: z with ``(1 - r)^(1/4)`` (B, q + 1), and ``sqrt(r) p``, (B, 1), float64.

        With these weights the products ``z z^T`` have the norm that `__call__` gives them.
        """
        y, length = self._shortened(self.coefficients(images, rows), rows)
        z = torch.cat([y.new_full((len(y), 1), self.constant), self.weight * y], dim=1)
        power = (length.square() / _MOST_POWER).clamp(max=1)
        return z, math.sqrt(_POWER_SHARE) * power

    def _shortened(self, coefficients: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return y and the norm of u, (B, q) and (B, 1), of coefficients (B, q) of classes (B,)."""
        center = of_rows(self.center.view(-1, self.size), rows).to(coefficients.device)
        u = (coefficients - center) / self.scale.to(coefficients.device)
        length = u.norm(dim=1, keepdim=True)
        return u / length.clamp(min=1), length

    @property
    def fixed(self) -> tuple[Tensor, ...]:
        """The tensors by which it maps images, beside its settings."""
        return (self.center, self.scale, *(() if self.template is None else (self.template,)))

    @property
    def constant(self) -> float:
        """The first entry of the z of `parts`."""
        return (1 - _POWER_SHARE) ** 0.25 * math.sqrt(self.count_share)

    @property
    def weight(self) -> float:
        """The factor of y in the z of `parts`."""
        return (1 - _POWER_SHARE) ** 0.25 * math.sqrt(1 - self.count_share)

    def first_std(self, noise_std: float) -> float:
        """Return the standard deviation of the noise on each number of `Sums.first`."""
        return noise_std / math.sqrt(2 * (1 - _POWER_SHARE) * self.count_share * (1 - self.count_share))

    def read(self, sums: Tensor, noise_std: float) -> Sums:
        """Split noisy sums of vectors, (rows, D), into the moments of each row."""
        side, share = self.size + 1, self.count_share
        rows, columns, weights = self._triangle
        entries = sums[:, :-1] / weights / math.sqrt(1 - _POWER_SHARE)
        matrices = sums.new_zeros(len(sums), side, side)
        matrices[:, rows, columns] = entries
        matrices[:, columns, rows] = entries
        return Sums(
            counts=matrices[:, 0, 0] / share,
            first=matrices[:, 0, 1:] / math.sqrt(share * (1 - share)),
            second=matrices[:, 1:, 1:] / (1 - share),
            power=sums[:, -1] * _MOST_POWER / math.sqrt(_POWER_SHARE),
            second_std=noise_std / (1 - share) / math.sqrt(1 - _POWER_SHARE) / self._heavier(self.odd),
        )


def of_rows(values: Tensor, rows: Tensor | None) -> Tensor:
    """Return what belongs to each image: one thing for all, (1, ...), as it is, or that of its class, (B, ...)."""
    if len(values) == 1:
        return values
    if rows is None:
        raise RuntimeError("each class has a template of its own, and the classes of the images are not given.")
    return values[rows.to(values.device)]


class VectorMap(Protocol):
    """What `private_moments` maps images by."""

    dimensions: int

    def __call__(self, images: Tensor, rows: Tensor) -> Tensor:
        """Map images (B, C, H, W) in [-1, 1] of cells (B,) to vectors (B, dimensions) of norm <= 1, each by itself."""


def private_moments(
    private: Images, moments: VectorMap, *, conditional: bool, cap: int | None, tile: int | None = None, first: int = 0
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield (vectors, cells, weights) of all private images: the one place that reads them for sums.

    Every call maps equally many rows, padded where images are few, and null records keep their rows: the arithmetic of
    a row, down to the last bit, depends on that row's image and place alone. (A matrix product over fewer rows may
    round differently.) The vector of a null record is zero.

    Args:
        private: Read here, after the release was charged.
        conditional: Whether an image's cell is its class; else there is one cell.
        cap: Images of one person that count, for unit person; None for unit image.
        tile: Rows of a call; None = as many as fit into 16 MiB of vectors.
        first: Images whose vectors are left out, since they are known: those of whole calls.
    """
    tile = tile or min(max(_TILE_NUMBERS // moments.dimensions, 1), _MOST_ROWS)
    kept, weights = shares(private, cap)
    for index in kept[first:].split(tile):
        batch, num = private.select(index.to(private.images.device)), len(index)
        images = to_float(batch.images)
        images = torch.cat([images, images.new_zeros(tile - num, *images.shape[1:])])
        labels = batch.labels if conditional and batch.labels is not None else torch.zeros(num, dtype=torch.int64)
        labels = labels.to(images.device)
        with torch.no_grad(), full_precision():
            vectors = moments(images, torch.cat([labels, labels.new_zeros(tile - num)]))[:num]
        device = vectors.device
        if batch.null is not None:
            vectors = vectors.masked_fill(batch.null.to(device)[:, None], 0.0)
        yield vectors, labels.to(device), None if weights is None else weights[index].to(device)


class Normals(NamedTuple):
    """Normal distributions of the coefficients.

    Attributes:
        mean: (rows, q).
        factor: F of the covariance F F^T, (rows, q, q); columns of missing ranks are zero.
        ranks: Directions of each, filled ones included.
    """

    mean: Tensor
    factor: Tensor
    ranks: tuple[int, ...]


def estimate_normals(sums: Tensor, moments: MomentMap, noise_std: float) -> Normals:
    """Estimate the distribution of each row's coefficients from noisy sums (rows, D), float64.

    ``moments`` says what was summed; every entry of the sums has noise of standard deviation ``noise_std``.
    """
    totals = moments.read(sums, noise_std)
    counts = totals.counts.clamp(min=1)  # noisy images of each row
    means = totals.first / counts[:, None]
    noisy = totals.second / counts[:, None, None] - means[:, :, None] * means[:, None]
    if moments.light is not None:
        means = shared(means, moments.first_std(noise_std) / counts)
    covariances = torch.zeros_like(noisy)
    for block in (~moments.odd, moments.odd):
        if block.any():
            public = None if moments.covariance is None else moments.covariance[block][:, block]
            rows, columns = torch.meshgrid(*[block.nonzero()[:, 0]] * 2, indexing="ij")
            covariance, std = noisy[:, rows, columns], float(totals.second_std[block][0])
            covariances[:, rows, columns] = denoised(covariance, counts, std, public)
    values, vectors = torch.linalg.eigh(covariances)
    values = values.clamp(min=0)
    ranks = (values > values.amax(1, keepdim=True) * 1e-9).sum(1).tolist()
    scale = moments.scale * _gain(totals)
    factors = vectors * values.sqrt()[:, None]
    return Normals(moments.center + scale * means, scale[:, None] * factors, tuple(ranks))


def _gain(totals: Sums) -> float:
    """Return by how much images are longer than what was kept of them: it gives them back their contrast.

    One number for all rows, which belong to one kind of images.
    """
    kept = totals.second.diagonal(dim1=1, dim2=2).sum().item()
    return math.sqrt(max(totals.power.sum().item() / kept, 1.0)) if kept > 0 else 1.0


class NormalsNoise(NamedTuple):
    """What is known of the noise on normal distributions: standard deviations, in the units of the coefficients.

    Attributes:
        mean: Of the noise on each mean, (rows, q).
        variance: Of the noise on each variance before it was shrunk, (rows, q).
    """

    mean: Tensor
    variance: Tensor


def noise_of_normals(sums: Tensor, moments: MomentMap, noise_std: float) -> NormalsNoise:
    """Return the noise on `estimate_normals` of the same sums; the moments that symmetry leaves out have none."""
    totals = moments.read(sums, noise_std)
    counts, scale = totals.counts.clamp(min=1)[:, None], moments.scale * _gain(totals)
    mean = (scale * moments.first_std(noise_std) / counts).masked_fill(moments.odd, 0.0)
    return NormalsNoise(mean, scale.square() * totals.second_std / counts)
