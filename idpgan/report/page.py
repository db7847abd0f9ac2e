"""What a page holds, and how it becomes one HTML file that needs nothing else and loads nothing."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import jinja2
import numpy as np
from PIL import Image
from torch import Tensor

from idpgan.version import made_with

FORMAT = "idpgan report 1"  # in the file's head, so that only a report is overwritten
GAP_PX = 3  # between images of a picture: clear, which suits a light and a dark page
MOST_BYTES = 1 << 27  # most bytes of a result file that is read
_LEAST_SIDE = 40  # least side of a shown image, px


@dataclass(frozen=True)
class Figure:
    """One of the three numbers, written large.

    Attributes:
        name: "Claimed", "Proven" or "Audited".
        value: The number as it is shown; "∞" is read out as "infinite".
        sign: Before it: "≥" of a lower bound, "≤" of an upper one, or empty.
        delta: Beside it; empty = pure, or no number.
        unit: Unit and relation; empty without a number.
        basis: Where it comes from.
    """

    name: str
    value: str
    sign: str = ""
    delta: str = ""
    unit: str = ""
    basis: str = ""


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row names it."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Chart:
    """A drawing of `charts` with the words under it."""

    title: str
    svg: str
    caption: str = ""


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


@dataclass(frozen=True)
class Gallery:
    """Pictures under one heading; private ones are marked as what nothing protects."""

    heading: str
    pictures: Sequence[Picture]
    caption: str = ""
    private: bool = False


@dataclass(frozen=True)
class Part:
    """One part of a page.

    Attributes:
        name: Of the place to jump to, one word.
        heading: Its title.
        text: Paragraphs.
        facts: Facts in pairs of a name and its value.
        missing: Why it is empty, one sentence; with the command that makes it in ``command``.
        notes: In small print.
        settings: A text that is shown as it is.
    """

    name: str
    heading: str
    text: Sequence[str] = ()
    facts: Sequence[tuple[str, str]] = ()
    galleries: Sequence[Gallery] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    missing: str | None = None
    command: str | None = None
    notes: Sequence[str] = ()
    settings: str | None = None


@dataclass(frozen=True)
class Page:
    """A whole report.

    Attributes:
        title: What it is about.
        subtitle: One line.
        alarm: What comes before anything else: why nothing is proven; empty where something is.
        figures: The three numbers.
        why: Why they differ, one paragraph each; empty on a page without the three numbers.
    """

    title: str
    subtitle: str
    alarm: Sequence[str]
    figures: Sequence[Figure]
    why: Sequence[str]
    parts: Sequence[Part]


def size_text(shape: tuple[int, int, int]) -> str:
    """Write the size of images (C, H, W)."""
    return f"{shape[1]} x {shape[2]} pixels, {'grey' if shape[0] == 1 else 'color'}"


def render(page: Page) -> str:
    """Return the HTML of a page, whose format stands in its head; every text of it is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("idpgan.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(page=page, format=FORMAT, version=made_with())


# Pictures: PNG files inside the page, with clear gaps between images ------------------------------------------------


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
    uri = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return Picture(uri, canvas.shape[1], canvas.shape[0], alt, label)


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
    found = padded.reshape(rows, height + gap, columns, width + gap, channels)[:, :height, :, :width]
    return found.transpose(0, 2, 4, 1, 3).reshape(rows * columns, channels, height, width)
