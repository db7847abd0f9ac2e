"""Charts as inline SVG: one curve each, colored by the page's style sheet, with a text that says what they show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Point = tuple[float, float]
_WIDTH, _HEIGHT = 340, 190  # size of the drawing, in its own units
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 18, 10, 28  # margins for the numbers
_ROC_HEIGHT = 300
_LEAST_RATE = 1e-4  # ROC axes begin here at the latest


def line_chart(
    points: Sequence[Point], *, title: str, description: str, limit: float | None = None, from_zero: bool = False
) -> str:
    """Draw one curve over the steps, both axes linear.

    Args:
        points: (step, value), steps rising, at least one; values finite.
        title: Name of the value.
        description: Says in a sentence what the curve shows, to those who do not see it.
        limit: A value that is drawn as a dotted line.
        from_zero: Whether the vertical axis begins at 0.
    """
    steps, values = [x for x, _ in points], [y for _, y in points]
    shown = [*values, *([] if limit is None else [limit]), *([0.0] if from_zero else [])]
    low, high = min(shown), max(shown)
    margin = 0.06 * (high - low) or 0.5 * abs(high) or 1.0
    low, high = 0.0 if from_zero and low == 0 else low - margin, high + margin
    first, last = (0.0, max(steps)) if max(steps) > 0 else (0.0, 1.0)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def place_x(step: float) -> float:
        return _LEFT + (right - _LEFT) * (step - first) / (last - first)

    def place_y(value: float) -> float:
        return bottom - (bottom - _TOP) * (value - low) / (high - low)

    drawn = _axis_y(_nice_ticks(low, high), place_y, right)
    drawn += _axis_x(_nice_ticks(first, last, 4), place_x, bottom)
    if limit is not None:
        drawn.append(_line("limit", _LEFT, place_y(limit), right, place_y(limit)))
    drawn.append(_path("curve", [(place_x(x), place_y(y)) for x, y in points]))
    end = {"class": "dot", "cx": _place(place_x(steps[-1])), "cy": _place(place_y(values[-1])), "r": "3"}
    drawn.append(Element("circle", end))
    return _svg(_WIDTH, _HEIGHT, title, description, drawn)


def roc_chart(
    points: Sequence[Point],
    *,
    title: str,
    description: str,
    at: float | None = None,
    interval: Point | None = None,
    proven: Sequence[Point] = (),
) -> str:
    """Draw a ROC curve, both axes logarithmic, beside the line of a guess.

    Args:
        points: (false-positive rate, true-positive rate), rising, from rates in [0, 1]; none draws no attack.
        title: Name of the attack.
        description: Says in a sentence what the curve shows.
        at: A false-positive rate that is marked.
        interval: Of the true-positive rate there.
        proven: Points of a curve above which no attack can be, as it is drawn from one to the next.
    """
    rates = [rate for point in points or proven for rate in point if rate > 0]
    floor = max(10 ** math.floor(math.log10(min(rates, default=0.1))), _LEAST_RATE)
    floor = min(floor, 0.1)
    right, bottom = _WIDTH - _RIGHT, _ROC_HEIGHT - _BOTTOM - 14

    def share(rate: float) -> float:
        return 1 - math.log10(max(rate, floor)) / math.log10(floor)

    def place_x(rate: float) -> float:
        return _LEFT + (right - _LEFT) * share(rate)

    def place_y(rate: float) -> float:
        return bottom - (bottom - _TOP) * share(rate)

    decades = [10.0**-power for power in range(round(-math.log10(floor)), -1, -1)]
    drawn = _axis_y(decades, place_y, right) + _axis_x(decades, place_x, bottom)
    drawn.append(_text((_LEFT + right) / 2, _ROC_HEIGHT - 4, "false-positive rate", "middle"))
    drawn.append(_line("limit", place_x(floor), place_y(floor), place_x(1), place_y(1)))
    corners: list[Point] = []
    for (x, y), (following, _) in zip(points, [*points[1:], *points[-1:]], strict=True):  # a step: flat, then up
        corners += [(place_x(x), place_y(y)), (place_x(following), place_y(y))]
    corners = list(dict.fromkeys(corners))
    if corners:
        drawn.append(_path("curve", corners))
    if proven:
        drawn.append(_path("proven", [(place_x(x), place_y(y)) for x, y in proven if x >= floor]))
    if at is not None and interval is not None:
        low, high = interval
        drawn.append(_line("interval", place_x(at), place_y(low), place_x(at), place_y(high)))
    return _svg(_WIDTH, _ROC_HEIGHT, title, description, drawn)


def _svg(width: int, height: int, title: str, description: str, drawn: Sequence[Element]) -> str:
    label = f"{title}: {description}"
    svg = Element("svg", {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": label})
    svg.extend(drawn)
    return ElementTree.tostring(svg, encoding="unicode")


def _axis_y(ticks: Sequence[float], place: Callable[[float], float], right: float) -> list[Element]:
    drawn = []
    for tick in ticks:
        drawn.append(_line("grid", _LEFT, place(tick), right, place(tick)))
        drawn.append(_text(_LEFT - 6, place(tick) + 3.5, number(tick), "end"))
    return drawn


def _axis_x(ticks: Sequence[float], place: Callable[[float], float], bottom: float) -> list[Element]:
    drawn = [_line("axis", place(ticks[0]), bottom, place(ticks[-1]), bottom)]
    drawn += [_text(place(tick), bottom + 15, number(tick), "middle") for tick in ticks]
    return drawn


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> Element:
    return Element("line", {"class": kind, "x1": _place(x1), "y1": _place(y1), "x2": _place(x2), "y2": _place(y2)})


def _path(kind: str, points: Sequence[Point]) -> Element:
    return Element("polyline", {"class": kind, "points": " ".join(f"{_place(x)},{_place(y)}" for x, y in points)})


def _text(x: float, y: float, text: str, anchor: str) -> Element:
    made = Element("text", {"x": _place(x), "y": _place(y), "text-anchor": anchor})
    made.text = text
    return made


def _place(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return roughly ``about`` round numbers in [low, high], at least two."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    ticks = [round(k * step, 12) for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return ticks if len(ticks) > 1 else [low, high]


def number(value: float) -> str:
    """Format a number of an axis or a table with few characters."""
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
