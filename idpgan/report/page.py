"""How a report becomes one HTML file that needs nothing else and loads nothing, and the pictures in it.

A page and its parts are dicts, whose keys stand in `templates/report.html`; what a part leaves out is not shown.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import numpy as np
from PIL import Image
from torch import Tensor

from idpgan.version import made_with

FORMAT = "idpgan report 1"  # in the file's head, so that only a report is overwritten
GAP_PX = 3  # between images of a picture: clear, which suits a light and a dark page
MOST_BYTES = 1 << 27  # most bytes of a result file that is read
_LEAST_SIDE = 40  # least side of a shown image, px

Content = Mapping[str, Any]  # of a page, a part, a picture or a result file


def render(page: Content) -> str:
    """Return the HTML of a page, whose format stands in its head; every text of it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("idpgan.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("report.html").render(page=page, format=FORMAT, version=made_with())


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Content:
    """Return a table; the first cell of each row names it."""
    return {"caption": caption, "head": head, "rows": rows}


def size_text(shape: tuple[int, int, int]) -> str:
    """Write the size of images (C, H, W)."""
    return f"{shape[1]} x {shape[2]} pixels, {'grey' if shape[0] == 1 else 'color'}"


def lay_out(images: Tensor, columns: int, *, alt: str, label: str = "") -> Content:
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
    uri = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return {"uri": uri, "width": canvas.shape[1], "height": canvas.shape[0], "alt": alt, "label": label}


def by_class(
    images: Tensor, labels: Tensor | None, classes: Sequence[str], *, what: str, most_classes: int = 16
) -> list[Content]:
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
    most, strips = 8 if len(classes) > 4 else 16, []
    for index, name in enumerate(classes[:most_classes]):
        chosen = images[(labels == index).nonzero()[:most, 0]]
        if len(chosen):
            strips.append(lay_out(chosen, 8, alt=f"{len(chosen)} {what} of class {name}", label=name))
    return strips


def cells(sheet: bytes, image_shape: tuple[int, int, int], columns: int, gap: int) -> np.ndarray:
    """Take a contact sheet apart: uint8 (cells, C, H, W), row by row, unfilled places included.

    Raises:
        ValueError: If the picture has another size than such cells have.
    """
    channels, height, width = image_shape
    with Image.open(io.BytesIO(sheet), formats=["PNG"]) as opened:
        pixels = np.asarray(opened.convert("L" if channels == 1 else "RGB"))
    pixels = pixels.reshape(*pixels.shape[:2], channels)
    rows = (pixels.shape[0] + gap) // (height + gap)
    if pixels.shape[:2] != (rows * (height + gap) - gap, columns * (width + gap) - gap):
        raise ValueError(f"a picture of {pixels.shape[1]} x {pixels.shape[0]} pixels does not hold such images")
    padded = np.pad(pixels, ((0, gap), (0, gap), (0, 0)))
    grid = padded.reshape(rows, height + gap, columns, width + gap, channels)[:, :height, :, :width]
    return grid.transpose(0, 2, 4, 1, 3).reshape(rows * columns, channels, height, width)
