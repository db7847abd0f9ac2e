"""Pictures of a page: PNG files inside it, with clear gaps between images, which suit a light and a dark page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from torch import Tensor

GAP_PX = 3
_LEAST_SIDE = 40  # of one image as it is shown, px


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        uri: The PNG file as a data URI.
        width: Its own, px.
        height: Its own, px.
        alt: What it shows.
        label: Beside it; empty = none.
    """

    uri: str
    width: int
    height: int
    alt: str
    label: str = ""


def lay_out(images: Tensor, columns: int, *, alt: str, label: str = "") -> Picture:
    """Lay uint8 images (N, C, H, W), N >= 1, C = 1 or 3, out row by row, with transparent gaps, small ones enlarged."""
    num, channels = images.shape[:2]
    factor = max(1, -(-_LEAST_SIDE // max(images.shape[2:])))
    enlarged = images.cpu().repeat_interleave(factor, 2).repeat_interleave(factor, 3).numpy()
    height, width = enlarged.shape[2:]
    rows = -(-num // columns)
    canvas = np.zeros((rows * (height + GAP_PX) - GAP_PX, columns * (width + GAP_PX) - GAP_PX, channels + 1), np.uint8)
    for index, image in enumerate(enlarged):
        top, left = (index // columns) * (height + GAP_PX), (index % columns) * (width + GAP_PX)
        canvas[top : top + height, left : left + width, :channels] = image.transpose(1, 2, 0)
        canvas[top : top + height, left : left + width, channels] = 255
    buffer = io.BytesIO()
    Image.fromarray(canvas).save(buffer, format="PNG", optimize=True)
    return Picture(_uri(buffer.getvalue()), canvas.shape[1], canvas.shape[0], alt, label)


def by_class(
    images: Tensor, labels: Tensor | None, classes: Sequence[str], *, what: str, most_classes: int = 16
) -> list[Picture]:
    """Return one strip of images for each class, in the order of the classes; one block without labels.

    Args:
        images: uint8 (N, C, H, W).
        labels: int64 (N,); None without classes.
        classes: Their names.
        what: Of what kind the images are, for the alternative text.
        most_classes: Further classes are left out.
    """
    if labels is None or not classes:
        return [lay_out(images[:48], 8, alt=f"{len(images[:48])} {what}")]
    columns, most = 8, 8 if len(classes) > 4 else 16
    strips = []
    for index, name in enumerate(classes[:most_classes]):
        chosen = images[(labels == index).nonzero()[:most, 0]]
        if len(chosen):
            alt = f"{len(chosen)} {what} of class {name}"
            strips.append(lay_out(chosen, columns, alt=alt, label=name))
    return strips


def cells(sheet: bytes, image_shape: tuple[int, int, int], columns: int, gap: int) -> np.ndarray:
    """Take a contact sheet apart: uint8 (cells, C, H, W), row by row, unfilled places included.

    Raises:
        ValueError: If it is no picture of such cells.
    """
    channels, height, width = image_shape
    with Image.open(io.BytesIO(sheet)) as opened:
        pixels = np.asarray(opened.convert("L" if channels == 1 else "RGB"))
    pixels = pixels.reshape(*pixels.shape[:2], channels)
    rows = (pixels.shape[0] + gap) // (height + gap)
    if pixels.shape[:2] != (rows * (height + gap) - gap, columns * (width + gap) - gap):
        raise ValueError(f"a picture of {pixels.shape[1]} x {pixels.shape[0]} pixels does not hold such images")
    padded = np.pad(pixels, ((0, gap), (0, gap), (0, 0)))
    found = padded.reshape(rows, height + gap, columns, width + gap, channels)[:, :height, :, :width]
    return found.transpose(0, 2, 4, 1, 3).reshape(rows * columns, channels, height, width)


def _uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
