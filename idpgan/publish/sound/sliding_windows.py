"""``swp-sound`` and ``sort-swp-sound``: sliding windows whose decisions are made on noisy numbers."""

from __future__ import annotations

import dataclasses
import functools

import pydantic
import torch
from torch import Tensor

from idpgan.audit.cases import AuditCase
from idpgan.audit.entry import Entry, Request
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import Linear, Maker, Nearness
from idpgan.errors import InputError
from idpgan.privacy import Guarantee, Noise, Relation, Unit
from idpgan.publish import sliding_windows as published
from idpgan.publish.plan import Options, Publisher, Recipe, Shape, case_of
from idpgan.publish.sound import numbers
from idpgan.publish.sound.numbers import PIXEL_RANGE, ROUNDING, NoisyNumbers, Sensitivity

_SLACK = 1 - 2.0**-40  # so that rounded shares add up to at most epsilon
OPPOSITE_ROWS = "opposite-rows"
_SMALL = (3, 4)  # of an audited image: a row is a window
_SMALL_TWO = (2, 4)


class SwpSoundOptions(Options):
    """Options of ``swp-sound``; the defaults are good on drawn faces at epsilon 1.

    Attributes:
        window: Pixels of a window; one starts where the last ends. None = 56, or all of a smaller image.
        threshold: Mean absolute difference, on [0, 1], below which a window is replaced.
        compare: Share of epsilon for the comparison.
    """

    window: int | None = pydantic.Field(default=None, ge=1)
    threshold: float = pydantic.Field(default=0.3, gt=0, le=1)
    compare: float = pydantic.Field(default=0.4, gt=0, lt=1)


class SortSwpSoundOptions(SwpSoundOptions):
    """Options of ``sort-swp-sound``.

    Attributes:
        sort: Share of epsilon for the order; what `compare` and this leave is for the release.
    """

    sort: float = pydantic.Field(default=0.2, gt=0, lt=1)

    @pydantic.model_validator(mode="after")
    def _leave_something(self) -> SortSwpSoundOptions:
        if self.compare + self.sort >= 1:
            raise ValueError(f"compare + sort = {self.compare + self.sort:g} must be below 1: the release needs some")
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class WindowRelease:
    r"""Windows released with noise or replaced, one after the other.

    Formal guarantee. Window i has w_i real pixels (the last may have fewer than the others); a neighbor moves pixels of
    one image by at most R. For each window up to three numbers or vectors are read:

    * key: ``sum x``, which orders the windows before anything else is read;
    * distance: ``sum |x - c|``, where c is the mean of the last released window, computed from released numbers and
      clipped to [0, 1]. For a *fixed* c it moves by at most R for each pixel that moves, since ``||x - c| - |x'
      - c|| <= |x - x'|``;
    * the pixels themselves, `pixel_sensitivity` of the window.

    Unit pixel: a pixel lies in one window, fixed by its place. Given the released numbers of all other windows' steps
    (which determine c and the order), only that window's key, distance and release read it, and each is one release of
    sensitivity R: three events by adaptive composition; all later steps are functions of released numbers. If a window
    is replaced, its release is charged but discarded: an unshown output reveals nothing.

    Unit image: every window is read, so all its events are charged K times, with sensitivities w R for keys and
    distances, and w pixels for the release: adaptive composition over the K windows.

    A replaced window shows c, a function of released numbers.

    Attributes:
        window: w.
        threshold: Public threshold of the noisy distance.
        compare: Noise on a distance.
        pixels: Noise on a window's pixels.
        sort: Noise on a key; None = the windows keep their places.
    """

    window: int
    threshold: float
    compare: NoisyNumbers
    pixels: NoisyNumbers
    sort: NoisyNumbers | None = None

    def __call__(self, images: Tensor, noise: Noise) -> Tensor:
        """Release images (N, m, n), float64, not clamped."""
        shape = (images.shape[1], images.shape[2])
        windows = published.cut(images.clamp(0, PIXEL_RANGE), self.window)
        real = published.cut(torch.ones_like(images), self.window)  # 1 where a window has a pixel, 0 in the padding
        if self.sort is None:
            return published.join(self._follow(windows, real, noise), shape)
        keys = self.sort(self.keys(windows), noise) / real.sum(2)
        order = keys.argsort(dim=1)
        released = self._follow(published.reorder(windows, order), published.reorder(real, order), noise)
        return published.join(published.reorder(released, order.argsort(dim=1)), shape)

    @staticmethod
    def keys(windows: Tensor) -> Tensor:
        """Return the keys (...) of windows (..., w)."""
        return windows.sum(-1)

    @staticmethod
    def distances(windows: Tensor, center: Tensor, real: Tensor) -> Tensor:
        """Return the distances (N,) of windows (N, w) from public centers (N,)."""
        return ((windows - center[:, None]).abs() * real).sum(-1)

    def _follow(self, windows: Tensor, real: Tensor, noise: Noise) -> Tensor:
        """Release windows (N, K, w) in their order."""
        noisy = self.pixels(windows, noise)
        released = torch.empty_like(windows)
        center = torch.zeros_like(windows[:, 0, 0])
        for place in range(windows.shape[1]):
            here, fresh = real[:, place], noisy[:, place]
            mean = ((fresh * here).sum(1) / here.sum(1)).clamp(0, PIXEL_RANGE)
            if place:
                near = self.compare(self.distances(windows[:, place], center, here), noise) < self.threshold * here.sum(
                    1
                )
                fresh = torch.where(near[:, None], center[:, None], fresh)
                mean = torch.where(near, center, mean)
            released[:, place], center = fresh, mean
        return released


