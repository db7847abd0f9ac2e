"""Audit cases of the window publishers, on constructed neighbors, without data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from idpgan.audit.cases import AuditCase
from idpgan.audit.entry import Entry, Request
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import Linear, Maker, Nearness, Statistic
from idpgan.errors import InputError
from idpgan.privacy.guarantee import Guarantee, Relation, Unit
from idpgan.publish.audits import case_of
from idpgan.publish.plan import Algorithm, as_published
from idpgan.publish.windows.published import GREYS, SwpOptions, similarity, usual_threshold
from idpgan.publish.windows.sound import SwpSoundOptions, WindowRelease, plan_windows

CLAIM = "Liu et al. (2021), theorem 9, for each window"
GROWING_SHARE, RAW_THRESHOLD, OPPOSITE_ROWS = "growing-share", "raw-threshold", "opposite-rows"
_SHAPE = (12, 24)  # a row is a window, here and below
_TWO = (2, 56)  # windows of the paper's length on ORL, with equal shares of epsilon
_SMALL = (3, 4)
_SMALL_TWO = (2, 4)
Decision = Callable[[Tensor, Tensor], Tensor]  # raw window (w,), released windows before (R, w) -> replaced? (R,)


class LastPixel(Statistic):
    """Nearness of the last row's first pixel to the neighbor's, in units of the noise seen in the rest of the row.

    The noise reveals the share of epsilon of a window's release, so an attacker knows when a guess is certain.
    """

    def __init__(self, data: Tensor, neighbor: Tensor) -> None:
        self.name = "nearness of one pixel by the noise of its window"
        self._data, self._neighbor = data[-1], neighbor[-1]

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        row = outputs[:, -1].double()
        scale = (row[:, 1:] - self._data[1:]).abs().mean(1).clamp(min=1e-300)
        return ((row[:, 0] - self._data[0]).abs() - (row[:, 0] - self._neighbor[0]).abs()) / scale


class RawDecision(Statistic):
    """Whether the last row was replaced, if only one neighbor's raw row would have been replaced.

    The score is 1 if the output indicates the neighbor, -1 if it indicates the data, 0 if the raw decision is the same
    on both. A decision on raw pixels is a function of these pixels and of the earlier rows, which the output shows:
    then -1 and 1 are certain.
    """

    def __init__(self, data: Tensor, neighbor: Tensor, decide: Decision, replaced: Decision) -> None:
        self.name = "whether a window was replaced, against the decision on raw pixels"
        self._data, self._neighbor, self._decide, self._replaced = data[-1], neighbor[-1], decide, replaced

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        before = outputs[:, -2].double()
        by_data, by_neighbor = (self._decide(raw, before) for raw in (self._data, self._neighbor))
        seen = self._replaced(outputs[:, -1].double(), before)
        return (seen == by_neighbor).double() - (seen == by_data).double()


def growing_share() -> Pair:
    """Return neighbors with equal rows, except for one pixel of the last row.

    All rows between the first and the last are replaced and cost nothing, so the last gets almost the whole pool. The
    decision to replace also depends on the raw pixels.
    """
    data = torch.zeros(_SHAPE, dtype=torch.float64)
    data[-1] = 1.0
    neighbor = data.clone()
    neighbor[-1, 0] = 0.0
    return Pair("one pixel of the last window, after windows that are all alike", data, neighbor)


def raw_threshold(shape: tuple[int, int] = _TWO) -> Pair:
    """Return a black row and a row with one white pixel; in the neighbor the second row has two white pixels.

    No window is replaced earlier, so the second window's share is exactly the nominal epsilon. Both versions of the
    second row have black and white pixels, so the neighbor changes the distance and not the set of values.
    """
    data = torch.zeros(shape, dtype=torch.float64)
    data[-1, 0] = 1.0
    neighbor = data.clone()
    neighbor[-1, -1] = 1.0
    return Pair("one pixel of the second window, which decides whether it is replaced", data, neighbor)


def _raw_decision(decide: Decision, replaced: Decision) -> Maker:
    def make(data: Tensor, neighbor: Tensor) -> Statistic:
        return RawDecision(data, neighbor, decide, replaced)

    return make


def published_entry(name: str, algorithm: Algorithm, part: float = 1.0) -> Entry:
    """Return the entry of a published algorithm; ``part`` of epsilon goes to SWP."""
    planner = as_published(name, algorithm, CLAIM)

    def build(request: Request) -> AuditCase:
        grows = request.pair == GROWING_SHARE
        pair = growing_share() if grows else raw_threshold()
        count, window = pair.data.shape
        threshold = usual_threshold(part * request.epsilon, far=GREYS / 2 if grows else 0.0)
        options = SwpOptions(window=window, threshold=threshold)
        plan = planner((count, window), Unit.PIXEL, request.epsilon, 0.0, options)

        def decide(raw: Tensor, before: Tensor) -> Tensor:
            return similarity(raw * GREYS, before * GREYS) >= threshold

        def replaced(row: Tensor, before: Tensor) -> Tensor:
            return (row == before).all(-1)

        makers = (LastPixel,) if grows else (_raw_decision(decide, replaced),)
        note = f"an image of {count} windows of {window} pixels, threshold {threshold:.4f}"
        return case_of(name, plan, pair, makers, request, note, runs=20_000)

    pairs = {"pair": (GROWING_SHARE, RAW_THRESHOLD)}
    return Entry(build, (Unit.PIXEL,), (Relation.REPLACE_ONE,), options=pairs)


def opposite_rows(unit: Unit) -> Pair:
    """Return an image of three rows (black, white, black) and a neighbor."""
    data = torch.zeros(_SMALL, dtype=torch.float64)
    data[1] = 1.0
    neighbor = 1 - data
    if unit is Unit.PIXEL:
        neighbor = data.clone()
        neighbor[1, 0] = 0.0
    return Pair(f"black, white and black windows against their negative in one {unit}", data, neighbor)


def sound_entry(name: str, options: SwpSoundOptions) -> Entry:
    """Return the entry of a sound publisher, with one row per window."""

    def build(request: Request) -> AuditCase:
        unit, asks_threshold = request.unit or Unit.PIXEL, request.pair == RAW_THRESHOLD
        if asks_threshold and unit is not Unit.PIXEL:
            raise InputError(f"the pair {RAW_THRESHOLD} differs in one pixel: leave unit {unit} or the pair out.")
        pair = raw_threshold(_SMALL_TWO) if asks_threshold else opposite_rows(unit)
        count, window = pair.data.shape
        plan = plan_windows((count, window), unit, request.epsilon, 0.0, options)
        total = sum(event.pure * event.count for event in plan.events)
        proven = Guarantee(total, 0.0, unit, Relation.REPLACE_ONE, f"sum of pure epsilons of {plan.law}")

        def decide(raw: Tensor, before: Tensor) -> Tensor:
            center = before.mean(-1).clamp(0, 1)
            return WindowRelease.distances(raw, center, torch.ones_like(raw)) < options.threshold * window

        def replaced(row: Tensor, before: Tensor) -> Tensor:
            return (row == row[:, :1]).all(-1)

        makers = (*([_raw_decision(decide, replaced)] if asks_threshold else []), Linear, Nearness)
        note = f"an image of {count} windows of {window} pixels"
        return dataclasses.replace(case_of(name, plan, pair, makers, request, note), proven=proven)

    pairs = {"pair": (OPPOSITE_ROWS, RAW_THRESHOLD)}
    return Entry(build, (Unit.PIXEL, Unit.IMAGE), (Relation.REPLACE_ONE,), options=pairs)
