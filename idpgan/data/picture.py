"""Images as one picture: a grid, and the content of a PNG file."""

from __future__ import annotations

import io

import torch
from PIL import Image
from torch import Tensor

GAP_PX = 2
SHOWN_COLUMNS, SHOWN = 8, 64  # of what a notebook shows


def make_grid(images: Tensor, columns: int) -> Tensor:
    """Lay uint8 images (N, C, H, W), N >= 1, out row by row, with white gaps and white in unfilled places.

    Returns:
        uint8 (C, rows * (H + 2) - 2, columns * (W + 2) - 2).
    """
    num, channels, height, width = images.shape
    rows = -(-num // columns)
    cells = torch.full((rows * columns, channels, height + GAP_PX, width + GAP_PX), 255, dtype=torch.uint8)
    cells[:num, :, :height, :width] = images.cpu()
    grid = cells.view(rows, columns, channels, height + GAP_PX, width + GAP_PX).permute(2, 0, 3, 1, 4)
    return grid.reshape(channels, rows * (height + GAP_PX), columns * (width + GAP_PX))[:, :-GAP_PX, :-GAP_PX]


def png_bytes(image: Tensor) -> bytes:
    """Return one uint8 image (C, H, W), C = 1 or 3, as the content of a PNG file."""
    pixels = image.cpu().permute(1, 2, 0).squeeze(2) if image.shape[0] == 1 else image.cpu().permute(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels.contiguous().numpy()).save(buffer, format="PNG")
    return buffer.getvalue()


def notebook_png(images: Tensor, columns: int = SHOWN_COLUMNS) -> bytes | None:
    """Return the first 64 of uint8 images (N, C, H, W) as a notebook shows them; None where there are none."""
    return png_bytes(make_grid(images[:SHOWN], min(len(images), columns))) if len(images) else None
