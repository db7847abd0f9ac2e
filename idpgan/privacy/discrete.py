r"""Exact samplers of discrete noise: integers only, no floating point between the random bits and the answer.

Discrete Laplace noise: Canonne, Kamath, Steinke 2020, Algorithms 1 and 2. Rounded Gaussian noise: Karney 2016. Both
batched: every loop below runs over *rounds*, in each of which the not yet finished entries of the whole batch are drawn
at once. Scales are whole numbers of grid steps, which keeps every fraction exact in 64 bits.
"""

from __future__ import annotations

import bisect
import decimal
import functools
import math

import numpy as np
import torch

from idpgan.privacy.noise import Noise

MAX_LAPLACE_SCALE = 1 << 50
MAX_GAUSSIAN_SCALE = 1 << 50
_BATCH = 1 << 17  # fits the cache


def _integers(below: int, count: int, noise: Noise) -> np.ndarray:
    return noise.integers(below, (count,)).numpy()


def _bernoulli_exp_fraction(numerator: np.ndarray, denominator: int, noise: Noise) -> np.ndarray:
    """Return Bernoulli(exp(-numerator / denominator)), 0 <= numerator <= denominator, (n,) bool. Algorithm 1."""
    result = np.zeros(len(numerator), dtype=bool)
    active = np.arange(len(numerator))
    k = 0
    while len(active):  # k = 1, 2, ...: go on with probability gamma / k; the parity of the last k is the answer
        k += 1
        goes_on = _integers(denominator * k, len(active), noise) < numerator[active]
        result[active[~goes_on]] = k % 2 == 1
        active = active[goes_on]
    return result


def bernoulli_exp(numerator: np.ndarray, denominator: int, noise: Noise) -> np.ndarray:
    """Draw Bernoulli(exp(-gamma)), bool (n,), for gamma = numerator / denominator >= 0, exactly. Algorithm 1.

    Args:
        numerator: int64 (n,), >= 0.
        denominator: Whole number >= 1; the product with about 40 must stay below 2^62.
    """
    result = _bernoulli_exp_fraction(numerator % denominator, denominator, noise)
    whole = numerator // denominator  # exp(-gamma) = exp(-1)^whole * exp(-fraction)
    (active,) = np.nonzero(result & (whole > 0))
    while len(active):
        survives = _bernoulli_exp_fraction(np.ones(len(active), dtype=np.int64), 1, noise)
        result[active[~survives]] = False
        whole[active] -= 1
        active = active[survives & (whole[active] > 0)]
    return result


def _geometric(count: int, noise: Noise) -> np.ndarray:
    """Return the number of successes of Bernoulli(exp(-1)) before the first failure, int64 (count,)."""
    result = np.zeros(count, dtype=np.int64)
    active = np.arange(count)
    while len(active):
        active = active[_bernoulli_exp_fraction(np.ones(len(active), dtype=np.int64), 1, noise)]
        result[active] += 1
    return result


def discrete_laplace(scale: int, count: int, noise: Noise) -> torch.Tensor:
    """Draw int64 (count,) from P(x) ~ exp(-|x| / scale) on the integers, exactly. Algorithm 2.

    Args:
        scale: Whole number of grid steps, 1 .. 2^50.
    """
    if not 1 <= scale <= MAX_LAPLACE_SCALE:
        raise ValueError(f"discrete Laplace scale = {scale} grid steps must lie in 1 .. 2^50; choose a coarser grid.")
    return torch.from_numpy(_discrete_laplace(scale, count, noise))


def _discrete_laplace(scale: int, count: int, noise: Noise) -> np.ndarray:
    result = np.empty(count, dtype=np.int64)
    pending = np.arange(count)
    while len(pending):
        remainder = _integers(scale, len(pending), noise)
        (kept,) = np.nonzero(_bernoulli_exp_fraction(remainder, scale, noise))
        magnitude = remainder[kept] + scale * _geometric(len(kept), noise)
        negative = _integers(2, len(kept), noise).astype(bool)
        accepted = ~(negative & (magnitude == 0))  # zero must not be counted twice
        result[pending[kept[accepted]]] = np.where(negative, -magnitude, magnitude)[accepted]
        pending = np.delete(pending, kept[accepted])
    return result


class _Uniforms:
    """Independent uniform numbers in [0, 1), exact: a digit is drawn when a comparison asks for it."""

    def __init__(self, count: int, base: int, noise: Noise) -> None:
        self._count, self._base, self._noise = count, base, noise
        self._digits = [_integers(base, count, noise)]

    def digit(self, place: int) -> np.ndarray:
        while len(self._digits) <= place:  # a digit that nobody has looked at is still independent of everything
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


