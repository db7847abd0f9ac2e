"""Smooth random warps of images (rotation, scale, shear, shift, a bend through 5 x 5 nodes), and a generator with one.

In the generator a public image (or a random point, where nothing is public) becomes a *code* with a spread; an image is
one code of its class plus spread, decoded by a perceptron, and then moved by a random affine map and a random smooth
displacement. So a few hundred codes give the diversity of handwriting, and little is left to learn from the private
sums.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from idpgan.models.config import ModelConfig, pyramid_of
from idpgan.models.generator import Generator
from idpgan.models.initialize import seeded_init

NODES = 5  # the displacement field is a smooth surface through NODES x NODES nodes
MOVES = 6 + 2 * NODES**2  # numbers that describe one motion
# Largest rotation (radians), log scale x and y, shear, shift x and y (half image sides) of `augment` at strength 1.
_LIMITS = (15 * math.pi / 180, 0.12, 0.12, 0.2, 0.1, 0.1)
_BEND = 0.09  # standard deviation of a node's displacement, half image sides
_HIDDEN = 8  # hidden units per unit of model.width
_LEAST_SPREAD = 1e-3
# Standard deviations of the warp at model.warp = 1: rotation (radians), log scale x and y, shear, shift x and y (half
# image sides), displacement of a node (half image sides). Those of handwriting, chosen on public images.
_AFFINE_STD = (8 * math.pi / 180, 0.07, 0.07, 0.11, 0.055, 0.055)
_NODE_STD = 0.06


def move(images: Tensor, moves: Tensor) -> Tensor:
    """Move each image by its own motion; pixels from outside repeat the border.

    Args:
        images: (B, C, H, W) floating point.
        moves: (B, MOVES): rotation (radians), log scale x and y, shear, shift x and y (half image sides), then the
            x and the y displacements of the nodes (half image sides). Zero leaves the image as it is.

    Returns:
        (B, C, H, W), differentiable in both arguments.
    """
    height, width = images.shape[2:]
    aspect = height / width  # motions are those of pixels, whatever the shape
    angle, log_x, log_y, shear, shift_x, shift_y = moves[:, :6].unbind(1)
    cos, sin, scale_x, scale_y = angle.cos(), angle.sin(), log_x.exp(), log_y.exp()
    affine = [
        *(cos * scale_x, (shear - sin) * scale_y * aspect, shift_x),
        *(sin * scale_x / aspect, cos * scale_y, shift_y),
    ]
    rows = torch.cat([torch.stack(affine, 1).view(-1, 2, 3), moves[:, 6:].view(-1, 2, NODES**2)], dim=2)
    places = rows.flatten(1) @ _places(height, width, moves.dtype, moves.device)
    grid = places.view(-1, height, width, 2)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


@functools.lru_cache(maxsize=16)
@torch.inference_mode(False)  # kept for calls that need gradients
def _places(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return what each number of a motion adds to the place, x and y, where a pixel is read.

    Returns:
        (2 (3 + NODES^2), H W 2): for x, then for y, the factors of x, y and 1, and a smooth surface through each node.
    """
    y, x = (((2 * torch.arange(side, dtype=torch.float64) + 1) / side - 1) for side in (height, width))
    plane = torch.stack([x.expand(height, -1), y[:, None].expand(-1, width), torch.ones(height, width).double()])
    nodes = torch.eye(NODES**2, dtype=torch.float64).view(-1, 1, NODES, NODES)
    surface = functional.interpolate(nodes, size=(height, width), mode="bicubic", align_corners=True)[:, 0]
    each = torch.cat([plane, surface]).flatten(1)  # (3 + NODES^2, H W)
    both = each.new_zeros(2, len(each), height * width, 2)
    both[0, :, :, 0] = both[1, :, :, 1] = each
    return both.view(2 * len(each), -1).to(device, dtype)


def moves_of(uniform: Tensor, normal: Tensor, strength: float = 1.0) -> Tensor:
    """Turn random numbers into motions, (B, MOVES).

    Args:
        uniform: (B, 6) in (0, 1).
        normal: (B, 2 * NODES^2), standard normal.
        strength: 1 is that of handwriting, 0 none.
    """
    limits = _limits(uniform.dtype, uniform.device)
    return strength * torch.cat([(2 * uniform - 1) * limits, _BEND * normal], dim=1)


