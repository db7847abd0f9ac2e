r"""SWP, SAS and sort-SWP of Liu, Yang, Zhao, Zhang, Li and Mu (2021), as published. None is private.

Face Image Publication Based on Differential Privacy, doi 10.1155/2021/6680701. The available text lacks the formulas,
which were pictures; docs/methods/sliding-windows.md lists how they are interpreted here. Pixels are on the paper's
scale, 0 .. 255. Every image of a batch is a separate stream, and all streams step together. LAP, the paper's baseline,
is Laplace noise of scale 255 / epsilon on every pixel: ``lap`` at unit pixel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pydantic
import torch
from torch import Tensor

from idpgan.audit.cases import AuditCase
from idpgan.audit.entry import Entry, Request
from idpgan.audit.neighbors import Pair
from idpgan.audit.statistics import Statistic
from idpgan.errors import InputError
from idpgan.privacy import Noise, Relation, Unit
from idpgan.privacy.matrix import add_laplace
from idpgan.publish.plan import Algorithm, Options, Publisher, Shape, as_published, case_of

GREYS = 255.0
ALPHA, TAU = 0.05, 0.1  # similarity: weight of the hash, and share of its bits that may differ
_USUAL_JACCARD = 0.82  # Jaccard index of a raw and a noisy window
_SMALL_NUMBER = 1e-3  # of the score's denominator: "a small positive number", which our text does not give
SCORE_SENSITIVITY = 1 / _SMALL_NUMBER - 1 / (1 + _SMALL_NUMBER)  # proof: `score`; the paper takes 1
_HOTTEST, _COOLING, _COLDEST = 1.0, 0.99, 1e-3
USUAL_WINDOW = 56  # pixels
CLAIM = "Liu et al. (2021), theorem 9, for each window"
GROWING_SHARE, RAW_THRESHOLD = "growing-share", "raw-threshold"
_SHAPE = (12, 24)  # of an audited image: a row is a window, here and below
_TWO = (2, 56)  # windows of the paper's length on ORL, with equal shares of epsilon
Decision = Callable[[Tensor, Tensor], Tensor]  # raw window (w,), released windows before (R, w) -> replaced? (R,)


# An image as a stream of windows: its pixels in raster order, ``window`` at a time -----------------------------


def window_of(shape: Shape, window: int | None) -> int:
    """Return the given length of a window, or by default `USUAL_WINDOW`, at most the pixels of the image."""
    return min(USUAL_WINDOW, shape[0] * shape[1]) if window is None else window


def count_windows(shape: Shape, window: int, step: int | None = None) -> int:
    """Return the number of windows of an image; the last window may have fewer pixels.

    Args:
        step: Pixels from the start of a window to that of the next; None = ``window``, so that none overlap.

    Raises:
        InputError: If the window is longer than the image, or the step is longer than the window, which would omit
            pixels.
    """
    pixels, step = shape[0] * shape[1], window if step is None else step
    if window > pixels:
        raise InputError(f"window = {window} is longer than the {pixels} pixels of a {shape[0]} x {shape[1]} image.")
    if step > window:
        raise InputError(f"step = {step} is longer than window = {window}: the pixels between would be left out.")
    return 1 - (window - pixels) // step


def cut(images: Tensor, window: int, step: int | None = None) -> Tensor:
    """Cut images (N, m, n) into windows (N, K, window), float64; a shorter last window is padded with zeros."""
    count = count_windows((images.shape[1], images.shape[2]), window, step)
    flat, step = images.double().flatten(1), window if step is None else step
    padded = torch.nn.functional.pad(flat, (0, (count - 1) * step + window - flat.shape[1]))
    return padded.unfold(1, window, step).contiguous()


def join(windows: Tensor, shape: Shape, step: int | None = None) -> Tensor:
    """Join windows (N, K, window) to images (N, m, n). A pixel in several windows is taken from the last one."""
    count, window = windows.shape[1:]
    step = window if step is None else step
    place = torch.arange(shape[0] * shape[1], device=windows.device)
    last = (place // step).clamp(max=count - 1)
    return windows[:, last, place - last * step].unflatten(1, shape)


def reorder(windows: Tensor, order: Tensor) -> Tensor:
    """Reorder the windows (N, K, w) of each image by that image's order (N, K)."""
    return windows.gather(1, order[..., None].expand_as(windows))


# The algorithms ------------------------------------------------------------------------------------------------


class SwpOptions(Options):
    """Options of SWP and sort-SWP.

    Attributes:
        window: Pixels of a window. None = 56, or all of a smaller image.
        step: Pixels from the start of a window to that of the next, at most ``window``; None = ``window``. The paper's
            is "generally 1", which is as many windows as pixels. Of a pixel in several windows the last is shown.
        threshold: Similarity from which a window is replaced by the last released one; None = `usual_threshold`.
    """

    window: int | None = pydantic.Field(default=None, ge=1)
    step: int | None = pydantic.Field(default=None, ge=1)
    threshold: float | None = pydantic.Field(default=None, ge=-1, le=1 + ALPHA)

    def check(self, shape: Shape) -> None:
        """Raise as `count_windows` does."""
        count_windows(shape, window_of(shape, self.window), self.step)


