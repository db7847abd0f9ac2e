r"""The price of reads: composition of events into (epsilon, delta).

Every answer is the least of upper bounds, each proven by itself:

* the sum of pure epsilons, the only one at delta = 0;
* 0, where the total variation distances add up to at most delta;
* for Gaussian reads only: one Gaussian with ``mu^2 = sum mu_i^2``, by its exact curve (Balle and Wang 2018);
* the sum of Renyi divergences, converted (Mironov 2017; Canonne, Kamath, Steinke 2020);
* the composed privacy loss distribution (`idpgan.privacy.losses`, `idpgan.privacy.convolution`), whose numerical error
  is bounded there and added to delta: usually 1e-9 to 1e-4 of delta, and 1 % for a million reads at delta = 1e-9.
  Where its error exceeds delta, which takes many reads at a small sampling rate and a delta below 1e-20 (100,000 at
  rate 0.001: 1e-24), the other bounds remain: up to 20 % higher, and proven like it.

All of these grow with the number of reads. The exceptions are numerical error and the choice of a new grid: less than
1e-9 relative for equal reads, 1e-3 for different ones.

A read that is known only as (epsilon_i, delta_i) is a pure read that fails with probability delta_i (the dominating
mechanism of Kairouz, Oh, Viswanath 2015). All delta_i are first taken from delta, exactly; the rest of delta prices the
pure reads.

So an answer is infinite only where a read has no proof, or no proof at this delta. Gaussian reads are merged in closed
form before anything else, so their number costs nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from scipy.special import erfcx, gammaln, ndtr, ndtri_exp

from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.privacy import convolution, losses
from idpgan.privacy.event import Event

_ROUND_UP = 1 + 2.0**-40  # covers what a few floating-point operations may round down
_NORMAL_PEAK = 1 / math.sqrt(2 * math.pi)
_LARGEST_ORDER = 1 << 16
_MOST_COUNT = 1 << 40
_LARGEST_SLOPE = 30.0  # log of the steepest slope of a trade-off curve that is of interest


@own_state()
def compose_epsilon(events: Sequence[Event], delta: float) -> float:
    """Return an epsilon such that running all ``events`` is (epsilon, delta)-differentially private.

    All `events` have one unit and one relation; `delta` lies in [0, 1). Epsilon is infinite where nothing is proven,
    and 0 without events.

    Raises:
        InputError: If delta is out of range, or the events mix units or relations.
    """
    _check_delta(delta)
    if len({(event.unit, event.relation) for event in events}) > 1:
        raise InputError("events of different units or relations do not compose; price each for one common pair.")
    if not events:
        return 0.0
    if not all(event.is_private for event in events):
        return math.inf
    events, delta = _without_failures(events, delta)
    if delta < 0:
        return math.inf
    mu, others = merge(events)
    return min(_simple_epsilon(mu, others, delta), _losses_epsilon(mu, others, delta))


def _check_delta(delta: float) -> None:
    if isinstance(delta, bool) or not isinstance(delta, int | float) or not 0 <= delta < 1:
        raise InputError(f"delta = {delta!r} must be a number in [0, 1).")


def _without_failures(events: Sequence[Event], delta: float) -> tuple[Sequence[Event], float]:
    """Return the events with their own deltas set to 0, and the delta that remains after these; -1 if negative."""
    if all(event.delta is None for event in events):
        return events, delta
    left = Fraction(delta) - sum(event.count * Fraction(event.delta or 0.0) for event in events)
    rest = float(left)
    rest = -1.0 if left < 0 else rest if Fraction(rest) <= left else math.nextafter(rest, 0.0)
    return unfailing(events), rest


def unfailing(events: Sequence[Event]) -> list[Event]:
    """Return the events without their own deltas: what they are while none of them fails."""
    return [event if event.delta is None else dataclasses.replace(event, kind="pure", delta=None) for event in events]


def failing(events: Sequence[Event]) -> float:
    """Return a bound on the chance that a read fails of which only an epsilon and a delta are known."""
    return sum(event.count * (event.delta or 0.0) for event in events)


def merge(events: Sequence[Event]) -> tuple[float, tuple[Event, ...]]:
    """Return the mu of all Gaussian reads, and the other reads, one entry per distinct event."""
    counts: dict[Event, int] = {}
    mu = 0.0
    for event in events:
        if event.kind == "gaussian" or event.sample_rate == 1:  # a record that is in every step is not sampled
            of_one = 1 / (event.noise_multiplier or 0.0)
            mu = math.hypot(mu, math.sqrt(event.count) * of_one)  # the square of mu may underflow, mu must not become 0
        else:
            single = dataclasses.replace(event.single, grid=None)  # the grid does not change the price
            counts[single] = counts.get(single, 0) + event.count
    return mu, tuple(event.repeated(count) for event, count in counts.items())


# Bounds that need no grid --------------------------------------------------------------------------------------


def simple_epsilon(events: Sequence[Event], delta: float) -> float:
    """Return an epsilon of private events that never fail, at once and however many differ; see `compose_epsilon`."""
    return _simple_epsilon(*merge(events), delta)


@functools.lru_cache(maxsize=256)
def _simple_epsilon(mu: float, others: tuple[Event, ...], delta: float) -> float:
    pure = sum(event.count * event.pure for event in others) if mu == 0 else math.inf
    if delta == 0 or pure == 0:
        return pure
    variation = math.erf(mu / math.sqrt(8))  # total variation distances add up: they are the delta at epsilon = 0
    for event in others:
        if event.sample_rate is None:
            variation += event.count * math.tanh(event.pure / 2)
        else:
            of_one = 1 / (event.noise_multiplier or 0.0)
            variation += event.count * event.sample_rate * math.erf(of_one / math.sqrt(8))
    if variation * _ROUND_UP <= delta:
        return 0.0
    return min(pure, _renyi_epsilon(mu, others, delta) if others else _gaussian_epsilon(mu, delta))


def _gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of one Gaussian read, rounded up.

    Balle and Wang 2018, Theorem 8, with t = epsilon / mu - mu / 2 and Mills' ratio R(t) = P(N > t) / density(t):
    delta = P(N > t) - e^epsilon P(N > t + mu) = density(t) (R(t) - R(t + mu)), which does not cancel in the tail.
    """
    if mu * mu == math.inf:
        return math.inf

    def mills(place: float) -> float:
        return float(math.sqrt(math.pi / 2) * erfcx(place / math.sqrt(2)))

    def log_delta(place: float) -> float:  # rounded up
        log_density = math.log(_NORMAL_PEAK) - place * place / 2
        if mu < 1e-6:  # R is convex: R(t) - R(t + mu) <= -mu R'(t)
            difference = mu * (1 - place * mills(place))
        elif place < 0:
            return math.log(float(ndtr(-place)) - math.exp(log_density) * mills(place + mu) + 2.0**-50)
        else:
            difference = mills(place) - mills(place + mu)
        return log_density + math.log(difference + 2.0**-50 * (mills(place) if mu >= 1e-6 else mu))

    target = math.log(delta)
    low, high = -mu / 2, -float(ndtri_exp(target))  # P(N > high) = delta
    if high <= low or log_delta(low) <= target:
        return 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if log_delta(middle) > target else (low, middle)
    return max(mu * (high + mu / 2), 0.0) * _ROUND_UP


