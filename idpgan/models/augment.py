"""Smooth random motions of images: rotation, scale, shear, shift, and a bend through 5 x 5 nodes."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional

NODES = 5  # the displacement field is a smooth surface through NODES x NODES nodes
MOVES = 6 + 2 * NODES**2  # numbers that describe one motion
# Largest rotation (radians), log scale x and y, shear, shift x and y (half image sides) of `augment` at strength 1.
_LIMITS = (15 * math.pi / 180, 0.12, 0.12, 0.2, 0.1, 0.1)
_BEND = 0.09  # standard deviation of a node's displacement, half image sides


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
    """Turn coins into motions, (B, MOVES).

    Args:
        uniform: (B, 6) in (0, 1).
        normal: (B, 2 * NODES^2), standard normal.
        strength: 1 is that of handwriting, 0 none.
    """
    limits = torch.tensor(_LIMITS, dtype=uniform.dtype, device=uniform.device)
    return strength * torch.cat([(2 * uniform - 1) * limits, _BEND * normal], dim=1)


def augment(images: Tensor, rng: torch.Generator, strength: float = 1.0) -> Tensor:
    """Move images (B, C, H, W), floating point on the device of ``rng``, at random; ``strength`` as of `moves_of`."""
    uniform = torch.rand(len(images), 6, generator=rng, device=images.device)
    normal = torch.randn(len(images), 2 * NODES**2, generator=rng, device=images.device)
    return move(images, moves_of(uniform, normal, strength))