def usual_threshold(epsilon: float, far: float = 0.0) -> float:
    """Return the similarity of a raw and a released window that differ by ``far`` grey levels before noise.

    Noise alone makes the distance ``sqrt(2) 255 / epsilon`` (72 at epsilon 5, 361 at 1), so that similarities lie in a
    narrow band around ``-ALPHA``. Of far = 0, 30, 60 and 100, far = 0 had the least error on drawn faces.
    """
    return _USUAL_JACCARD / (1 + math.hypot(math.sqrt(2) * GREYS / epsilon, far)) - ALPHA


def similarity(one: Tensor, other: Tensor) -> Tensor:
    r"""Return the paper's EM of windows (..., w) on 0 .. 255: ``J / (1 + d) + s``.

    d is the Euclidean distance by sqrt(w); J the Jaccard index of the sets of values (rounded, cut to 0 .. 255), mapped
    to [0.8, 1]; s is ``+ALPHA`` where at most ``TAU w`` bits of the average hashes differ, else ``-ALPHA``.
    """
    distance = (one - other).square().mean(-1).sqrt()
    first, second = _values(one), _values(other)
    jaccard = (first & second).sum(-1) / (first | second).sum(-1)
    bits = [window >= window.mean(-1, keepdim=True) for window in (one, other)]
    differing = (bits[0] ^ bits[1]).double().mean(-1)
    return (0.8 + 0.2 * jaccard) / (1 + distance) + torch.where(differing <= TAU, ALPHA, -ALPHA)


def _values(windows: Tensor) -> Tensor:
    """Return which grey levels occur in a window, (..., 256) bool."""
    levels = windows.round().clamp(0, GREYS).long()
    return torch.zeros(*windows.shape[:-1], 256, dtype=torch.bool, device=windows.device).scatter_(-1, levels, True)


def release_windows(windows: Tensor, epsilon: float, threshold: float, noise: Noise) -> Tensor:
    """Release windows (N, K, w) in their order, by SWP with dynamic allocation (DA).

    The pool is K epsilon. The first window is always released. A released window gets ``pool left / windows left``; a
    window similar to the last released (noisy) window is replaced by it and costs nothing.
    """
    count = windows.shape[1]
    pool = torch.full((len(windows),), count * epsilon, dtype=torch.float64, device=windows.device)
    released = torch.empty_like(windows)
    for place in range(count):
        raw = windows[:, place]
        share = pool / (count - place)
        fresh = add_laplace(raw, (GREYS / share)[:, None], noise)
        if place:
            replaced = similarity(raw, released[:, place - 1]) >= threshold  # uses raw pixels: the leak
            fresh = torch.where(replaced[:, None], released[:, place - 1], fresh)
            share = torch.where(replaced, 0, share)
        released[:, place] = fresh
        pool = pool - share
    return released


def swp(images: Tensor, epsilon: float, options: SwpOptions, noise: Noise) -> Tensor:
    """Publish images (N, m, n) in [0, 1] by SWP; epsilon is nominal, for each window."""
    threshold = usual_threshold(epsilon) if options.threshold is None else options.threshold
    shape = (images.shape[1], images.shape[2])
    windows = cut(images * GREYS, window_of(shape, options.window), options.step)
    return join(release_windows(windows, epsilon, threshold, noise), shape, options.step) / GREYS


def sas(windows: Tensor, epsilon_choice: float, epsilon_first: float, noise: Noise) -> Tensor:
    r"""Order windows (N, K, w) by SAS: an order (N, K) for each image that starts with window 0.

    The first window is released with Laplace noise, ``epsilon_first``; the others are drawn by `draw_order`, by their
    similarity to the first, clipped to [0, 1], ``epsilon_choice / (K - 1)`` each. Simulated annealing on the true
    similarities follows (the leak): swap two places, accept by Metropolis; the energy is the sum of the differences of
    neighbors.
    """
    many, count = windows.shape[:2]
    if count < 3:
        return torch.arange(count, device=windows.device).expand(many, count)
    scale = torch.full((many, 1), GREYS / epsilon_first, dtype=torch.float64, device=windows.device)
    first = add_laplace(windows[:, 0], scale, noise)
    likeness = similarity(windows, first[:, None]).clamp(0, 1)
    return anneal(draw_order(likeness, epsilon_choice / (count - 1), noise), likeness, noise)


