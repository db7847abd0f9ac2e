"""Audit cases of the window publishers, on constructed neighbors: data-free."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from idpgan.audit.cases import AuditCase, Entry, Request, guarantees
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import Linear, Nearness, Statistic
from idpgan.privacy import Guarantee, Noise, Relation, Unit
from idpgan.publish.plan import Options, Plan, Shape
from idpgan.publish.windows.published import GREYS, SwpOptions, usual_threshold

CLAIM = "Liu et al. (2021), theorem 9, for each window"
_SHAPE = (12, 24)  # a row is a window
_SMALL = (3, 4)


class LastPixel(Statistic):
    """Nearness of the last row's first pixel to the neighbor's, in units of the noise that the rest of the row shows.

    The share of a window's release is known from its noise, so an attacker knows when to be sure.
    """

    def __init__(self, data: Tensor, neighbor: Tensor) -> None:
        self.name = "nearness of one pixel by the noise of its window"
        self._data, self._neighbor = data[-1], neighbor[-1]

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        row = outputs[:, -1].double()
        scale = (row[:, 1:] - self._data[1:]).abs().mean(1).clamp(min=1e-300)
        return ((row[:, 0] - self._data[0]).abs() - (row[:, 0] - self._neighbor[0]).abs()) / scale


def growing_share() -> Pair:
    """Return rows that are alike but for the last, in which one pixel differs.

    All rows between are replaced and cost nothing, so the last gets almost the whole pool. Which rows are replaced is
    seen from the raw pixels too.
    """
    data = torch.zeros(_SHAPE, dtype=torch.float64)
    data[-1] = 1.0
    neighbor = data.clone()
    neighbor[-1, 0] = 0.0
    return Pair("one pixel of the last window, after windows that are all alike", data, neighbor)


def published_entry(
    name: str, algorithm: Callable[[Tensor, float, SwpOptions, Noise], Tensor], part: float = 1.0
) -> Entry:
    """Return the entry of a published algorithm; ``part`` of epsilon goes to SWP."""

    def build(request: Request) -> AuditCase:
        options = SwpOptions(window=_SHAPE[1], threshold=usual_threshold(part * request.epsilon, far=GREYS / 2))
        adjacency = (Unit.PIXEL, Relation.REPLACE_ONE)
        claimed = Guarantee(request.epsilon, 0.0, *adjacency, CLAIM)
        proven = Guarantee(float("inf"), 0.0, *adjacency, "nothing is proven")
        notes = (f"an image of {_SHAPE[0]} windows of {_SHAPE[1]} pixels, threshold {options.threshold:.4f}",)

        def release(values: Tensor, noise: Noise) -> Tensor:
            return algorithm(values, request.epsilon, options, noise)

        makers = (LastPixel,)
        return AuditCase(name, growing_share(), claimed, proven, release, makers, notes=notes, runs=20_000)

    return Entry(build, (Unit.PIXEL,), (Relation.REPLACE_ONE,))


def opposite_rows(unit: Unit) -> Pair:
    """Return three rows, black, white and black, and a neighbor of them."""
    data = torch.zeros(_SMALL, dtype=torch.float64)
    data[1] = 1.0
    neighbor = 1 - data
    if unit is Unit.PIXEL:
        neighbor = data.clone()
        neighbor[1, 0] = 0.0
    return Pair(f"black, white and black windows against their negative in one {unit}", data, neighbor)


def sound_entry(name: str, plan: Callable[[Shape, Unit, float, float, Any], Plan], options: Options) -> Entry:
    """Return the entry of a sound publisher; its options have windows of one row."""

    def build(request: Request) -> AuditCase:
        unit = request.unit or Unit.PIXEL
        planned = plan(_SMALL, unit, request.epsilon, 0.0, options)
        claimed, _ = guarantees(request, planned.events[0])
        total = sum(event.pure * event.count for event in planned.events)
        proven = Guarantee(total, 0.0, unit, Relation.REPLACE_ONE, f"sum of pure epsilons of {planned.law}")
        pair = opposite_rows(unit)
        notes = (f"an image of {_SMALL[0]} windows of {_SMALL[1]} pixels",)
        return AuditCase(
            name, pair, claimed, proven, planned.release, (Linear, Nearness), notes=notes, events=planned.events
        )

    return Entry(build, (Unit.PIXEL, Unit.IMAGE), (Relation.REPLACE_ONE,))
