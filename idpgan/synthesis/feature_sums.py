r"""What a private image adds to the sums: a vector of bounded norm, in one cell.

`PhotoFeatures` are features of photographs in absolute units: the moments of `gaussian`, and what a normal distribution
cannot represent. Features that are normalized image by image hardly depend on contrast: a generator could match their
means by images that are half flat and half saturated. Here no vector is divided by a quantity of its own image; a
vector that is longer than 1 is only shortened to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from idpgan.data.images import Images
from idpgan.models.features import Block, FeatureMap
from idpgan.models.gabor import gabor_filters, pooled_moduli
from idpgan.models.initialize import torch_seed
from idpgan.models.scattering import scales_of
from idpgan.models.warp import NODES, move, moves_of
from idpgan.privacy.noise import Noise
from idpgan.synthesis.moments import (
    MomentMap,
    Normals,
    count_moments,
    estimate_normals,
    private_moments,
)

_GRID = 4  # rows and columns that moduli are averaged to
_FILTERS = 16
_TYPICAL = 0.5  # modulus of a filter of unit energy on a photograph of range [-1, 1]
# Shares of the squared norm. The start costs most, since it has the most numbers; sums of few numbers stand out anyway.
_MOMENTS, _MODULI, _PROJECTED, _FOURIER, _COUNT = 0.9, 0.03, 0.03, 0.01, 0.02
_CONSTANT = 0.7  # a constant beside a vector makes its second moments hold its mean too
_LOW_WIDTH, _MODULI_WIDTH = 0.7, 0.3  # of the kernels that random Fourier features stand for

_TILE = 1000  # private images per call of the feature map, always: fewer are padded


def private_vectors(
    private: Images,
    features: FeatureMap,
    noise: Noise,
    *,
    conditional: bool,
    motion: float,
    cap: int | None,
    first: int = 0,
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield (vectors, cells, weights) of all private images, each moved by its own secret coins: see `private_moments`.

    A null record keeps its coins.

    Args:
        private: Read here, after the release was charged.
        features: phi, fixed.
        noise: Source of the coins.
        conditional: Whether an image's cell is its class; else there is one cell.
        motion: Strength of the random motion.
        cap: Images of one person that count, for unit person; None for unit image.
        first: Images that are left out, of whole calls; their coins are drawn, so that those of the others stay.
    """
    moved = _Moved(features, noise, motion, conditional)
    for _ in range(0, first, _TILE):
        moved.coins(_TILE)
    return private_moments(private, moved, conditional=conditional, cap=cap, tile=_TILE, first=first)


class _Moved:
    """The vectors of images that are moved first, each by coins of its own; places without an image have coins too."""

    def __init__(self, features: FeatureMap, noise: Noise, motion: float, conditional: bool) -> None:
        self._features, self._noise, self._motion, self._conditional = features, noise, motion, conditional
        self.dimensions = features.dimensions

    def coins(self, num: int) -> tuple[Tensor, Tensor]:
        """Draw the coins of so many images."""
        return self._noise.uniform((num, 6)), self._noise.normal((num, 2 * NODES**2))

    def __call__(self, images: Tensor, rows: Tensor) -> Tensor:
        device, coins = next(self._features.buffers()).device, self.coins(len(images))
        uniform, normal = (part.float().to(device) for part in coins)
        moved = move(images.to(device), moves_of(uniform, normal, self._motion))
        return self._features(moved, rows.to(device) if self._conditional else None)