@functools.lru_cache(maxsize=4)
@torch.inference_mode(False)
def _limits(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(_LIMITS, dtype=dtype, device=device)


def augment(images: Tensor, rng: torch.Generator, strength: float = 1.0) -> Tensor:
    """Move images (B, C, H, W), floating point on the device of ``rng``, at random; ``strength`` as of `moves_of`."""
    uniform = torch.rand(len(images), 6, generator=rng, device=images.device)
    normal = torch.randn(len(images), 2 * NODES**2, generator=rng, device=images.device)
    return move(images, moves_of(uniform, normal, strength))


class WarpGenerator(Generator):
    """Codes, decoder, warp.

    A latent vector holds the spread around the code, the warp, and one number whose normal distribution function
    chooses the code, so that the images are a function of z and the class.

    Args:
        config: The [model] section: ``latent_dim`` numbers in a code, ``codes`` codes per class, ``warp`` strength.
        image_shape: See `DcganGenerator`, also for ``num_classes``, ``seed`` (of weights and codes) and errors.

    Attributes:
        means: Codes, (max(num_classes, 1), codes, config.latent_dim).
        log_spread: Logarithm of the standard deviation around each, same shape.
    """

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        pyramid_of(image_shape)  # refuses sizes that no critic is built for
        super().__init__(config, image_shape, num_classes, config.latent_dim + MOVES + 1)
        self.choosing = (self.latent_dim - 1,)
        groups, hidden = max(self.num_classes, 1), _HIDDEN * config.width
        inputs = config.latent_dim + self.num_classes
        with seeded_init(seed):
            self.first = nn.Linear(inputs, hidden, bias=False)
            self.first_norm = nn.BatchNorm1d(hidden)
            self.second = nn.Linear(hidden + self.num_classes, hidden, bias=False)
            self.second_norm = nn.BatchNorm1d(hidden)
            self.last = nn.Linear(hidden, math.prod(self.image_shape))
            self.means = nn.Parameter(torch.randn(groups, config.codes, config.latent_dim))
            self.log_spread = nn.Parameter(torch.full(self.means.shape, math.log(0.3)))
            nn.init.constant_(self.last.bias, -1.0)  # dark at first
        std = torch.tensor([*_AFFINE_STD, *[_NODE_STD] * (2 * NODES**2)])
        self.std = nn.Buffer(std.mul_(config.warp))

    def set_codes(self, means: Tensor, spread: Tensor, labels: Tensor | None) -> None:
        """Set codes to posteriors of images; a class with fewer than ``config.codes`` images repeats them.

        Args:
            means: (N, config.latent_dim).
            spread: Standard deviations, same shape.
            labels: (N,) int64, or None for an unconditional generator.
        """
        for group in range(len(self.means)):
            index = torch.arange(len(means)) if labels is None else torch.nonzero(labels == group)[:, 0].cpu()
            chosen = index[torch.arange(self.config.codes) % len(index)]
            self.means.data[group] = means[chosen]
            self.log_spread.data[group] = spread[chosen].clamp(min=_LEAST_SPREAD).log()

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Choose a code of the class, spread around it, decode and warp."""
        spread, warp, choice = z.split([self.config.latent_dim, len(self.std), 1], dim=1)
        group = torch.zeros(len(z), dtype=torch.int64, device=z.device) if labels is None else labels
        uniform = torch.special.ndtr(choice[:, 0])
        code = (uniform * self.config.codes).long().clamp(max=self.config.codes - 1)  # (B,)
        point = self.means[group, code] + spread * self.log_spread[group, code].exp()
        return self.warped(self.decode(point, labels), warp).mul_(2).sub_(1)

    def decode(self, points: Tensor, labels: Tensor | None) -> Tensor:
        """Decode points of the code space, (B, config.latent_dim), to unwarped images in [0, 1], (B, C, H, W)."""
        one_hot = points[:, :0] if labels is None else functional.one_hot(labels, self.num_classes).to(points.dtype)
        hidden = self.first_norm(self.first(torch.cat([points, one_hot], dim=1))).relu_()
        hidden = self.second_norm(self.second(torch.cat([hidden, one_hot], dim=1))).relu_()
        return self.last(hidden).sigmoid_().view(-1, *self.image_shape)

    def warped(self, images: Tensor, warp: Tensor) -> Tensor:
        """Move images (B, C, H, W) by standard normal numbers (B, MOVES); strength 0 leaves them as they are."""
        return move(images, warp * self.std)
