r"""Privacy loss distributions: how one read tells neighbors apart, and the composition of many, with a stated error.

A *privacy loss distribution* is the law of ``log P(y) / Q(y)``, y drawn from P, for the pair (P, Q) that dominates a
mechanism. Its curve ``delta(eps) = E[(1 - e^(eps - loss))_+]`` is all that composition needs (Sommer, Meiser, Mohammadi
2019). Here every law is replaced by a discrete one on the grid ``interval * integer`` whose curve lies above the true
one: the mass of each bucket goes to its two ends such that both its P-mass and its Q-mass stay ("connect the dots",
Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022). The same dots, read from Q, serve the opposite direction.

**Error.** What rounds up needs no excuse; what floating-point arithmetic may round *down* is bounded and added to
delta. u = 2^-53. None of the terms is fitted:

1. *Construction*, per PMF: ``(32 + 8 L) u``, L its largest finite loss. The bucket masses are differences of
   distribution functions, so along the curve their errors telescope: at each grid point it is off by the errors of one
   P-mass and e^l times one Q-mass. scipy's ``ndtr`` at x is off by about ``(4 + x^2) u`` relative (rounding of x in
   ``exp(-x^2/2)``), and where the P-mass is not small x^2 <= 2 mu^2 <= 4 L; mixing, splitting (off by u of the bucket's
   mass) and e^-l (off by L u) make up the rest. Composition mixes shifted copies of a curve, so k compositions of PMFs
   that are off by c each are off by at most k c: the error adds, it does not multiply.
2. *Fourier transform*, n = 2^m points: each coefficient of a PMF passes m levels of butterflies, so it is off by at
   most ``7 m u`` times the PMF's mass (Higham 2002, section 24.1: twiddles u, complex product sqrt(5) u, complex sum u
   per level). The k-th power f^k by repeated squaring is then off by at most ``k c (|f| + c)^(k-1)``, c = (7m + 5) u;
   the inverse transform adds ``7 m u`` times the norm of its argument. By Parseval and Cauchy-Schwarz the sum of all
   errors of the masses is at most the 2-norm of the spectrum's error, about ``7 k u log2(n) sqrt(n) ||P^(k-1)||_2``; it
   is computed from the spectrum itself.
   Taken as it is, 1e-13 per read, this would drown a small delta. So masses are tilted before the transform, ``masses *
   e^(t loss) / M``, and back after it (Wilson and Keich 2016): the error in delta at epsilon is then ``M^k
   e^(-t epsilon)`` times the above, Chernoff's bound on delta itself. With Chernoff's best t it is a tiny *share* of
   delta, however small. Tilting is off by ``(t L + 4) u`` relative per read; the masses are raised by that.
3. *Wrap-around*: the transform is periodic. Outside the window lies at most `_OUTSIDE` of the tilted mass, by
   Chernoff's bound with its own moment generating function; it is counted into the error of the transform.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, ndtr

from idpgan.privacy.event import Event

LARGEST_LOSS = 500.0  # of one read: e^loss and its inverse stay within float64
MOST_POINTS = 1 << 20
_ROUND_OFF = 2.0**-53
LEAST_ERROR = 32 * _ROUND_OFF  # of one read
_FINEST_INTERVAL = 2.0**-40
_WIDEST_INTERVAL = 1e-4
_PER_DEVIATION = (
    20  # grid points per standard deviation of one read's loss: connecting dots adds < 1/2400 of its square
)
_REACH = 9.2  # a normal exceeds it with probability 1.8e-20, counted as infinite loss
_OUTSIDE = 1e-18


@dataclass(frozen=True)
class Losses:
    """A privacy loss distribution on a grid, with a curve above the true one but for what is stated.

    Attributes:
        interval: Distance of grid points, a power of two.
        first: Loss of ``masses[0]`` in intervals.
        masses: P-masses, float64 (n,), >= 0.
        beyond: Bound on the mass of infinite loss.
        error: Bound on what rounding may have taken from delta, at every epsilon.
        tilt: Rate t at which the error of the transform falls with epsilon, >= 0.
        log_wrong: Log of a bound w on that error at epsilon = 0; at epsilon it is ``w e^(-t epsilon)``.
    """

    interval: float
    first: int
    masses: np.ndarray
    beyond: float
    error: float
    tilt: float = 0.0
    log_wrong: float = -math.inf

    @property
    def grid(self) -> np.ndarray:
        """Losses of the masses, (n,)."""
        return self.interval * np.arange(self.first, self.first + len(self.masses))

    def error_at(self, epsilon: float) -> float:
        """Return the bound on all that rounding may have taken from delta at ``epsilon``."""
        wrong = math.exp(min(self.log_wrong - self.tilt * epsilon, 0.0)) if self.log_wrong > -math.inf else 0.0
        return self.error + wrong

    def delta(self, epsilon: float) -> float:
        """Return a delta such that the pair is (epsilon, delta)-indistinguishable in this direction."""
        start = max(math.floor(epsilon / self.interval) + 1 - self.first, 0)
        above = self.interval * np.arange(self.first + start, self.first + len(self.masses))
        visible = float(np.sum(self.masses[start:] * -np.expm1(epsilon - above)))
        return min(visible + self.beyond + self.error_at(epsilon), 1.0)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0 with ``delta(epsilon) <= delta``; infinite where the error is larger."""
        low, high = 0, max(self.first + len(self.masses), 1)
        if self.delta(high * self.interval) > delta:
            return math.inf
        if self.delta(0.0) <= delta:
            return 0.0
        guess = self._first_below(delta)
        for place in (guess - 2, guess + 2):
            if low < place < high:
                low, high = (place, high) if self.delta(place * self.interval) > delta else (low, place)
        while high - low > 1:  # delta(low) > delta >= delta(high)
            middle = (low + high) // 2
            low, high = (middle, high) if self.delta(middle * self.interval) > delta else (low, middle)
        # Between grid points the curve is A - B e^epsilon, plus a convex error: below the same through both ends.
        left, right = self.delta(low * self.interval), self.delta(high * self.interval)
        return self.interval * low + math.log1p(math.expm1(self.interval) * (left - delta) / (left - right))

    def _first_below(self, delta: float) -> int:
        """Return about where the curve falls to ``delta``, in intervals: vectorized over the grid, less exact."""
        place = self.interval * np.arange(len(self.masses))
        above = np.cumsum(self.masses[::-1])[::-1]
        lower = np.cumsum((self.masses * np.exp(-place))[::-1])[::-1]
        with np.errstate(over="ignore", invalid="ignore"):
            return self.first + int(np.count_nonzero(above - np.exp(place) * lower > delta))


