"""Mean and median filter: what anybody who receives a noisy image can do to see more of it.

Liu et al. (2021), section 4.2, filter what they published to judge how much noise is taken away again. A filter reads
released pixels only, so it costs no epsilon: post-processing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from idpgan.checks import typed
from idpgan.errors import InputError

_CHUNK_NUMBERS = 1 << 24  # numbers of neighborhoods at a time: a side of 3 needs 9 times the images in memory


@typed
def mean_filter(images: Tensor, side: int = 3) -> Tensor:
    """Return images whose pixels are the means of the ``side`` x ``side`` pixels around them.

    At the border the nearest pixel is repeated. The paper does not state the side; 3 is usual.

    Args:
        images: (N, H, W) or (N, C, H, W), uint8 (then rounded to the nearest level) or floating point of any range.
        side: Odd, at least 1.

    Raises:
        InputError: If shape, type or side are others.

    Example:
        >>> mean_filter(torch.tensor([[[0.0, 9.0, 0.0]]])).tolist()
        [[[3.0, 3.0, 3.0]]]
    """
    return _filtered(images, side, lambda neighbors: neighbors.mean(-1))


@typed
def median_filter(images: Tensor, side: int = 3) -> Tensor:
    """Return images whose pixels are the medians of the ``side`` x ``side`` pixels around them; see `mean_filter`.

    Example:
        >>> median_filter(torch.tensor([[[0.0, 9.0, 0.0, 0.0]]])).tolist()
        [[[0.0, 0.0, 0.0, 0.0]]]
    """
    return _filtered(images, side, lambda neighbors: neighbors.median(-1).values)


def _filtered(images: Tensor, side: int, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Reduce the neighborhood (..., side^2) of every pixel to one number."""
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise InputError(f"A filter needs images (N, H, W) or (N, C, H, W), got {tuple(images.shape)}.")
    if not images.is_floating_point() and images.dtype != torch.uint8:
        raise InputError(f"A filter needs uint8 or floating point images, got {images.dtype}.")
    if side < 1 or side % 2 == 0:
        raise InputError(f"side = {side} must be odd and at least 1: a pixel lies in the middle of its neighbors.")
    planes = images.reshape(-1, *images.shape[-2:])
    filtered = torch.empty_like(planes)
    step = max(1, _CHUNK_NUMBERS // (planes[0].numel() * side * side))
    for start in range(0, len(planes), step):
        part = planes[start : start + step]
        values = part if part.is_floating_point() else part.float()
        padded = torch.nn.functional.pad(values[:, None], (side // 2,) * 4, mode="replicate")[:, 0]
        neighbors = padded.unfold(1, side, 1).unfold(2, side, 1).flatten(-2)  # (N, H, W, side^2)
        reduced = reduce(neighbors)
        filtered[start : start + step] = reduced if part.is_floating_point() else reduced.round()
    return filtered.view(images.shape)
