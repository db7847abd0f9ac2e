"""Charts as SVG inside the page: drawn by matplotlib, colored by the page's style sheet, equal at every run."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
