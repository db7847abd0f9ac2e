r"""Privacy loss distributions: how one read tells neighbors apart, on a grid, with a stated error.

A *privacy loss distribution* is the law of ``log P(y) / Q(y)``, y drawn from P, for the pair (P, Q) that dominates a
mechanism. Its curve ``delta(eps) = E[(1 - e^(eps - loss))_+]`` is all that composition needs (Sommer, Meiser, Mohammadi
2019; `idpgan.privacy.convolution`). Here every law is replaced by a discrete one on the grid ``interval * integer``
whose curve lies above the true one: the mass of each bucket goes to its two ends such that both its P-mass and its
Q-mass stay ("connect the dots", Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022). The same dots, read from Q, serve
the opposite direction.

**Error.** Rounding up is harmless; what floating-point arithmetic may round *down* is bounded (u = 2^-53; no term is
fitted). A dot that is off by a share of itself changes the curve by that share only. The errors of the distribution
functions remain. They telescope: at a grid point l the curve is that of the two computed tails, and
``P(loss > l) - e^l Q(loss > l)`` is off by at most (r + r') times its first term, r and r' being the relative errors of
the two tails.

* *Gaussian, sampled at rate q* (1 = not sampled): the curve at l is ``q S - (e^l - 1 + q) s``, S and s being the tails
  of N(mu, 1) and N(0, 1) above a place x, and the buckets keep both. scipy's ``ndtr`` is off by at most ``(8 + 3 x^2)
  u`` relative (rounding of x in ``exp(-x^2/2)``), rounding of x - mu and of mu moves S by another ``2 x^2 u``, and the
  junction of both tails triples what does not grow with x. So the curve is off by at most
  ``(80 + 9 x^2) u q S``. That is a *share* of the mass of larger loss, with the farthest x; and since ``x^2 S <= 0.4 +
  2 mu^2`` it is at most ``q (84 + 18 mu^2) u`` everywhere, the *error*: the rarer a record is in a step, the less. The
  opposite direction is off by the same, and at negative epsilon by a share of the curve.
* *Pure mechanisms*: each mass is off by at most ``(32 + 8 L) u`` of itself, L the largest loss.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri_exp

from idpgan.privacy.event import Event

LARGEST_LOSS = 500.0  # largest loss of one read: e^loss and its inverse stay within float64
MOST_POINTS = 1 << 20
ROUND_OFF = 2.0**-53
_SUMS = 2.0**-31  # share that a sum of `MOST_POINTS` positive numbers, one after the other, may be off by
_FINEST_INTERVAL = 2.0**-40
_WIDEST_INTERVAL = 1e-4
# Grid points per standard deviation of one read's loss: connecting dots adds less than 1/2400 of its square.
_PER_DEVIATION = 20
_REACH = 9.2  # standard deviations that have a place on the grid at least; see `reach`
_BEYOND = 1e-4  # share of delta that noise beyond the grid may take


@dataclass(frozen=True)
class Losses:
    """A privacy loss distribution on a grid; its curve lies above the true one, up to the stated errors.

    Attributes:
        interval: Distance of grid points, a power of two.
        first: Loss of ``masses[0]`` in intervals.
        masses: P-masses, float64 (n,), >= 0.
        beyond: Bound on the mass of infinite loss.
        error: Bound on what rounding may have taken from the masses' curve.
        share: The same as a share of the mass above each loss; of a read only.
        tilt: Rate t at which errors fall with epsilon, >= 0.
        log_error: Log of a bound w on that error at epsilon = 0; at epsilon it is ``w e^(-t epsilon)``.
        log_wrong: The same of the error of the transform.
    """

    interval: float
    first: int
    masses: np.ndarray
    beyond: float
    error: float
    share: float = 0.0
    tilt: float = 0.0
    log_error: float = math.inf
    log_wrong: float = -math.inf

    @property
    def grid(self) -> np.ndarray:
        """Losses of the masses, (n,)."""
        return self.interval * np.arange(self.first, self.first + len(self.masses))

    def error_at(self, epsilon: float) -> float:
        """Return the bound on what rounding may have taken from delta at ``epsilon``."""
        falling, wrong = (
            math.exp(min(log - self.tilt * epsilon, 0.0)) if log > -math.inf else 0.0
            for log in (self.log_error, self.log_wrong)
        )
        return min(self.error, falling) + wrong

    def delta(self, epsilon: float) -> float:
        """Return a delta such that the pair is (epsilon, delta)-indistinguishable in this direction; may be above 1."""
        start = max(math.floor(epsilon / self.interval) + 1 - self.first, 0)
        losses = self.interval * np.arange(self.first + start, self.first + len(self.masses))
        visible = float(np.sum(self.masses[start:] * -np.expm1(epsilon - losses)))
        return visible * (1 + 2.0**-45) + self.beyond + self.error_at(epsilon)

    def deltas(self, epsilons: np.ndarray) -> np.ndarray:
        """Return `delta` at epsilons >= 0, (n,), from sums over all of the grid, whose rounding is added."""
        start = max(1 - self.first, 0)
        places = self.grid[start:]
        masses = np.append(self.masses[start:], 0.0)
        mass_above = np.cumsum(masses[::-1])[::-1]
        tilted_mass_above = np.cumsum((masses * np.exp(-np.append(places, 0.0)))[::-1])[::-1]
        index = np.searchsorted(places, epsilons, side="right")
        visible = mass_above[index] * (1 + _SUMS) - np.exp(epsilons) * tilted_mass_above[index] * (1 - _SUMS)
        return visible + self.beyond + np.array([self.error_at(epsilon) for epsilon in epsilons.tolist()])

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0 with ``delta(epsilon) <= delta``; infinite where the error is larger."""
        low, high = 0, max(self.first + len(self.masses), 1)
        left, right = math.inf, self.delta(high * self.interval)
        if right > delta:
            return math.inf
        # About where the curve falls to delta: all of the grid at once, less exact.
        places = self.interval * np.arange(len(self.masses))
        falling = np.exp(-places)
        mass_above = np.cumsum(self.masses[::-1])[::-1]
        tilted_mass_above = np.cumsum((self.masses * falling)[::-1])[::-1]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            wrong = np.exp(self.log_wrong - self.tilt * (self.interval * self.first + places))
            curve = mass_above - tilted_mass_above / falling + wrong
            guess = self.first + int(np.count_nonzero(curve > delta - self.beyond - min(self.error, delta / 2)))
        for place in (guess, guess - 1):
            if low < place < high:
                value = self.delta(place * self.interval)
                low, high, left, right = (place, high, value, right) if value > delta else (low, place, left, value)
        if low == 0:
            left = self.delta(0.0)
            if left <= delta:
                return 0.0
        while high - low > 1:  # delta(low) > delta >= delta(high)
            middle = (low + high) // 2
            value = self.delta(middle * self.interval)
            low, high, left, right = (middle, high, value, right) if value > delta else (low, middle, left, value)
        # Between grid points the curve is A - B e^epsilon and an error that falls: below the same with the error on
        # the left.
        right += self.error_at(low * self.interval) - self.error_at(high * self.interval)
        share = (left - delta) / max(left - right, left - delta)
        return self.interval * low + math.log1p(math.expm1(self.interval) * share)


