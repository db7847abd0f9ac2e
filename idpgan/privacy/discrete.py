r"""Exact samplers of discrete noise: integers only, no floating point between the random bits and the answer.

Laplace and Gaussian numbers are composed of a cell and a place in it. The cell is found by inversion of a uniform
number, exactly: more bits are drawn where the first 62 do not decide. Cells are so narrow that the density hardly falls
inside one: a place is drawn uniformly and kept with probability exp(-gamma), gamma at most about 1/16, by a test of
integers that nearly always ends at the first one. Canonne, Kamath, Steinke 2020 ("The discrete Gaussian for
differential privacy", Algorithm 1) test exp(-gamma) in that way; Karney 2016 ("Sampling exactly from the normal
distribution") does without floating point by comparing uniform numbers digit by digit.

Batched: every loop below runs over *rounds*; each round draws all unfinished entries of a batch at once. Scales are
whole numbers of grid steps, which keeps every fraction exact in 64 bits.
"""

from __future__ import annotations

import bisect
import contextlib
import decimal
import functools
import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from idpgan.lazy import torch
from idpgan.privacy.noise import Noise

MAX_SCALE = 1 << 50  # largest scale, in grid steps
BLOCK = 1 << 18  # numbers; of fewer, threads wait for each other
_BITS = 62  # random bits drawn first to find a cell
_GUIDE_BITS = 14  # leading bits of `_BITS`, which nearly always decide
_CELLS = 64  # cells per standard deviation or Laplace scale
_TWO_CELLS_BITS = 7  # 2^7 = 2 cells


def _integers(below: int, count: int, noise: Noise) -> np.ndarray:
    return noise.integers(below, (count,)).numpy()


