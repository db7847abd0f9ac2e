"""An image as a stream of windows: its pixels in raster order, ``window`` at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.errors import InputError
from idpgan.publish.plan import Shape

USUAL_WINDOW = 56  # pixels


def window_of(shape: Shape, window: int | None) -> int:
    """Return the length of a window: the given one, or `USUAL_WINDOW` for images that have so many pixels."""
    return min(USUAL_WINDOW, shape[0] * shape[1]) if window is None else window


def count_windows(shape: Shape, window: int) -> int:
    """Return how many windows an image has; the last may be shorter. A window longer than the image is refused."""
    pixels = shape[0] * shape[1]
    if window > pixels:
        raise InputError(f"window = {window} is longer than the {pixels} pixels of a {shape[0]} x {shape[1]} image.")
    return -(-pixels // window)


def cut(images: Tensor, window: int) -> Tensor:
    """Cut images (N, m, n) into windows (N, K, window), float64; a last shorter one is filled up with zeros."""
    count = count_windows((images.shape[1], images.shape[2]), window)
    flat = images.double().flatten(1)
    return torch.nn.functional.pad(flat, (0, count * window - flat.shape[1])).unflatten(1, (count, window))


def join(windows: Tensor, shape: Shape) -> Tensor:
    """Put windows (N, K, window) together again: (N, m, n)."""
    return windows.flatten(1)[:, : shape[0] * shape[1]].unflatten(1, shape)


def reorder(windows: Tensor, order: Tensor) -> Tensor:
    """Return the windows (N, K, w) in another order (N, K) of their own for each image."""
    return windows.gather(1, order[..., None].expand_as(windows))