def plan_release(
    shape: Shape, unit: Unit, epsilon: float, delta: float, options: SwpSoundOptions, sort: float = 0.0
) -> tuple[WindowRelease, Recipe]:
    """Return the release and its plan. The pure epsilons add up to at most epsilon; delta can only lower the price."""
    window = published.window_of(shape, options.window)
    count = published.count_windows(shape, window)
    times = 1 if unit is Unit.PIXEL else count
    pixels = numbers.touched_pixels((window, 1), unit)
    total = float(pixels) * PIXEL_RANGE * ROUNDING
    number = Sensitivity(total, total, total, 1)

    def noisy(bounds: Sensitivity, share: float) -> NoisyNumbers:
        return numbers.calibrate_numbers(bounds, unit, "laplace", epsilon=epsilon * share / times * _SLACK, delta=0.0)

    release = WindowRelease(
        window,
        options.threshold,
        noisy(number, options.compare),
        noisy(numbers.pixel_sensitivity((window, 1), unit), 1 - options.compare - sort),
        noisy(number, sort) if sort else None,
    )
    parts = [part for part in (release.sort, release.compare, release.pixels) if part is not None]
    return release, Recipe(tuple(part.event.repeated(times) for part in parts), release)


def plan_windows(shape: Shape, unit: Unit, epsilon: float, delta: float, options: SwpSoundOptions) -> Recipe:
    """Return the plan of ``swp-sound`` or, by its options, of ``sort-swp-sound``; proof in `WindowRelease`."""
    sort = options.sort if isinstance(options, SortSwpSoundOptions) else 0.0
    return plan_release(shape, unit, epsilon, delta, options, sort)[1]


# Audits and the table -----------------------------------------------------------------------------------------------


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
        unit, asks_threshold = request.unit or Unit.PIXEL, request.pair == published.RAW_THRESHOLD
        if asks_threshold and unit is not Unit.PIXEL:
            raise InputError(
                f"the pair {published.RAW_THRESHOLD} differs in one pixel: leave unit {unit} or the pair out."
            )
        pair = published.raw_threshold(_SMALL_TWO) if asks_threshold else opposite_rows(unit)
        count, window = pair.data.shape
        plan = plan_windows((count, window), unit, request.epsilon, 0.0, options)
        total = sum(event.pure * event.count for event in plan.events)
        proven = Guarantee(total, 0.0, unit, Relation.REPLACE_ONE, f"sum of pure epsilons of {plan.law}")

        def decide(raw: Tensor, before: Tensor) -> Tensor:
            center = before.mean(-1).clamp(0, 1)
            return WindowRelease.distances(raw, center, torch.ones_like(raw)) < options.threshold * window

        def was_replaced(row: Tensor, before: Tensor) -> Tensor:
            return (row == row[:, :1]).all(-1)

        raw: list[Maker] = [functools.partial(published.RawDecision, decide=decide, was_replaced=was_replaced)]
        makers = (*(raw if asks_threshold else []), Linear, Nearness)
        note = f"an image of {count} windows of {window} pixels"
        return dataclasses.replace(case_of(name, plan, pair, makers, request, note), proven=proven)

    pairs = {"pair": (OPPOSITE_ROWS, published.RAW_THRESHOLD)}
    return Entry(build, (Unit.PIXEL, Unit.IMAGE), (Relation.REPLACE_ONE,), options=pairs)


def _sound(name: str, options: type[SwpSoundOptions]) -> Publisher:
    return Publisher(options, plan_windows, sound_entry(name, options(window=4)))


PUBLISHERS = {
    "swp-sound": _sound("swp-sound", SwpSoundOptions),
    "sort-swp-sound": _sound("sort-swp-sound", SortSwpSoundOptions),
}