Pair = tuple[Losses, Losses]  # both directions: record against none, and none against record


# One read ------------------------------------------------------------------------------------------------------


def reach(reads: int, delta: float) -> float:
    """Return how many standard deviations of its noise a read's grid spans: noise beyond counts as infinite loss.

    That takes 1.8e-20 per read from delta: so little that 9.2 do, unless delta is tiny or the reads are many.
    """
    return max(_REACH, -float(ndtri_exp(math.log(_BEYOND / reads) + math.log(delta))))


@functools.lru_cache(maxsize=256)
def deviation(event: Event) -> float:
    """Return the approximate standard deviation of one read's loss, which determines the grid."""
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


def span(event: Event, reach: float = _REACH) -> tuple[float, float]:
    """Return the least and largest loss of one read that get a place on the grid."""
    if event.noise_multiplier is None or event.pure < math.inf:
        return -event.pure, event.pure
    mu = 1 / event.noise_multiplier
    losses = np.array([-reach * mu - mu * mu / 2, reach * mu + mu * mu / 2])
    if event.sample_rate is not None and event.sample_rate < 1:
        losses = np.logaddexp(math.log1p(-event.sample_rate), math.log(event.sample_rate) + losses)
    return float(losses[0]), float(losses[1])


def intervals(events: Sequence[Event], reach: float = _REACH) -> Iterator[float]:
    """Yield grids: the wanted one, then coarser ones while rounding up costs less than this bound gains.

    The first is at most a twentieth of the reads' standard deviation, and 1e-4; coarser only to bound memory. Where the
    standard deviation is above 1 so is epsilon, of which 1e-4 is a small share.
    """
    variance = sum(event.count * deviation(event) ** 2 for event in events)
    typical = math.sqrt(variance / sum(event.count for event in events))  # root mean square
    wanted = min(_WIDEST_INTERVAL * max(typical, 1.0), typical / _PER_DEVIATION)
    widest = max(high - low for low, high in (span(event, reach) for event in events))
    needed = 2 * reach * math.sqrt(variance) + widest
    finest = max(_FINEST_INTERVAL, 2 * needed / MOST_POINTS, 4 * widest / MOST_POINTS)
    found = max(2.0 ** math.floor(math.log2(max(wanted, _FINEST_INTERVAL))), 2.0 ** math.ceil(math.log2(finest)))
    while found <= max(8 * typical, 2 * _FINEST_INTERVAL):
        yield found
        found *= 2