Pair = tuple[Losses, Losses]  # both directions: record against none, and none against record
_Masses = tuple[int, np.ndarray, int]  # first loss in intervals, masses, count


def compose(parts: Sequence[tuple[Pair, int]], delta: float) -> Pair | None:
    """Compose independent reads, each pair so many times; None where the result needs more than `MOST_POINTS`.

    All pairs share one grid. The result is most exact at the epsilon of this ``delta``, which lies in (0, 1).
    """
    forward = _compose([(pair[0], count) for pair, count in parts], delta)
    if all(pair[0] is pair[1] for pair, _ in parts):
        return None if forward is None else (forward, forward)
    backward = _compose([(pair[1], count) for pair, count in parts], delta)
    return None if forward is None or backward is None else (forward, backward)


def _compose(parts: list[tuple[Losses, int]], delta: float) -> Losses | None:
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    interval = parts[0][0].interval
    _, order = _chernoff([(part.first, part.masses, count) for part, count in parts], 1, delta)
    tilted, log_total, relative = [], 0.0, 0.0
    for part, count in parts:
        exponents = order * np.arange(part.first, part.first + len(part.masses))
        log_mass = float(logsumexp(exponents, b=part.masses))
        tilted.append((part.first, part.masses * np.exp(exponents - log_mass), count))
        log_total += count * log_mass
        relative += count * (4 + 2 * float(np.max(np.abs(exponents)))) * _ROUND_OFF
    convolved = _convolve(tilted)
    if convolved is None:
        return None
    first, masses, wrong = convolved
    exponents = log_total - order * np.arange(first, first + len(masses))
    relative += (abs(log_total) + order * max(abs(first), abs(first + len(masses)))) * 2 * _ROUND_OFF
    masses = np.minimum(np.maximum(masses, 0.0) * np.exp(np.minimum(exponents + relative, 700.0)), 1.0)
    log_wrong = log_total + relative + math.log(wrong)
    if not (math.isfinite(order) and math.isfinite(log_wrong) and bool(np.isfinite(masses).all())):
        return None  # a bound that is no number bounds nothing
    return Losses(
        interval,
        first,
        masses,
        beyond=math.fsum(count * part.beyond for part, count in parts),
        error=math.fsum(count * part.error for part, count in parts) + 128 * _ROUND_OFF,
        tilt=order / interval,
        log_wrong=log_wrong,
    )


