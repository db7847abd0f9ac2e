"""Obfuscators that learn nothing: blur, pixelation, and disguise by a secret key.

Blur and pixelation (mosaic) are the usual choices, and hide nothing from a network trained on such faces:
McPherson, Shokri, Shmatikov, "Defeating image obfuscation with deep learning" (2016), arXiv:1609.00408. With calibrated
noise, pixelation is the publisher `pix` (Fan 2018), which has a guarantee.

Disguise. Sharma and Chen, "Poster: Image disguising for privacy-preserving deep learning", CCS 2018, arXiv:1902.01878:
an image is cut into blocks, the blocks change places by one permutation for all images, and the block X at each place
becomes ``X R + Delta``, R a random matrix of that place ("randomized multidimensional transformation") and Delta noise.
The authors claim that a network learns from labeled disguised images as well as from clear ones, and that neither
people nor algorithms can reconstruct the images. `benchmarks/papers/disguise.py` reconstructs them.

The poster states neither the distribution of R nor that of Delta. Here R is orthogonal (uniform), Delta normal and
drawn for each image. Pixels are centered at 1/2, and the result is divided by its largest possible range, a constant of
the key, so that it is again an image.
"""

from __future__ import annotations

import math
import secrets
from typing import Any

import pydantic
import torch
from torch import Tensor
from torch.nn import functional

from idpgan.errors import InputError
from idpgan.models.initialize import torch_seed
from idpgan.publish.obfuscators.obfuscator import Obfuscator, without_proof
from idpgan.publish.plan import Options, Shape

_REACH = 4  # standard deviations to either side; the weight beyond is less than 1e-4


class BlurConfig(Options):
    """Options of `blur`.

    Attributes:
        sigma: Standard deviation of the filter, px.
    """

    sigma: float = pydantic.Field(3.0, gt=0, le=1000)


class Blur(Obfuscator):
    """Convolve with a normal density cut off at 4 sigma; pixels from outside repeat the border."""

    Config = BlurConfig
    name = "blur"

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        reach = math.ceil(_REACH * self.config.sigma)
        offsets = torch.arange(-reach, reach + 1, device=images.device)
        weights = torch.exp(-0.5 * (offsets / self.config.sigma).square())
        weights = weights / weights.sum()
        for dim in (2, 3):
            size = images.shape[dim]
            taken = (torch.arange(size, device=images.device)[:, None] + offsets).clamp(0, size - 1)
            # (n, offsets, n): weights beyond the border are added to the border
            matrix = functional.one_hot(taken, size).to(images) * weights[None, :, None]
            images = torch.matmul(images.transpose(dim, 3), matrix.sum(1).T).transpose(dim, 3)
        return images.clamp(0, 1)


class PixelateConfig(Options):
    """Options of `pixelate`.

    Attributes:
        block: Side of a block, px; those at the right and lower edge may be smaller.
    """

    block: int = pydantic.Field(8, ge=1, le=1 << 16)


class Pixelate(Obfuscator):
    """Replace every pixel by the mean of its block."""

    Config = PixelateConfig
    name = "pixelate"

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        (height, width), block = images.shape[2:], self.config.block
        means = functional.avg_pool2d(images, block, ceil_mode=True, count_include_pad=False)
        return means.repeat_interleave(block, 2).repeat_interleave(block, 3)[:, :, :height, :width]


class DisguiseConfig(Options):
    """Options of `disguise`.

    Attributes:
        block: Side of a block, px; both sides of an image are multiples of it.
        permute: Whether blocks change places.
        transform: Whether blocks are multiplied by secret matrices.
        noise: Standard deviation of Delta, of the pixel range [0, 1].
        key: Number that permutation and matrices are drawn from; None = fresh from the operating system. A curator's
            secret, and worth no more than its bits.
    """

    SECRET = frozenset({"key"})

    block: int = pydantic.Field(4, ge=2, le=256)
    permute: bool = True
    transform: bool = True
    noise: float = pydantic.Field(0.01, ge=0, le=10)
    key: int | None = pydantic.Field(None, ge=0)

    def check(self, shape: Shape) -> None:
        """Refuse images that blocks do not fill."""
        height, width = shape
        if height % self.block or width % self.block:
            raise InputError(f"block = {self.block} must divide both sides of {width} x {height} images.")


class Disguise(Obfuscator):
    """Permute blocks and multiply them.

    Attributes:
        order: int64 (K,): which block comes to each place, row by row.
        matrices: (K, b, b): R of each place.
    """

    Config = DisguiseConfig
    name = "disguise"
    order: Tensor
    matrices: Tensor

    def __init__(self, config: Any, image_shape: tuple[int, int, int], num_utilities: int = 0, num_identities: int = 0):
        super().__init__(config, image_shape, num_utilities, num_identities)
        _, height, width = image_shape
        places = (height // config.block) * (width // config.block)
        key = secrets.randbits(128) if config.key is None else config.key
        rng = torch.Generator().manual_seed(torch_seed(key))
        order = torch.randperm(places, generator=rng)
        normal = torch.randn(places, config.block, config.block, generator=rng, dtype=torch.float64)
        unitary, triangle = torch.linalg.qr(normal)
        uniform = unitary * triangle.diagonal(dim1=1, dim2=2).sign()[:, None]  # Haar: Mezzadri (2007)
        matrices = uniform.float() if config.transform else torch.eye(config.block).expand(places, -1, -1).clone()
        self.register_buffer("order", order if config.permute else torch.arange(places))
        self.register_buffer("matrices", matrices)

    def _transform(self, images: Tensor, rng: torch.Generator) -> Tensor:
        blocks = to_blocks(images, self.config.block)[:, self.order] - 0.5  # (N, K, C, b, b)
        mixed = torch.einsum("nkcij,kjl->nkcil", blocks, self.matrices)
        mixed = mixed + self.config.noise * torch.randn(mixed.shape, generator=rng).to(mixed.device)
        reach = self.matrices.abs().sum(1).max()  # range of 2 X R, X in [-1/2, 1/2]
        return from_blocks((mixed / reach + 0.5).clamp(0, 1), (images.shape[2], images.shape[3]))


def to_blocks(images: Tensor, block: int) -> Tensor:
    """Cut images (N, C, H, W) into blocks (N, K, C, b, b), row by row."""
    num, channels, height, width = images.shape
    cut = images.view(num, channels, height // block, block, width // block, block)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(num, -1, channels, block, block)


def from_blocks(blocks: Tensor, size: tuple[int, int]) -> Tensor:
    """Join blocks (N, K, C, b, b) to images (N, C, H, W); the inverse of `to_blocks`."""
    (num, _, channels, block, _), (height, width) = blocks.shape, size
    grid = blocks.view(num, height // block, width // block, channels, block, block)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(num, channels, height, width)


PUBLISHERS = {kind.name: without_proof(kind) for kind in (Blur, Pixelate, Disguise)}