@functools.lru_cache(maxsize=8)
def event_losses(event: Event, interval: float, reach: float = _REACH) -> Pair:
    """Return the dominating pair of one read, both directions; the event's count is ignored.

    The event is private, with losses of at most `LARGEST_LOSS`. The interval is a power of two. The mass of each bucket
    moves to its ends, which keeps its P-mass and its Q-mass. Where rounding makes the mass of one end negative, that
    end gets 0, and the other end more than the whole mass: the curves of both directions only rise.
    """
    low, high = span(event, reach)
    first, last = math.floor(low / interval), math.ceil(high / interval)
    edges = interval * np.arange(first, max(last, first + 1) + 1)
    if event.kind in ("gaussian", "poisson-gaussian"):
        buckets = _gaussian_buckets(edges, 1 / (event.noise_multiplier or 0.0), event.sample_rate or 1.0, reach)
    else:
        buckets = _pure_buckets(edges, event)
    right = buckets.excess / -math.expm1(-interval)
    dots = np.append(np.maximum(buckets.upper - right, 0.0), 0.0)
    dots[1:] += np.maximum(right, 0.0)
    mirrored = (dots * np.exp(-interval * np.arange(first, first + len(dots))))[::-1].copy()
    below, above, lower_below, lower_above = buckets.outside
    dots[0] += below  # rounded up to the least loss
    mirrored[0] += lower_above
    forward = Losses(interval, first, dots, above, buckets.error, buckets.share)
    if event.sample_rate in (None, 1.0):
        return forward, forward
    last = -(first + len(buckets.upper))
    return forward, Losses(interval, last, mirrored, lower_below, buckets.error, buckets.share)


@dataclass(frozen=True)
class _Buckets:
    """The masses of P and of Q between neighboring edges, (n,) each, and the masses outside.

    ``excess`` is ``upper - lower * e^left``, the bucket's share of the curve at its left edge. ``outside`` holds the
    P-mass below and above all buckets, and the Q-mass below and above; ``error`` and ``share`` are those of `Losses`.
    """

    upper: np.ndarray
    lower: np.ndarray
    excess: np.ndarray
    error: float
    share: float
    outside: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


def _gaussian_buckets(edges: np.ndarray, mu: float, rate: float, reach: float) -> _Buckets:
    """Return the buckets of P = (1 - q) N(0, 1) + q N(mu, 1) and Q = N(0, 1)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # below log(1 - q) there are no losses
        odds = edges if rate == 1 else np.log1p(np.maximum(np.expm1(edges) / rate, -1.0))
    places = odds / mu + mu / 2
    masses, outside = [], []
    for ends in (places, places - mu):  # of N(0, 1), each mass from its own tail
        below, above = ndtr(ends), ndtr(-ends)
        masses.append(np.where(ends[1:] <= 0, np.diff(below), -np.diff(above)))
        outside.append((float(below[0]), float(above[-1])))
    lower, shifted = masses
    mixed = [(1 - rate) * a + rate * b for a, b in zip(*outside, strict=True)]
    return _Buckets(
        (1 - rate) * lower + rate * shifted,
        lower,
        rate * shifted - (np.expm1(edges[:-1]) + rate) * lower,
        rate * (84 + 18 * mu * mu) * ROUND_OFF,
        (80 + 9 * (reach + mu) ** 2) * ROUND_OFF,
        (mixed[0], mixed[1], *outside[0]),
    )


def _pure_buckets(edges: np.ndarray, event: Event) -> _Buckets:
    """Return the buckets of a symmetric pair whose losses lie in [-pure, pure].

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
    error = (32 + 8 * float(np.max(np.abs(edges)))) * ROUND_OFF
    return _Buckets(upper, lower, upper - lower * np.exp(edges[:-1]), error, error)


def _exponential_masses(places: np.ndarray, last: float, far: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Return ``e^(-rate x)`` at the right less the left of neighboring places within [0, last], and seen from far."""
    places = np.clip(places, 0.0, last)
    left, right = places[1:], places[:-1]
    within = -np.expm1(-rate * (right - left))
    return np.exp(-rate * left) * within, np.exp(-rate * (far - right)) * within