def _convolve(parts: list[_Masses]) -> tuple[int, np.ndarray, float] | None:
    """Return first loss and masses of the sum of independent losses, and a bound on the sum of their errors."""
    bottom = sum(count * first for first, _, count in parts)
    top = sum(count * (first + len(masses) - 1) for first, masses, count in parts)
    low, high = max(bottom, -_chernoff(parts, -1, _OUTSIDE)[0]), min(top, _chernoff(parts, 1, _OUTSIDE)[0])
    size = max(high - low + 1, *(len(masses) for _, masses, _ in parts))
    levels = max((size - 1).bit_length(), 1)
    points = 1 << levels
    if points > MOST_POINTS:
        return None
    each = (7 * levels + 5) * _ROUND_OFF  # of one coefficient, and of one factor of its power
    spectrum, log_bound = np.ones(points // 2 + 1, dtype=complex), np.zeros(points // 2 + 1)
    relative = np.zeros(points // 2 + 1)
    for _, masses, count in parts:
        transform = np.fft.rfft(masses, points)
        spectrum *= _power(transform, count)
        upper = np.abs(transform) + each
        log_bound += count * np.log(upper)
        relative += count * each / upper
    weights = np.full(points // 2 + 1, 2.0)  # the other half of the spectrum is the conjugate
    weights[0] = weights[-1] = 1.0
    wrong = math.sqrt(np.sum(weights * (relative * np.exp(log_bound)) ** 2))
    wrong += 7 * levels * _ROUND_OFF * math.sqrt(np.sum(weights * np.abs(spectrum) ** 2))
    masses = np.roll(np.fft.irfft(spectrum, points), -((low - bottom) % points))[: high - low + 1]
    return low, masses, wrong + 2 * _OUTSIDE


def _power(values: np.ndarray, exponent: int) -> np.ndarray:
    """Return ``values ** exponent`` by repeated squaring: relative error below ``5 * exponent * u``."""
    result = np.ones_like(values)
    while exponent:
        if exponent & 1:
            result = result * values
        exponent >>= 1
        if exponent:
            values = values * values
    return result


def _chernoff(parts: list[_Masses], sign: int, chance: float) -> tuple[int, float]:
    """Return b such that ``sign * loss`` of the sum exceeds b with at most ``chance``, and the order (per interval)."""
    variance, centered = 0.0, []
    for first, masses, count in parts:
        places, total = np.arange(len(masses)), np.sum(masses)
        mean = float(np.sum(places * masses) / total)
        variance += count * float(np.sum((places - mean) ** 2 * masses) / total)
        centered.append((sign * (places - mean), sign * (mean + first)))
    most = 600 / max(len(masses) for _, masses, _ in parts)  # nothing that matters underflows
    tried = min(math.sqrt(-2 * math.log(chance) / max(variance, 1e-300)) / 64, most)
    factors = [np.exp(tried * places) for places, _ in centered]
    best, order = math.inf, tried
    for _ in range(9):
        bound = -math.log(chance)
        for (_, masses, count), factor, (_, mean) in zip(parts, factors, centered, strict=True):
            bound += count * (math.log(float(np.sum(masses * factor))) + tried * mean)
        if bound / tried < best:
            best, order = bound / tried, tried
        if 2 * tried > most:
            break
        tried *= 2
        for factor in factors:
            np.square(factor, out=factor)
    if not math.isfinite(best):  # no order gave a bound: nothing is cut off
        return 1 << 62, order
    return math.ceil(best * (1 + 1e-9)) + 1, order


# One read ------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def deviation(event: Event) -> float:
    """Return about the standard deviation of one read's loss, to choose the grid by."""
    if event.noise_multiplier is None or event.pure < math.inf:
        return event.pure
    mu = 1 / event.noise_multiplier
    if event.sample_rate is None:
        return mu
    places = np.linspace(-_REACH, mu + _REACH, 4001)
    loss = np.log1p(event.sample_rate * np.expm1(mu * places - mu * mu / 2))
    weights = np.exp(loss - places**2 / 2)
    mean = np.average(loss, weights=weights)
    return math.sqrt(np.average((loss - mean) ** 2, weights=weights))


def span(event: Event) -> tuple[float, float]:
    """Return the least and largest loss of one read that get a place on the grid."""
    if event.noise_multiplier is None or event.pure < math.inf:
        return -event.pure, event.pure
    mu = 1 / event.noise_multiplier
    losses = np.array([-_REACH * mu - mu * mu / 2, _REACH * mu + mu * mu / 2])
    if event.sample_rate is not None and event.sample_rate < 1:
        losses = np.logaddexp(math.log1p(-event.sample_rate), math.log(event.sample_rate) + losses)
    return float(losses[0]), float(losses[1])


def interval(events: Sequence[Event]) -> float:
    """Return the grid: at most a twentieth of the reads' standard deviation, and 1e-4; coarser only to bound memory.

    Where the standard deviation is above 1 so is epsilon, of which 1e-4 is a small share.
    """
    variance = sum(event.count * deviation(event) ** 2 for event in events)
    typical = _typical(events)
    wanted = min(_WIDEST_INTERVAL * max(typical, 1.0), typical / _PER_DEVIATION)
    widest = max(high - low for low, high in map(span, events))
    needed = 2 * _REACH * math.sqrt(variance) + widest
    finest = max(_FINEST_INTERVAL, 2 * needed / MOST_POINTS, 4 * widest / MOST_POINTS)
    return max(2.0 ** math.floor(math.log2(max(wanted, _FINEST_INTERVAL))), 2.0 ** math.ceil(math.log2(finest)))


def coarsest(events: Sequence[Event]) -> float:
    """Return the grid beyond which rounding up costs more than this bound gains."""
    return max(8 * _typical(events), 2 * _FINEST_INTERVAL)


def _typical(events: Sequence[Event]) -> float:
    """Return the root mean square of the reads' standard deviations."""
    variance = sum(event.count * deviation(event) ** 2 for event in events)
    return math.sqrt(variance / sum(event.count for event in events))


@functools.lru_cache(maxsize=8)
def event_losses(event: Event, interval: float) -> Pair:
    """Return the dominating pair of one read, both directions; the event's count is ignored.

    The event is private, with losses of at most `LARGEST_LOSS`. The interval is a power of two.
    """
    low, high = span(event)
    first, last = math.floor(low / interval), math.ceil(high / interval)
    last = max(last, first + 1)
    edges = interval * np.arange(first, last + 1)
    if event.kind in ("gaussian", "poisson-gaussian"):
        upper, lower, outside = _gaussian_buckets(edges, 1 / (event.noise_multiplier or 0.0), event.sample_rate or 1.0)
    else:
        upper, lower = _pure_buckets(edges, event)
        outside = (0.0, 0.0, 0.0, 0.0)
    forward, backward = _connect(interval, first, upper, lower, outside)
    return (forward, forward) if event.sample_rate in (None, 1.0) else (forward, backward)


def _connect(
    interval: float, first: int, upper: np.ndarray, lower: np.ndarray, outside: tuple[float, float, float, float]
) -> Pair:
    """Move the mass of each bucket to its ends, keeping its P-mass ``upper`` and its Q-mass ``lower``, (n,) each.

    ``first`` is the left end of the first bucket in intervals; ``outside`` holds the P-mass below and above all
    buckets, and the Q-mass below and above.
    """
    left = interval * np.arange(first, first + len(upper))
    right = np.clip((upper - lower * np.exp(left)) / -math.expm1(-interval), 0.0, upper)
    dots = np.append(upper - right, 0.0)
    dots[1:] += right
    backward = (dots * np.exp(-interval * np.arange(first, first + len(dots))))[::-1].copy()
    below, above, lower_below, lower_above = outside
    dots[0] += below  # rounded up to the least loss
    backward[0] += lower_above
    error = (32 + 8 * interval * max(abs(first), abs(first + len(upper)))) * _ROUND_OFF
    return (
        Losses(interval, first, dots, above, error),
        Losses(interval, -(first + len(upper)), backward, lower_below, error),
    )


def _gaussian_buckets(
    edges: np.ndarray, mu: float, rate: float
) -> tuple[np.ndarray, np.ndarray, tuple[float, float, float, float]]:
    """Return the masses of P = (1 - q) N(0, 1) + q N(mu, 1) and Q = N(0, 1) between losses, and outside."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # below log(1 - q) there are no losses
        odds = edges if rate == 1 else np.log1p(np.maximum(np.expm1(edges) / rate, -1.0))
    places = odds / mu + mu / 2
    lower, (lower_below, lower_above) = _normal_masses(places)
    shifted, (below, above) = _normal_masses(places - mu)
    upper = (1 - rate) * lower + rate * shifted
    mixed = [(1 - rate) * a + rate * b for a, b in ((lower_below, below), (lower_above, above))]
    return upper, lower, (mixed[0], mixed[1], lower_below, lower_above)


def _normal_masses(edges: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """Return the standard normal masses between edges (each from its own tail), and below and above them."""
    below, above = ndtr(edges), ndtr(-edges)
    masses = np.where(edges[1:] <= 0, np.diff(below), -np.diff(above))
    return masses, (float(below[0]), float(above[-1]))


def _pure_buckets(edges: np.ndarray, event: Event) -> tuple[np.ndarray, np.ndarray]:
    """Return the masses between losses of a symmetric pair whose losses lie in [-pure, pure].

    Laplace of scale 1 and distance s: the loss is ``s - 2x`` at x in (0, s), s at x <= 0, -s at x >= s. Discrete
    Laplace: the same on whole numbers, ``P(x) = r^|x| (1 - r) / (1 + r)``, r = e^(-1/scale). Randomized response
    names the truth, the neighbor's truth, or neither. Any other pure mechanism is dominated by randomized response
    with two answers (Kairouz, Oh, Viswanath 2015).
    """
    pure, upper, lower = event.pure, np.zeros(len(edges) - 1), np.zeros(len(edges) - 1)
    if event.kind == "laplace":
        truth = 0.5
        upper, lower = _exponential_masses((pure - edges) / 2, pure, pure, 1.0)
        upper, lower = upper * 0.5, lower * 0.5
    elif event.kind == "discrete-laplace":
        steps = event.sensitivity or 1
        rate = pure / steps
        truth = 1 / (1 + math.exp(-rate))
        upper, lower = _exponential_masses(np.floor((steps - edges / rate) / 2), steps - 1, steps, rate)
        upper, lower = upper * (truth * math.exp(-rate)), lower * truth
    else:
        answers = 2 if event.categories is None else event.categories
        truth = 1 / (1 + (answers - 1) * math.exp(-pure))
        neither = np.searchsorted(edges, 0.0, side="right") - 1
        upper[neither] = lower[neither] = (answers - 2) * math.exp(-pure) * truth
    upper[-1] += truth
    lower[-1] += truth * math.exp(-pure)
    upper[0] += truth * math.exp(-pure)
    lower[0] += truth
    return upper, lower


def _exponential_masses(places: np.ndarray, last: float, far: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Return ``e^(-rate x)`` at the right less the left of neighboring places within [0, last], and seen from far."""
    places = np.clip(places, 0.0, last)
    left, right = places[1:], places[:-1]
    within = -np.expm1(-rate * (right - left))
    return np.exp(-rate * left) * within, np.exp(-rate * (far - right)) * within