def _step_survives(x: _Uniforms, rows: np.ndarray, whole: np.ndarray, base: int, noise: Noise) -> np.ndarray:
    """Draw Bernoulli(exp(-x (2k + x) / (2k + 2))) for x[rows], k = ``whole``, bool (n,). Karney 2016, Algorithm B.

    Von Neumann's trick: a run of falling uniform numbers x > z_1 > z_2 > ... that goes on with probability
    (2k + x) / (2k + 2) each time has even length with just that probability.
    """
    even = np.ones(len(rows), dtype=bool)
    active, above, above_rows = np.arange(len(rows)), x, rows
    while len(active):
        among = 2 * whole[active]
        common = math.lcm(*range(2, int(among.max()) + 3, 2))  # of the different among + 2
        choice = _integers(common, len(active), noise) % (among + 2)
        goes_on = choice < among
        (asked,) = np.nonzero(choice == among)
        goes_on[asked] = _less(_Uniforms(len(asked), base, noise), x, rows[active[asked]])
        active, above_rows = active[goes_on], above_rows[goes_on]
        following = _Uniforms(len(active), base, noise)
        (falls,) = np.nonzero(_less(following, above, above_rows))
        active, above, above_rows = active[falls], following, falls
        even[active] ^= True
    return even


@functools.lru_cache(maxsize=8)
def _whole_bounds(bits: int) -> list[int]:
    """Return ``2^bits P(K <= k)`` for k = 0, 1, ..., right to one unit; P(K = k) ~ exp(-k^2 / 2)."""
    with decimal.localcontext() as context:
        context.prec = bits // 3 + 30
        weights = [(decimal.Decimal(-k * k) / 2).exp() for k in range(math.isqrt(2 * bits) + 4)]
        total = sum(weights)
        return [int(sum(weights[: k + 1]) / total * 2**bits) for k in range(len(weights))]


def _normal_wholes(count: int, noise: Noise, bits: int = 62) -> np.ndarray:
    """Draw K with P(K = k) ~ exp(-k^2 / 2), k >= 0, int64 (count,): inversion of a uniform number.

    The first ``bits`` bits decide, unless they lie next to a bound: then more bits are drawn until they do.
    """
    values, bounds = _integers(1 << bits, count, noise), np.array(_whole_bounds(bits))
    whole = np.searchsorted(bounds, values - 1)  # bounds below values - 1
    (unclear,) = np.nonzero(whole != np.searchsorted(bounds, values + 1, side="right"))
    for row in unclear:
        whole[row] = _decide(int(values[row]), bits, noise)
    return whole


def _decide(value: int, bits: int, noise: Noise) -> int:
    """Return K of a uniform number whose first bits ``value`` lie next to a bound; draws more bits."""
    while True:
        value, bits = value << 62 | int(_integers(1 << 62, 1, noise)[0]), bits + 62
        bounds = _whole_bounds(bits)
        whole = bisect.bisect_left(bounds, value - 1)
        if whole < len(bounds) and whole == bisect.bisect_right(bounds, value + 1):
            return whole


def rounded_gaussian(scale: int, count: int, noise: Noise) -> torch.Tensor:
    r"""Draw round(scale * N(0, 1)), exactly: P(x) = Phi((x + 1/2) / scale) - Phi((x - 1/2) / scale).

    Karney 2016, "Sampling exactly from the normal distribution", Algorithm N: |N(0, 1)| = k + x, where k is whole with
    P(k) ~ exp(-k^2/2) (here by inversion, exact too), and a uniform x is kept with probability exp(-x (2k + x) / 2).
    No floating point: x is compared digit by digit, more digits being drawn while two numbers tie, and its first digit
    says in which half step of the grid it lies, hence where it rounds. A tie of the rounding has probability 0.

    Args:
        scale: Standard deviation before rounding, a whole number of grid steps, 1 .. 2^50.

    Returns:
        int64 (count,) on the CPU.
    """
    if not 1 <= scale <= MAX_GAUSSIAN_SCALE:
        raise ValueError(f"Gaussian scale = {scale} grid steps must lie in 1 .. 2^50; choose a coarser grid.")
    return torch.from_numpy(_rounded_gaussian(scale, count, noise, 60 - scale.bit_length()))


def _rounded_gaussian(scale: int, count: int, noise: Noise, spare_bits: int) -> np.ndarray:
    """See `rounded_gaussian`; a digit has base ``2 scale 2^spare_bits`` (few spare bits make ties frequent)."""
    base = 2 * scale << spare_bits
    result = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        missing = min(count - done, _BATCH)
        whole = _normal_wholes(7 * missing // 5 + 8, noise)  # 1.253 / 1.753 of them survive
        x, kept = _Uniforms(len(whole), base, noise), np.arange(len(whole))
        survived = 0  # exp(-x (2k + x) / 2) is k + 1 coins
        while survived <= (whole[kept].max() if len(kept) else -1):
            tossed = whole[kept] >= survived
            stays = ~tossed
            stays[tossed] = _step_survives(x, kept[tossed], whole[kept[tossed]], base, noise)
            kept, survived = kept[stays], survived + 1
        kept = kept[:missing]
        half_steps = x.digit(0)[kept] >> spare_bits  # 0 .. 2 scale - 1
        magnitude = scale * whole[kept] + (half_steps + 1) // 2  # to the nearest step
        negative = _integers(2, len(kept), noise).astype(bool)
        result[done : done + len(kept)] = np.where(negative, -magnitude, magnitude)
        done += len(kept)
    return result
