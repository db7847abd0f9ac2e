r"""The composition of privacy loss distributions by Fourier transforms, with a stated error.

Losses of independent reads add, so their laws convolve. Added to delta is a bound on everything that floating-point
arithmetic may have rounded down (u = 2^-53; k reads):

1. *Construction*: a curve that is off by c per read is off by k c after k (composition mixes shifted copies of it).
   Where it is off by a share r of the mass of larger loss, it is off by no more than the curve of a share ``r / (1 -
   e^-a)`` of its masses, moved up by any a > 0. With a = log(1 + 1/t), rounded up to the grid (order: t times the
   interval), and Chernoff's bound of order t on delta at epsilon, ``M^k e^(-t epsilon)`` (M: the moment generating
   function), k reads are off by at most ``expm1(k r (1 + t) (1 + 1/t)^t e^order)`` times that bound: a share of delta,
   about, however small delta is. The lesser of both counts.
2. *Fourier transform*, n = 2^m points: each coefficient of a law passes m levels of butterflies, so it is off by at
   most ``7 m u`` times its mass (Higham 2002, section 24.1: twiddles u, complex product sqrt(5) u, complex sum u per
   level). The k-th power f^k by repeated squaring is then off by at most ``k c (|f| + c)^(k-1)``, c = (7m + 5) u; the
   inverse transform adds ``7 m u`` times the norm of its argument. By Parseval and Cauchy-Schwarz the sum of all errors
   of the masses is at most the 2-norm of the spectrum's error, about ``7 k u log2(n) sqrt(n) ||P^(k-1)||_2``; it is
   computed from the spectrum itself.
3. *Wrap-around*: the transform is periodic. By Chernoff's bound at most `_OUTSIDE` of the mass lies outside the window;
   that mass is counted into the error of the transform.

**Tilted.** The error of the plain transform, 1e-13 per read, would swamp a small delta. So masses are tilted before it,
``masses * e^(t loss) / M``, and tilted back after it (Wilson and Keich 2016): the error in delta at epsilon is then
``M^k e^(-t epsilon)`` times the above. With Chernoff's best t for this delta that is a tiny share of delta where the
sum is near to normal. Tilting is off by ``(t L + 4) u`` relative per read, L the largest loss; the masses are raised by
that.

**Split.** Where a read rarely has a large loss (little noise, a small sampling rate), Chernoff's bound lies far above
delta, and the tilt is useless. Then the losses of a read are cut in two: usual ones below the cut, and rare ones of
total mass b. The sums of usual losses alone are near to normal, and tilted. All other sums have a mass of at most k b
and are transformed plainly; their error is as small as their mass, which the choice of the cut makes a negligible share
of delta. A few reads need no tilt at all: then all losses count as rare.

**Less tilted.** Where both errors exceed 1 % of delta, as for epsilon close to 0, the tilt for the root of delta and no
tilt at all are tried too. Each result is a bound by itself, and the least epsilon counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import logsumexp

from idpgan.privacy.losses import MOST_POINTS, ROUND_OFF, Losses, Pair

MOST_READS = 1 << 44  # of more reads rounding is no longer a small share of the result
_OUTSIDE = 1e-18
_TRIFLE = 1e-4  # share of delta: a smaller error is ignored
_MUCH = 1e-2  # share of delta: for a larger error other tilts are tried
_PLAIN_ERROR = 2e-11  # of a plain transform, per read: at most about ``7 u log2(n) sqrt(n)``

_Part = tuple[Losses, int]  # of one direction, count


def compose(parts: Sequence[tuple[Pair, int]], delta: float) -> tuple[float, Pair] | None:
    """Compose independent reads, each pair so many times; return epsilon at ``delta`` in (0, 1), and both curves.

    All pairs share one grid. The curves are most exact near that epsilon. None where the result needs more than
    `MOST_POINTS`.
    """
    forward = _compose([(pair[0], count) for pair, count in parts], delta)
    if forward is None or all(pair[0] is pair[1] for pair, _ in parts):
        return None if forward is None else (forward[0], (forward[1], forward[1]))
    back = [(pair[1], count) for pair, count in parts]
    backward = _compose(back, delta, enough=forward[0])
    if backward is None:
        return None
    epsilon = backward[0]
    if 2 * math.fsum(count * part.beyond for part, count in back) <= delta:
        # No sum of losses lies above the sum of all the largest.
        largest = sum(count * (part.first + len(part.masses) - 1) for part, count in back)
        epsilon = min(epsilon, max(largest, 0) * back[0][0].interval)
    return max(forward[0], epsilon), (forward[1], backward[1])


def _compose(parts: list[_Part], delta: float, enough: float = 0.0) -> tuple[float, Losses] | None:
    """Compose one direction, and return its epsilon too; nothing better is sought at epsilon <= ``enough``."""
    best: tuple[float, Losses] | None = None
    if len(parts) == 1 and parts[0][1] == 1:
        best = parts[0][0].epsilon(delta), parts[0][0]
        if best[1].error <= _TRIFLE * delta:
            return best
    for way, tilted_for, good in (
        (_tilted, delta, _TRIFLE),
        (_split, delta, _MUCH),
        (_tilted, math.sqrt(delta), _MUCH),
        (_tilted, 1.0, _MUCH),
    ):
        found = way(parts, tilted_for)
        if found is not None:
            epsilon = found.epsilon(delta)
            best = (epsilon, found) if best is None or epsilon < best[0] else best
            if best[0] <= enough or best[1].error_at(best[0]) <= good * delta:
                break
        if way is _split and best is None:
            break  # a coarser grid gives a better bound than this grid without a tilt
    return best


def _tilted(parts: list[_Part], delta: float) -> Losses | None:
    """Compose one direction with Chernoff's tilt for ``delta``; plainly at delta = 1."""
    interval, order = parts[0][0].interval, _chernoff(parts, 1, delta)[1] if delta < 1 else 0.0
    tilted, log_total, relative = [], 0.0, 0.0
    for part, count in parts:
        exponents = order * np.arange(part.first, part.first + len(part.masses))
        log_mass = float(logsumexp(exponents, b=part.masses))
        tilted.append((dataclasses.replace(part, masses=part.masses * np.exp(exponents - log_mass)), count))
        log_total += count * log_mass
        relative += count * ((4 + 2 * float(np.max(np.abs(exponents)))) * ROUND_OFF + part.share)
    window = _Window.of(tilted, _OUTSIDE)
    if window is None:
        return None
    masses, wrong = _convolve(tilted, window)
    exponents = log_total - order * np.arange(window.low, window.high + 1)
    relative += (abs(log_total) + order * max(abs(window.low), abs(window.high) + 1)) * 2 * ROUND_OFF
    masses = np.minimum(masses * np.exp(np.minimum(exponents + relative, 700.0)), 1.0)
    log_total += relative
    if not (math.isfinite(order) and math.isfinite(log_total) and bool(np.isfinite(masses).all())):
        return None  # NaN is not a bound
    tilt, share = order / interval, math.fsum(count * part.share for part, count in parts)
    if tilt > 0:
        share = math.expm1(min(share * (1 + tilt) * (1 + 1 / tilt) ** tilt * math.exp(min(order, 700.0)), 700.0))
    return Losses(
        interval,
        window.low,
        masses,
        beyond=math.fsum(count * part.beyond for part, count in parts) * math.exp(relative),
        error=math.fsum(count * part.error for part, count in parts) * math.exp(relative),
        tilt=tilt,
        log_error=log_total + math.log(share),
        log_wrong=log_total + math.log(wrong),
    )