def num_blocks(count: int) -> int:
    """Return how many blocks so many numbers have."""
    return -(-count // BLOCK)


def _filled(count: int, noise: Noise, some: Callable[[int, Noise], np.ndarray], own: slice = slice(None)) -> np.ndarray:
    """Return int64 (count,) of ``some(missing, source)``, which draws at most so many numbers, a block after the other.

    Of several blocks each has a part of the stream (`Noise.parts`), from which it draws again what it rejects. So every
    number is a function of key and place, and threads draw the blocks, as many as torch computes on; of several
    processes each draws its ``own``, and gets their numbers alone.
    """
    starts = range(0, count, BLOCK)
    sources = ([noise] if len(starts) < 2 else noise.parts(len(starts)))[own]
    lengths = [min(BLOCK, count - start) for start in starts[own]]
    result = np.empty(sum(lengths), dtype=np.int64)
    blocks = np.split(result, np.cumsum(lengths)[:-1]) if lengths else []

    def fill(block: np.ndarray, source: Noise) -> None:
        done = 0
        while done < len(block):
            kept = some(len(block) - done, source)
            block[done : done + len(kept)] = kept
            done += len(kept)

    threads = min(len(blocks), torch.get_num_threads())
    with ThreadPoolExecutor(threads, "idpgan-noise") if threads > 1 else contextlib.nullcontext() as pool:
        for _ in (pool.map if pool else map)(fill, blocks, sources):
            pass  # what fails in a thread fails here
    return result


# Cells by inversion ---------------------------------------------------------------------------------------------------


class _NormalCells(NamedTuple):
    """P(K = k) ~ exp(-(k / 64)^2 / 2), k >= 0: the largest density in each cell of the half normal law."""

    def bounds(self, bits: int) -> list[int]:
        """Return ``2^bits P(K <= k)`` for k = 0, 1, ..., right to one unit."""
        with decimal.localcontext() as context:
            context.prec = bits // 3 + 30
            count = _CELLS * (math.isqrt(2 * bits) + 4)
            weights = [(decimal.Decimal(-k * k) / (2 * _CELLS**2)).exp() for k in range(count)]
            total = sum(weights)
            return [int(part / total * 2**bits) for part in itertools.accumulate(weights)]


class _GeometricCells(NamedTuple):
    """P(K = k) ~ exp(-k width / scale), k >= 0: cells of so many steps of the discrete Laplace law."""

    width: int
    scale: int

    def bounds(self, bits: int) -> list[int]:
        """Return ``2^bits P(K <= k)`` for k = 0, 1, ..., right to one unit."""
        with decimal.localcontext() as context:
            context.prec = bits // 3 + 30
            ratio = (decimal.Decimal(-self.width) / self.scale).exp()
            powers, power = [], decimal.Decimal(1)
            for _ in range((bits + 8) * 7 * self.scale // (10 * self.width) + 2):  # the rest is below 2^-(bits + 8)
                power *= ratio
                powers.append(power)
            return [int((1 - power) * 2**bits) for power in powers]


_Cells = _NormalCells | _GeometricCells


@functools.lru_cache(maxsize=64)
def _bounds(cells: _Cells, bits: int) -> list[int]:
    return cells.bounds(bits)


@functools.lru_cache(maxsize=64)
def _guide(cells: _Cells, bits: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the bounds, the cell of a number by its first bits (-1: they do not decide), and how many bits follow."""
    bounds, left = np.array(_bounds(cells, bits)), max(0, bits - _GUIDE_BITS)
    first = np.arange(1 << (bits - left)) << left
    low, high = np.searchsorted(bounds, first - 1), np.searchsorted(bounds, first + (1 << left), side="right")
    return bounds, np.where(low == high, low, -1).astype(np.int16), left


def _drawn_cells(cells: _Cells, count: int, noise: Noise, bits: int = _BITS) -> np.ndarray:
    """Draw K, int64 (count,), by inversion of a uniform number.

    The first ``bits`` bits decide, unless they lie next to a bound: then more bits are drawn until they do.
    """
    bounds, guide, left = _guide(cells, bits)
    values = _integers(1 << bits, count, noise)
    found = guide[values >> left].astype(np.int64)
    (unclear,) = np.nonzero(found < 0)
    some = values[unclear]
    found[unclear] = np.searchsorted(bounds, some - 1)  # bounds below values - 1
    for row in unclear[found[unclear] != np.searchsorted(bounds, some + 1, side="right")]:
        value, known, undecided = int(values[row]), bits, True
        while undecided:
            value, known = value << 62 | int(_integers(1 << 62, 1, noise)[0]), known + 62
            longer = _bounds(cells, known)
            found[row] = bisect.bisect_left(longer, value - 1)
            undecided = not found[row] == bisect.bisect_right(longer, value + 1) < len(longer)
    return found


# Discrete Laplace -----------------------------------------------------------------------------------------------------


def discrete_laplace(scale: int, count: int, noise: Noise) -> torch.Tensor:
    """Draw int64 (count,) from P(x) ~ exp(-|x| / scale) on the integers, exactly.

    ``|x| = r + w k`` with w = scale / 64, rounded up: P(k) ~ exp(-k w / scale), and a uniform r of 0 .. w - 1 is kept
    with probability exp(-r / scale). A negative zero is drawn again: zero must not be counted twice.

    Args:
        scale: Whole number of grid steps, 1 .. 2^50.
    """
    if not 1 <= scale <= MAX_SCALE:
        raise ValueError(f"discrete Laplace scale = {scale} grid steps must lie in 1 .. 2^50; choose a coarser grid.")
    cells = _GeometricCells(-(-scale // _CELLS), scale)

    def some(missing: int, source: Noise) -> np.ndarray:
        drawn = missing + missing // 64 + 8  # of a wide scale, 0.992 are kept; of a narrow one, at least 0.68
        place = _integers(cells.width, drawn, source)
        coins = _integers(2 * scale, drawn, source)
        magnitude = place + cells.width * _drawn_cells(cells, drawn, source)
        sign = 1 - 2 * (coins & 1)
        keeps = _fraction_survives(place, scale, coins >> 1, source)
        keeps &= (magnitude > 0) | (sign > 0)
        return (sign * magnitude)[keeps][:missing]

    return torch.from_numpy(_filled(count, noise, some))


def _fraction_survives(numerator: np.ndarray, denominator: int, choice: np.ndarray, noise: Noise) -> np.ndarray:
    """Draw Bernoulli(exp(-gamma)), bool (n,), for gamma = numerator / denominator in [0, 1], exactly.

    For k = 1, 2, ... go on with probability gamma / k: the number of times that it does is even with just that
    probability. ``choice`` is uniform on 0 .. denominator - 1 and decides for k = 1.
    """
    even = np.ones(len(numerator), dtype=bool)
    (active,) = np.nonzero(choice < numerator)
    k = 1
    while len(active):
        even[active] ^= True
        k += 1
        active = active[_integers(denominator * k, len(active), noise) < numerator[active]]
    return even


# Rounded Gaussian -----------------------------------------------------------------------------------------------------


class _Uniforms:
    """Independent uniform numbers in [0, 1), exact: a digit is drawn when a comparison asks for it."""

    def __init__(self, count: int, base: int, noise: Noise) -> None:
        self._count, self._base, self._noise = count, base, noise
        self._digits = [_integers(base, count, noise)]

    def digit(self, place: int) -> np.ndarray:
        while len(self._digits) <= place:  # a digit that was not compared yet is still independent of everything
            self._digits.append(_integers(self._base, self._count, self._noise))
        return self._digits[place]


def _less(left: _Uniforms, right: _Uniforms, rows: np.ndarray) -> np.ndarray:
    """Return ``left < right[rows]``, bool (n,), comparing digits until one pair differs."""
    result = np.zeros(len(rows), dtype=bool)
    tied, place = np.arange(len(rows)), 0
    while len(tied):
        ours, theirs = left.digit(place)[tied], right.digit(place)[rows[tied]]
        result[tied] = ours < theirs
        tied, place = tied[ours == theirs], place + 1
    return result


def _place_survives(x: _Uniforms, cell: np.ndarray, choice: np.ndarray, base: int, noise: Noise) -> np.ndarray:
    """Draw Bernoulli(exp(-gamma)), bool (n,), for gamma = x (2 cell + x) / (2 64^2), exactly; cell < 4,096.

    As `_fraction_survives`. The chance gamma / k is that of two events: a uniform number is below x, and a number of
    0 .. 2 64^2 k - 1 is below 2 cell + x, for which only one equal to 2 cell has to be looked at more closely.
    ``choice``, uniform on 0 .. 2 64^2 - 1, is that number for k = 1.
    """
    even = np.ones(len(cell), dtype=bool)
    (active,) = np.nonzero(choice <= 2 * cell)
    choice, k = choice[active], 1
    while len(active):
        below = choice < 2 * cell[active]
        (asked,) = np.nonzero(~below)
        below[asked] = _less(_Uniforms(len(asked), base, noise), x, active[asked])
        active = active[below]
        active = active[_less(_Uniforms(len(active), base, noise), x, active)]
        even[active] ^= True
        k += 1
        choice = _integers(2 * _CELLS**2 * k, len(active), noise)
        goes_on = choice <= 2 * cell[active]
        active, choice = active[goes_on], choice[goes_on]
    return even


def rounded_gaussian(scale: int, count: int, noise: Noise, own: slice = slice(None)) -> torch.Tensor:
    r"""Draw round(scale * N(0, 1)), exactly: P(x) = Phi((x + 1/2) / scale) - Phi((x - 1/2) / scale).

    ``|N(0, 1)| = (k + x) / 64``, where k is whole with P(k) ~ exp(-(k / 64)^2 / 2), and a uniform x of [0, 1) is kept
    with probability exp(-x (2k + x) / (2 64^2)): the product is the density at (k + x) / 64. No floating point: x is
    compared digit by digit, more digits being drawn while two numbers tie, and its first digit says between which
    multiples of 1 / (2 scale) it lies, hence where the product with scale rounds. A tie of the rounding has
    probability 0.

    Args:
        scale: Standard deviation before rounding, a whole number of grid steps, 1 .. 2^50.
        own: Which blocks of `BLOCK` numbers to draw; the source is behind all of them then.

    Returns:
        int64 (count,) on the CPU, or the numbers of those blocks.
    """
    if not 1 <= scale <= MAX_SCALE:
        raise ValueError(f"Gaussian scale = {scale} grid steps must lie in 1 .. 2^50; choose a coarser grid.")
    return torch.from_numpy(_rounded_gaussian(scale, count, noise, 60 - scale.bit_length(), own))


def _rounded_gaussian(scale: int, count: int, noise: Noise, spare_bits: int, own: slice = slice(None)) -> np.ndarray:
    """See `rounded_gaussian`; a digit has base ``2 scale 2^spare_bits`` (few spare bits make ties frequent)."""
    base = 2 * scale << spare_bits

    def some(missing: int, source: Noise) -> np.ndarray:
        drawn = missing + missing // 100 + 8  # 0.994 of them are kept
        cell, x = _drawn_cells(_NormalCells(), drawn, source), _Uniforms(drawn, base, source)
        coins = _integers(4 * _CELLS**2, drawn, source)
        keeps = _place_survives(x, cell, coins >> 1, base, source)
        # scale (k + x) / 64 = (2 scale k + 2 scale x) / 128, to the nearest whole number.
        magnitude = (x.digit(0) >> spare_bits) + 2 * scale * cell
        magnitude = (magnitude + _CELLS) >> _TWO_CELLS_BITS
        return ((1 - 2 * (coins & 1)) * magnitude)[keeps][:missing]

    return _filled(count, noise, some, own)
