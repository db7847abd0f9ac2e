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


def count_windows(shape: Shape, window: int, step: int | None = None) -> int:
    """Return how many windows an image has; the last may have fewer pixels.

    Args:
        step: Pixels from the start of a window to that of the next; None = ``window``, so that none overlap.

    Raises:
        InputError: If the window is longer than the image, or the step than the window: pixels would be left out.
    """
    pixels, step = shape[0] * shape[1], window if step is None else step
    if window > pixels:
        raise InputError(f"window = {window} is longer than the {pixels} pixels of a {shape[0]} x {shape[1]} image.")
    if step > window:
        raise InputError(f"step = {step} is longer than window = {window}: the pixels between would be left out.")
    return 1 - (window - pixels) // step


def cut(images: Tensor, window: int, step: int | None = None) -> Tensor:
    """Cut images (N, m, n) into windows (N, K, window), float64; a last shorter one is filled up with zeros."""
    count = count_windows((images.shape[1], images.shape[2]), window, step)
    flat, step = images.double().flatten(1), window if step is None else step
    padded = torch.nn.functional.pad(flat, (0, (count - 1) * step + window - flat.shape[1]))
    return padded.unfold(1, window, step).contiguous()


def join(windows: Tensor, shape: Shape, step: int | None = None) -> Tensor:
    """Put windows (N, K, window) together again: (N, m, n). Of a pixel in several windows the last one's is taken."""
    count, window = windows.shape[1:]
    step = window if step is None else step
    place = torch.arange(shape[0] * shape[1], device=windows.device)
    last = (place // step).clamp(max=count - 1)
    return windows[:, last, place - last * step].unflatten(1, shape)


def reorder(windows: Tensor, order: Tensor) -> Tensor:
    """Return the windows (N, K, w) in another order (N, K) of their own for each image."""
    return windows.gather(1, order[..., None].expand_as(windows))
