"""Histograms of orientations of an image.

How edges lie in each part of a face says who smiles, where somebody looks and where the light is, whatever the camera
(Dalal and Triggs, "Histograms of oriented gradients for human detection", 2005). All of it is in closed form.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

_SIDE, _STRIDE, _CELL, _BINS = 48, 3, 6, 9  # px that images are brought to; of cells; orientations without sign
_CUT, _LEAST_ENERGY = 0.6, 1e-3  # of a normalized cell; squared gradient of an even ground, on [-1, 1]
ORIENTATIONS = _BINS * ((_SIDE + 1 - 2 * _CELL + 2 * _STRIDE) // _STRIDE + 1) ** 2  # numbers


def orientations(images: Tensor) -> Tensor:
    """Return the histograms of images (B, C, H, W) in [-1, 1], (B, D) float32: of their brightness, at 48 x 48 px."""
    grey = images.mean(1, keepdim=True)
    if grey.shape[2:] != (_SIDE, _SIDE):
        grey = functional.interpolate(grey, (_SIDE, _SIDE), mode="area" if min(grey.shape[2:]) > _SIDE else "bilinear")
    padded = functional.pad(grey, (1, 1, 1, 1), mode="replicate")
    across, down = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2], padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    place = torch.atan2(down, across) % math.pi * (_BINS / math.pi)
    low, length = place.floor(), (across.square() + down.square()).sqrt()
    votes = torch.zeros(len(grey), _BINS, _SIDE, _SIDE, device=grey.device)
    for side, weight in ((low, 1 - (place - low)), (low + 1, place - low)):
        votes.scatter_add_(1, side.long() % _BINS, length * weight)
    rise = torch.cat([torch.arange(1, _CELL + 1), torch.arange(_CELL - 1, 0, -1)]).to(grey)
    window = rise[:, None] * rise / rise.sum().square()
    cells = functional.conv2d(votes.flatten(0, 1)[:, None], window[None, None], stride=_STRIDE, padding=_STRIDE)
    cells = cells.view(len(grey), _BINS, *cells.shape[2:])
    energy = functional.pad(cells.square().sum(1, keepdim=True), (1, 1, 1, 1), mode="replicate")
    return (cells / (functional.avg_pool2d(energy, 3, 1) + _LEAST_ENERGY).sqrt()).clamp(max=_CUT).flatten(1)