def _split(parts: list[_Part], delta: float) -> Losses | None:
    """Compose one direction in two: the sums of usual losses tilted, and plainly those with a rare one."""
    rare = _TRIFLE * delta / (_PLAIN_ERROR * sum(count for _, count in parts))
    if rare >= 1:
        return _tilted(parts, 1.0)
    cuts = [int(np.count_nonzero(np.cumsum(p.masses[::-1]) * n > rare / len(parts))) for p, n in parts]
    usual = [(dataclasses.replace(p, masses=p.masses[:cut]), n) for (p, n), cut in zip(parts, cuts, strict=True)]
    often, window = _tilted(usual, delta), _Window.of(parts, _OUTSIDE)
    if often is None or window is None:
        return None
    masses, wrong = _convolve_rare(parts, cuts, window)
    low, high = min(window.low, often.first), max(window.high + 1, often.first + len(often.masses))
    total = np.zeros(high - low)
    total[often.first - low :][: len(often.masses)] = often.masses
    total[window.low - low :][: len(masses)] += masses * math.exp(sum(count * part.share for part, count in parts))
    return dataclasses.replace(often, first=low, masses=total, beyond=often.beyond + wrong, log_error=math.inf)


# Transforms ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Window:
    """Where nearly all of a sum of losses lies, in intervals, and the size of its transform."""

    bottom: int  # the least sum
    low: int
    high: int
    levels: int
    points: int  # 2^levels

    @classmethod
    def of(cls, parts: list[_Part], outside: float) -> _Window | None:
        """Return the window outside of which the sum lies with at most twice the chance; None if it is too large."""
        bottom = sum(count * part.first for part, count in parts)
        top = sum(count * (part.first + len(part.masses) - 1) for part, count in parts)
        low, high = max(bottom, -_chernoff(parts, -1, outside)[0]), min(top, _chernoff(parts, 1, outside)[0])
        size = max(high - low + 1, *(len(part.masses) for part, _ in parts))
        levels = max((size - 1).bit_length(), 1)
        return cls(bottom, low, high, levels, 1 << levels) if 1 << levels <= MOST_POINTS else None

    def back(self, spectrum: np.ndarray, wrong: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the masses of a spectrum, and a bound on the sum of their errors from that of each coefficient."""
        weights = np.full(self.points // 2 + 1, 2.0)  # the other half of the spectrum is the conjugate
        weights[0] = weights[-1] = 1.0
        total = math.sqrt(np.sum(weights * wrong**2))
        total += 7 * self.levels * ROUND_OFF * math.sqrt(np.sum(weights * np.abs(spectrum) ** 2))
        masses = np.roll(np.fft.irfft(spectrum, self.points), -((self.low - self.bottom) % self.points))
        return np.maximum(masses[: self.high - self.low + 1], 0.0), total + 2 * _OUTSIDE


def _convolve(parts: list[_Part], window: _Window) -> tuple[np.ndarray, float]:
    """Return the masses of the sum of independent losses within the window, and a bound on the sum of their errors."""
    coefficient_error = (7 * window.levels + 5) * ROUND_OFF  # and of one factor of its power
    spectrum = np.ones(window.points // 2 + 1, dtype=complex)
    log_bound, relative = np.zeros(len(spectrum)), np.zeros(len(spectrum))
    for part, count in parts:
        transform = np.fft.rfft(part.masses, window.points)
        spectrum *= _power(transform, count, np.multiply)
        magnitude_bound = np.abs(transform) + coefficient_error
        log_bound += count * np.log(magnitude_bound)
        relative += count * coefficient_error / magnitude_bound
    return window.back(spectrum, relative * np.exp(log_bound))


def _convolve_rare(parts: list[_Part], cuts: list[int], window: _Window) -> tuple[np.ndarray, float]:
    """Return the same for the sums in which at least one loss is rare: its index into the masses is at least the cut.

    With spectra a of the usual and b of the rare losses that is ``(a + b)^k - a^k``, kept beside ``a^k`` through all
    products, so that nothing cancels. Its derivatives by a and b bound the error: these are products of k - 1 factors
    again, where one factor is rare or the error itself is that of a rare factor.
    """

    def times(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.stack([one[0] * other[0], one[0] * other[1] + one[1] * (other[0] + other[1])])

    coefficient_error = (7 * window.levels + 15) * ROUND_OFF
    spectrum = np.stack([np.ones(window.points // 2 + 1, dtype=complex), np.zeros(window.points // 2 + 1)])
    log_bound, relative, rare = (np.zeros(window.points // 2 + 1) for _ in range(3))
    for (part, count), cut in zip(parts, cuts, strict=True):
        beyond = np.where(np.arange(len(part.masses)) >= cut, part.masses, 0.0)
        pair = np.stack([np.fft.rfft(part.masses - beyond, window.points), np.fft.rfft(beyond, window.points)])
        spectrum = times(spectrum, _power(pair, count, times))
        magnitude_bound = np.sum(np.abs(pair), axis=0) + coefficient_error
        log_bound += count * np.log(magnitude_bound)
        relative += count * coefficient_error / magnitude_bound
        rare += count * float(np.sum(beyond)) / magnitude_bound
    return window.back(spectrum[1], 2 * rare * relative * np.exp(log_bound))


def _power(values: np.ndarray, exponent: int, times: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return ``values ** exponent`` by repeated squaring: its roundings are as many as its factors."""
    result = None
    while exponent > 1:
        if exponent & 1:
            result = values if result is None else times(result, values)
        exponent >>= 1
        values = times(values, values)
    return values if result is None else times(result, values)


def _chernoff(parts: list[_Part], sign: int, chance: float) -> tuple[int, float]:
    """Return b such that ``sign * loss`` of the sum exceeds b with at most ``chance``, and the order (per interval).

    The bound falls and then rises with the order; orders are tried by factors of two.
    """
    variance, centered = 0.0, []
    for part, count in parts:
        places, total = np.arange(len(part.masses)), np.sum(part.masses)
        mean = float(np.sum(places * part.masses) / total)
        variance += count * float(np.sum((places - mean) ** 2 * part.masses) / total)
        centered.append((part.masses, count, sign * (mean + part.first), sign * (places - mean)))

    def bound(order: float, factors: list[np.ndarray]) -> float:
        total = -math.log(chance)
        for (masses, count, mean, _), factor in zip(centered, factors, strict=True):
            total += count * (math.log(float(np.sum(masses * factor))) + order * mean)
        return total / order

    normal = math.sqrt(-2 * math.log(chance) / max(variance, 1e-300))  # the best order of a normal law
    most = min(4 * normal, 600 / max(len(part.masses) for part, _ in parts))  # nothing that matters underflows
    order = min(normal / 8, most)
    factors = [np.exp(order * places) for *_, places in centered]
    best, start = bound(order, factors), order
    for step, change in ((2.0, np.square), (0.5, np.sqrt)):
        tried, changed = start, [factor.copy() for factor in factors]
        while order == tried and 1e-300 < step * tried <= most:
            tried, changed = step * tried, [change(factor, out=factor) for factor in changed]
            if (found := bound(tried, changed)) < best:
                best, order = found, tried
    if not math.isfinite(best):  # no order gave a bound: nothing is cut off
        return 1 << 62, order
    return math.ceil(best * (1 + 1e-9)) + 1, order
