"""How a report becomes one HTML file that needs nothing else and loads nothing, and the pictures in it.

A page and its parts are dicts, whose keys stand in `templates/report.html`; what a part leaves out is not shown.

Charts as SVG inside the page: drawn by matplotlib, colored by the page's style sheet, equal at every run.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
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


Point = tuple[float, float]
_INK, _SOFT, _RULE, _ACCENT = COLORS = ("#1c1d1f", "#5c6066", "#dcdcd6", "#0b5d8f")
_VARIABLES = dict(zip(COLORS, ("--ink", "--soft", "--rule", "--accent"), strict=True))  # of style.css: dark pages too
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "idpgan",
    "font.size": 8,
    "font.sans-serif": ["DejaVu Sans"],
    "path.simplify": False,  # every point is drawn
}
_LEAST_RATE = 1e-4  # ROC axes begin here at the latest
_NEEDLESS = r'<!--.*?-->|<\?xml.*?\?>|<!DOCTYPE.*?>|<defs>.*?</defs>| xmlns(:\w+)?="[^"]*"| clip-path="[^"]*"'


def line_chart(
    points: Sequence[Point], *, title: str, description: str, limit: float | None = None, from_zero: bool = False
) -> Markup:
    """Draw one curve over the steps, both axes linear.

    Args:
        points: (step, value), steps rising, at least one; values finite.
        title: Name of the value.
        description: Says in a sentence what the curve shows, to those who do not see it.
        limit: A value that is drawn as a dotted line.
        from_zero: Whether the vertical axis begins at 0.
    """
    steps, values = np.array(points).T
    shown = [*values, *([] if limit is None else [limit]), *([0.0] if from_zero else [])]
    low, high = min(shown), max(shown)
    margin = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
    with rc_context(_STYLE):
        figure, axes = _axes(1.9)
        axes.set(xlim=(0, max(steps[-1], 1)), ylim=(0 if from_zero and low == 0 else low - margin, high + margin))
        axes.locator_params(nbins=5)
        if limit is not None:
            axes.axhline(limit, color=_SOFT, linestyle=":", gid="limit")
        axes.plot(steps, values, color=_ACCENT, gid="curve")
        return _svg(figure, axes, f"{title}: {description}")


def roc_chart(
    points: Sequence[Point],
    *,
    title: str,
    description: str,
    at: float | None = None,
    interval: Point | None = None,
    proven: Sequence[Point] = (),
) -> Markup:
    """Draw a ROC curve, both axes logarithmic, beside the line of a guess.

    Args:
        points: (false-positive rate, true-positive rate), rising, from rates in [0, 1]; none draws no attack.
        title: Name of the attack.
        description: Says in a sentence what the curve shows.
        at: A false-positive rate that is marked.
        interval: Of the true-positive rate there.
        proven: Points of a curve above which no attack can be, as it is drawn from one to the next.
    """
    least = min([rate for point in points or proven for rate in point if rate > 0], default=0.1)
    floor = min(max(10 ** math.floor(math.log10(least)), _LEAST_RATE), 0.1)
    with rc_context(_STYLE):
        figure, axes = _axes(3.0)
        axes.set(xscale="log", yscale="log", xlim=(floor, 1), ylim=(floor, 1), xlabel="false-positive rate")
        axes.minorticks_off()
        axes.plot([floor, 1], [floor, 1], color=_SOFT, linestyle=":", gid="limit")
        if points:
            axes.step(*np.array(points).T.clip(floor), where="post", color=_ACCENT, gid="curve")
        if proven:
            drawn = np.array([point for point in proven if point[0] >= floor]).T.clip(floor)
            axes.plot(*drawn, color=_INK, linestyle="--", gid="proven")
        if at is not None and interval is not None:
            axes.plot([at, at], np.clip(interval, floor, 1), color=_INK, gid="interval")
        return _svg(figure, axes, f"{title}: {description}")


def _axes(height: float) -> tuple[Figure, Axes]:
    """Return an empty figure with grid lines, of a height in inches."""
    figure = Figure(figsize=(3.4, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(axis="y", color=_RULE)
    axes.set_axisbelow(True)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set_color(_SOFT)
    axes.tick_params(length=0, labelcolor=_SOFT)
    axes.xaxis.label.set_color(_SOFT)
    return figure, axes


def _svg(figure: Figure, axes: Axes, label: str) -> Markup:
    """Return a figure as an element of a page, which may hold several: nothing in it is named or refers to anything."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: number(value))
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    drawn = re.sub(_NEEDLESS, "", file.getvalue(), flags=re.DOTALL).replace(' id="', ' class="')
    for color, variable in _VARIABLES.items():
        drawn = drawn.replace(color, f"var({variable})")
    return Markup(drawn.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1).strip())


def number(value: float) -> str:
    """Format a number of an axis or a table with few characters."""
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