def score(likeness: Tensor) -> Tensor:
    r"""Return the paper's score of similarities in [0, 1], ``1 / (1 - likeness + c)``, c = 0.001.

    Sensitivity. The score lies in [1 / (1 + c), 1 / c] and both ends are reached, so it moves by at most
    `SCORE_SENSITIVITY` = 1 / (c (1 + c)) = 999.001: by all of that where one of 56 pixels goes from black to white
    beside a black first window, which the window was equal to. The paper takes 1, "because deleting or adding a record
    only affects one count". A draw that it calls epsilon is therefore 999 epsilon, by the exponential mechanism's
    proof.
    """
    return 1 / (1 - likeness + _SMALL_NUMBER)


def draw_order(likeness: Tensor, epsilon: float, noise: Noise, sensitivity: float = 1.0) -> Tensor:
    """Draw an order (N, K) after place 0 by the exponential mechanism, without replacement.

    Sorting the scores plus Gumbel noise draws all at once and has the same law.

    Args:
        likeness: Similarities (N, K) to place 0, in [0, 1].
        epsilon: Of each of the K - 1 draws, if the score had the sensitivity that is stated.
        noise: Source of the noise.
        sensitivity: The paper's 1, or `SCORE_SENSITIVITY`, under which epsilon is true.
    """
    many, count = likeness.shape
    gumbel = -(-noise.uniform((many, count - 1)).log()).log()
    keys = score(likeness[:, 1:]) * (epsilon / sensitivity / 2) + gumbel.to(likeness.device)
    return torch.cat([torch.zeros_like(keys[:, :1]).long(), 1 + keys.argsort(dim=1, descending=True)], 1)


def anneal(order: Tensor, likeness: Tensor, noise: Noise) -> Tensor:
    """Shorten the path through the likenesses (N, K) by swaps; place 0 is fixed."""
    count = order.shape[1]
    steps = math.ceil(math.log(_COLDEST / _HOTTEST) / math.log(_COOLING))
    rows = torch.arange(len(order), device=order.device)
    places = 1 + noise.integers(count - 1, (steps, 2, len(order))).to(order.device)
    coins = noise.uniform((steps, len(order))).to(order.device)
    temperature, along = _HOTTEST, likeness.gather(1, order)
    length = along.diff(dim=1).abs().sum(1)
    for step in range(steps):
        one, other = places[step]
        swapped = along.clone()
        swapped[rows, one], swapped[rows, other] = along[rows, other], along[rows, one]
        longer = swapped.diff(dim=1).abs().sum(1)
        taken = coins[step] < ((length - longer) / temperature).clamp(max=0).exp()
        new = order.clone()
        new[rows, one], new[rows, other] = order[rows, other], order[rows, one]
        order, along = (
            torch.where(taken[:, None], after, before) for after, before in ((new, order), (swapped, along))
        )
        length = torch.where(taken, longer, length)
        temperature *= _COOLING
    return order


def sort_swp(images: Tensor, epsilon: float, options: SwpOptions, noise: Noise) -> Tensor:
    """Publish images (N, m, n) in [0, 1] by sort-SWP: a third of epsilon each for order, first window and SWP."""
    part, shape = epsilon / 3, (images.shape[1], images.shape[2])
    threshold = usual_threshold(part) if options.threshold is None else options.threshold
    windows = cut(images * GREYS, window_of(shape, options.window), options.step)
    order = sas(windows, part, part, noise)
    released = release_windows(reorder(windows, order), part, threshold, noise)
    return join(reorder(released, order.argsort(dim=1)), shape, options.step) / GREYS


# Audits and the table -----------------------------------------------------------------------------------------------


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

    def __init__(self, data: Tensor, neighbor: Tensor, decide: Decision, was_replaced: Decision) -> None:
        self.name = "whether a window was replaced, against the decision on raw pixels"
        self._data, self._neighbor, self._decide, self._was_replaced = data[-1], neighbor[-1], decide, was_replaced

    def __call__(self, outputs: Tensor) -> Tensor:
        """See `Statistic`."""
        before = outputs[:, -2].double()
        by_data, by_neighbor = (self._decide(raw, before) for raw in (self._data, self._neighbor))
        seen = self._was_replaced(outputs[:, -1].double(), before)
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

        def was_replaced(row: Tensor, before: Tensor) -> Tensor:
            return (row == before).all(-1)

        makers = (LastPixel,) if grows else (functools.partial(RawDecision, decide=decide, was_replaced=was_replaced),)
        note = f"an image of {count} windows of {window} pixels, threshold {threshold:.4f}"
        return case_of(name, plan, pair, makers, request, note, runs=20_000)

    pairs = {"pair": (GROWING_SHARE, RAW_THRESHOLD)}
    return Entry(build, (Unit.PIXEL,), (Relation.REPLACE_ONE,), options=pairs)


def _published(name: str, algorithm: Algorithm, part: float = 1.0) -> Publisher:
    plan = as_published(name, algorithm, CLAIM)
    return Publisher(SwpOptions, plan, published_entry(name, algorithm, part))


PUBLISHERS = {"swp": _published("swp", swp), "sort-swp": _published("sort-swp", sort_swp, part=1 / 3)}