class PhotoFeatures(FeatureMap):
    r"""Moments of low DCT coefficients, wavelet moduli and their second moments, random Fourier features of both.

    With the vector v(x) of `MomentMap`, the moduli w(x) of 16 Gabor filters at one to three scales, averaged to 4 x 4
    places, divided by a public length and shortened to norm 1, P random directions of them, and cosines c of random
    directions of the low coefficients and of the moduli (Rahimi and Recht, "Random features for large-scale kernel
    machines", 2007), a vector is ``(sqrt(a) v, sqrt(b) w, sqrt(c) h h^T, sqrt(d) c_1, sqrt(d) c_2, sqrt(e))``, with h a
    constant and P w, shortened to norm 1.

    Proof of the norm. ``|v| <= 1`` (`MomentMap`), ``|w| <= 1`` and ``|h h^T|_F = |h|^2 <= 1`` by construction, each of
    the n cosines of a kind is at most ``n^(-1/2)``, so ``|c_i| <= 1``, and the last number, which counts, is 1. The
    shares a, b, c, d, d, e are not negative and add up to 1, so the squared norm is at most 1. A null record adds zero,
    count included, so that zeroing out a record moves one sum by at most 1 (`privacy.sums`).

    A critic compares all numbers except most of the moments: of v it takes only those of the lowest ``dimensions``
    coefficients, since the generator starts at the rest and matching thousands of noisy numbers would match the noise.

    Args:
        image_shape: (C, H, W).
        latent_dim: Coefficients in v, `ModelConfig.latent_dim`.
        seed: Of the random directions.
        dimensions: Coefficients whose moments are matched, and random directions of the moduli.
        fourier: Number of random Fourier features of each kind.
    """

    center: Tensor
    variance: Tensor
    gabor: Tensor
    projection: Tensor
    low_directions: Tensor
    moduli_directions: Tensor
    low_phases: Tensor
    moduli_phases: Tensor

    def __init__(
        self,
        image_shape: Sequence[int],
        latent_dim: int,
        *,
        seed: int = 0,
        dimensions: int = 48,
        fourier: int = 500,
    ) -> None:
        super().__init__(2)
        self._map = MomentMap(image_shape, latent_dim)
        self.register_buffer("center", self._map.center)
        self.register_buffer("variance", self._map.variance)
        self._levels, self._moduli = _moduli_of(image_shape)
        self._low = min(dimensions, self._map.size)
        rng = torch.Generator().manual_seed(torch_seed(seed, 4))
        self.register_buffer("gabor", gabor_filters())  # (32, 1, 9, 9)
        self.register_buffer("projection", torch.randn(self._moduli, dimensions, generator=rng) / math.sqrt(dimensions))
        self.register_buffer("low_directions", torch.randn(self._low, fourier, generator=rng) / _LOW_WIDTH)
        self.register_buffer("moduli_directions", torch.randn(self._moduli, fourier, generator=rng) / _MODULI_WIDTH)
        self.register_buffer("low_phases", torch.rand(fourier, generator=rng) * 2 * math.pi)
        self.register_buffer("moduli_phases", torch.rand(fourier, generator=rng) * 2 * math.pi)
        self._scale, self.count = 1.0, math.sqrt(_COUNT)
        self.dimensions = self.count_dimensions(image_shape, latent_dim, dimensions=dimensions, fourier=fourier)

    @staticmethod
    def count_dimensions(
        image_shape: Sequence[int],
        latent_dim: int,
        *,
        dimensions: int,
        fourier: int,
        shape: int = 0,
        symmetric: bool = False,
    ) -> int:
        """Return `dimensions` of such a map, or of a registered or symmetric one of idpgan 0.3, without building it."""
        projected = (dimensions + 1) * (dimensions + 2) // 2
        others = _moduli_of(image_shape)[1] + projected + 2 * fourier + 1
        return count_moments(image_shape, latent_dim, shape, symmetric=symmetric) + others

    def learn_public(self, public: Images) -> None:
        """Take center and scale of the coefficients from public images; before a private one is read."""
        self._map.learn_public(public)
        self.center.copy_(self._map.center)
        self.variance.copy_(self._map.variance)

    @property
    def moments(self) -> MomentMap:
        """The map of the moments, with the center and scale that were fixed or loaded."""
        self._map.set_public(self.center.cpu(), self.variance.cpu())
        return self._map

    def normals(self, sums: Tensor, noise_std: float) -> Normals:
        """Estimate the normal distribution of each row from noisy sums (rows, dimensions) of vectors, float64."""
        share = math.sqrt(_MOMENTS)
        return estimate_normals(sums[:, : self._map.dimensions] / share, self.moments, noise_std / share)

    def blocks(self, images: Tensor, labels: Tensor | None) -> list[Block]:
        """Return blocks whose norms are those of the shares; labels are of no use."""
        z, power = self._start(images)
        return [Block(z, z), Block(math.sqrt(_MOMENTS) * power), *self._others(images, z)]

    def matched_blocks(self, images: Tensor, labels: Tensor | None) -> list[Block]:
        """Return all blocks except those of most of the moments."""
        z = self._start(images)[0]
        low = z[:, : self._low + 1]
        return [Block(low, low), *self._others(images, z)]

    def matched_of(self, sums: Tensor) -> Tensor:
        """Take the numbers of `matched_blocks` out of sums of whole vectors."""
        others = sums[..., self._map.dimensions : -1]
        size = self._map.size + 1
        rows, columns = torch.triu_indices(size, size, device=sums.device)
        triangle = sums[..., : len(rows)][..., (rows <= self._low) & (columns <= self._low)]
        return torch.cat([triangle, others], dim=-1)

    def _start(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return z of `moments`, times ``a^(1/4)``, (B, q + 1), and the power, (B, 1)."""
        z, power = self.moments.parts(images)
        return (_MOMENTS**0.25 * z).to(images.dtype), power.to(images.dtype)

    def _others(self, images: Tensor, z: Tensor) -> list[Block]:
        moduli = self._pooled(images)
        constant = moduli.new_full((len(moduli), 1), _CONSTANT)
        projected = _shortened(torch.cat([moduli @ self.projection, constant], dim=1)) * _PROJECTED**0.25
        low = self._fourier(z[:, 1 : self._low + 1], self.low_directions, self.low_phases)
        of_moduli = self._fourier(moduli, self.moduli_directions, self.moduli_phases)
        return [
            Block(math.sqrt(_MODULI) * moduli),
            Block(projected, projected),
            Block(math.sqrt(_FOURIER) * low),
            Block(math.sqrt(_FOURIER) * of_moduli),
        ]

    def _pooled(self, images: Tensor) -> Tensor:
        """Return the averaged moduli of images (B, C, H, W), of norm at most 1: (B, C scales 16 16)."""
        planes, found = images.flatten(0, 1)[:, None], []
        for level in range(self._levels):
            planes = functional.avg_pool2d(planes, 2) if level else planes
            padded = functional.pad(planes, (4, 4, 4, 4), mode="reflect")
            moduli = pooled_moduli(padded, self.gabor, stride=2, grid=_GRID)  # (B C, 256)
            found.append(moduli.view(len(images), -1))
        pooled = torch.cat(found, dim=1)
        return _shortened(pooled / (_TYPICAL * math.sqrt(pooled.shape[1])))


def _moduli_of(image_shape: Sequence[int]) -> tuple[int, int]:
    """Return the number of scales, of which the coarsest has 10 to 40 rows, and of moduli."""
    levels = scales_of(*image_shape[1:]) - 1
    return levels, image_shape[0] * levels * _FILTERS * _GRID**2


def _shortened(vectors: Tensor) -> Tensor:
    """Return rows as they are where their norm is at most 1, else brought to norm 1."""
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1)