def _renyi_epsilon(mu: float, others: Sequence[Event], delta: float) -> float:
    """Return epsilon by Renyi divergences: they add, and convert by Canonne, Kamath, Steinke 2020, Proposition 12.

    A read of pure epsilon e has divergence at most ``min(e, order e^2 / 2)`` (Bun and Steinke 2016, Proposition 3.3).
    """
    excess = np.geomspace(1e-4, _LARGEST_ORDER - 1, 600)
    order = 1 + excess
    with np.errstate(over="ignore"):
        total = order * (mu * mu / 2)
        for event in others:
            if event.sample_rate is None:
                divergence = np.minimum(event.pure, order * (event.pure * event.pure / 2))
            else:
                nodes, log_moments = _sampled_log_moments(1 / (event.noise_multiplier or 0.0), event.sample_rate)
                divergence = np.interp(order, nodes, log_moments) / excess  # a log moment is convex: chords lie above
            total = total + float(event.count) * divergence
        epsilons = total - (math.log(delta) + np.log(order)) / excess + np.log1p(-1 / order)
    return max(float(np.min(epsilons)), 0.0) * (1 + 1e-9)


@functools.lru_cache(maxsize=64)
def _sampled_log_moments(mu: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Return orders a and log E[(P/Q)^a] of P = (1 - q) N(0, 1) + q N(mu, 1), Q = N(0, 1); it bounds both directions.

    Mironov, Talwar, Zhang 2019, section 3.3, for whole orders. The binomial weights sum to one and the first two
    factors are 1, so ``moment - 1`` is a sum of positive terms, exact however small.
    """
    orders = np.unique(np.concatenate([np.arange(1, 65), np.geomspace(65, _LARGEST_ORDER, 40).astype(int)]))
    log_moments = np.zeros(len(orders))
    if not 1e-150 < mu < 1e100:  # the square of mu leaves float64
        log_moments[1:] = math.inf if mu > 1 else 0.0
        return orders, log_moments
    k = np.arange(2.0, _LARGEST_ORDER + 1)
    log_factors = (k * k - k) * (mu * mu / 2)
    log_odds = math.log(rate) - math.log1p(-rate)
    log_factorials = gammaln(np.arange(1.0, _LARGEST_ORDER + 2))
    log_weights = log_factors + np.log(-np.expm1(-log_factors)) + k * log_odds - log_factorials[2:]
    for place, order in enumerate(orders[1:], start=1):
        log_terms = log_weights[: order - 1] - log_factorials[order - 2 :: -1]
        most = float(np.max(log_terms))
        total = most + math.log(float(np.sum(np.exp(log_terms - most))))
        log_moments[place] = np.logaddexp(0.0, total + log_factorials[order] + order * math.log1p(-rate))
    return orders, log_moments


# The privacy loss distribution ---------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _losses_epsilon(mu: float, others: tuple[Event, ...], delta: float) -> float:
    if not others or delta == 0:
        return math.inf
    composed = _composed(mu, others, delta)
    return math.inf if composed is None else composed[0]


def _composed(mu: float, others: tuple[Event, ...], delta: float) -> tuple[float, losses.Pair] | None:
    """Return epsilon at ``delta`` > 0 by the composed distributions, and these; None where they are out of reach."""
    if sum(event.count for event in others) > convolution.MOST_READS:
        return None
    if 0 < mu < 1e-100 or mu > 1e100 or any(event.pure < 1e-100 for event in others):  # squares and shares underflow
        return None
    events = others
    if mu > 0:
        events = (*others, Event("gaussian", others[0].unit, others[0].relation, 1 / mu))
    reach = losses.reach(sum(event.count for event in events), delta)
    if any(max(map(abs, losses.span(event, reach))) > losses.LARGEST_LOSS for event in events):
        return None
    for interval in losses.intervals(events, reach):
        parts = [(losses.event_losses(event.single, interval, reach), event.count) for event in events]
        composed = convolution.compose(parts, delta)
        if composed is not None:
            return composed
    return None


def compose_curve(events: Sequence[Event], delta: float, points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return epsilons >= 0, and the deltas that hold at them for all ``events``, (n,) each, in both directions.

    The first deltas are those of the record's presence against its absence, the others of the opposite direction. All
    come of one composition, are most exact near the epsilon at the given ``delta`` > 0, and end there, or where e^-eps
    no longer matters to any test. They are empty where composition is out of reach, or all reads are Gaussian.
    """
    mu, others = merge(events)
    composed = _composed(mu, others, delta) if others else None
    if composed is None or not math.isfinite(composed[0]):
        return np.zeros(0), np.zeros(0), np.zeros(0)
    epsilons = np.linspace(0, min(composed[0], _LARGEST_SLOPE), points)
    forward, backward = (np.minimum(way.deltas(epsilons), 1.0) for way in composed[1])
    return epsilons, forward, backward


# Inverses ------------------------------------------------------------------------------------------------------


def is_within(events: Sequence[Event], epsilon: float, delta: float) -> bool:
    """Return whether the events cost at most (epsilon, delta), often without composing distributions."""
    return (bool(events) and _simply_within(events, epsilon, delta)) or compose_epsilon(events, delta) <= epsilon


def _simply_within(events: Sequence[Event], epsilon: float, delta: float) -> bool:
    """Return whether the bounds that need no grid prove this."""
    events, delta = _without_failures(events, delta)
    private = delta >= 0 and all(event.is_private for event in events)
    return private and _simple_epsilon(*merge(events), delta) <= epsilon


def affordable(spent: Sequence[Event], event: Event, epsilon: float, delta: float, planned: int = 0) -> int:
    """Return how often ``event`` can still happen after ``spent`` within (epsilon, delta), at most 2^40.

    Galloping and bisection over compositions takes a second or so: call it once per run, not per step. It starts at the
    ``planned`` number if that is affordable: fewer reads never cost more, whatever their own bounds say.
    """
    if not event.is_private and epsilon < math.inf:
        return 0
    if epsilon == math.inf:
        return _MOST_COUNT

    def last(within: Callable[[Sequence[Event]], bool], low: int) -> int:
        step = max(low // 8, 1)
        while low < _MOST_COUNT and within([*spent, event.repeated(low + step)]):
            low, step = low + step, 2 * step
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if within([*spent, event.repeated(middle)]) else (low, middle)
        return min(low, _MOST_COUNT)

    low = last(lambda events: _simply_within(events, epsilon, delta), 0)
    if low < planned <= _MOST_COUNT and is_within([*spent, event.repeated(planned)], epsilon, delta):
        low = planned
    return last(lambda events: is_within(events, epsilon, delta), low)


@own_state()
def calibrate(events_of: Callable[[float], Sequence[Event]], epsilon: float, delta: float) -> float:
    """Return the least noise multiplier (to 1e-4 relative) whose events cost at most (epsilon, delta).

    The returned multiplier is rounded up, and its cost is checked before it is returned.

    Args:
        events_of: Maps a noise multiplier to everything that is released with it; more noise, less epsilon.

    Raises:
        InputError: If the target is out of range or cannot be reached with any noise.
    """
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
        raise InputError(f"target epsilon = {epsilon!r} must be positive and finite.")
    _check_delta(delta)

    def within(multiplier: float) -> bool:
        return is_within(events_of(multiplier), epsilon, delta)

    low, high = None, 1.0
    while not within(high):
        low, high = high, high * 2
        if high > 1e9:
            raise InputError(
                f"no amount of noise reaches epsilon = {epsilon:g} at delta = {delta:g}: raise one of them."
            )
    while low is None:  # the start has enough noise: look for a multiplier that has not
        if not within(high / 2):
            low = high / 2
        elif high < 1e-9:
            return high
        else:
            high /= 2
    bracket = _narrowed(lambda multiplier: compose_epsilon(events_of(multiplier), delta), epsilon, low, high)
    for too_little, enough in (bracket, (low, high)):  # the second only if rounding made a cost rise with the noise
        least, most = low, high
        while most / least > 1 + 1e-4:
            middle = math.sqrt(least * most)
            fits = middle >= enough or (middle > too_little and within(middle))
            least, most = (least, middle) if fits else (middle, most)
        if within(most):
            return most
    raise ArithmeticError(f"calibration ended above its target at noise multiplier {most}.")


def _narrowed(cost: Callable[[float], float], epsilon: float, low: float, high: float) -> tuple[float, float]:
    """Return a multiplier that costs more than epsilon and one that does not, nearer to each other than the given.

    Costs are smooth in the noise: secants of their logarithms come as near in six costs as halving does in fifteen.
    """
    places = [math.log(low), math.log(high)]
    excess = [math.log(max(cost(multiplier), 1e-300) / epsilon) for multiplier in (low, high)]
    while len(places) < 8 and high / low > 1 + 4e-5 and excess[-1] != excess[-2] and all(map(math.isfinite, excess)):
        slope = (excess[-1] - excess[-2]) / (places[-1] - places[-2])
        place = places[-1] - excess[-1] / slope
        if abs(place - places[-1]) < 1e-5:  # beside one end of the bracket: look on the other side of it
            place = places[-1] + math.copysign(2e-5, excess[-1])
        multiplier = math.exp(place)
        if not low < multiplier < high:
            break
        places.append(place)
        excess.append(math.log(max(cost(multiplier), 1e-300) / epsilon))
        low, high = (multiplier, high) if excess[-1] > 0 else (low, multiplier)
    return low, high
