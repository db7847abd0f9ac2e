r"""What it costs: composition of events into (epsilon, delta), on privacy loss distributions (PLDs).

One level below dp_accounting's ``PLDAccountant`` (0.6.0: refuses Laplace under replace-one, doubles Gaussian there,
and at delta = 0 returns 0.067 instead of 1.0 for 10,304 x Laplace at scale 10,304). Our events carry the sensitivity
for *their* relation, so each is a plain additive-noise pair here. Everything rounds up: PLDs are pessimistic, and
``epsilon(delta) = min(sum of pure epsilons, PLD)``; delta = 0 is answered by the pure sum alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from idpgan.errors import InputError
from idpgan.privacy.event import Event

FINEST_DELTA = (
    1e-12  # below, PLDs are at the mercy of their tail truncation (1e-15 per composition) and of FFT rounding
)
_WIDEST_INTERVAL = 1e-4
_COARSEST_INTERVAL = 100.0  # losses that need a coarser one are of no use, and their exponentials overflow
_MOST_POINTS = 1 << 21  # a coarser grid is still sound: discretisation rounds the loss up


def compose_epsilon(events: Sequence[Event], delta: float) -> float:
    """Return an epsilon such that running all ``events`` is (epsilon, delta)-differentially private.

    Args:
        events: What was released, all for one unit and one relation (the ledger sees to it).
        delta: In [0, 1). Below `FINEST_DELTA` only the pure sum is used.

    Returns:
        Epsilon >= 0; infinite where nothing is proven; 0 for no events.

    Raises:
        InputError: If delta is out of range, or the events mix units or relations.
    """
    if not 0 <= delta < 1:
        raise InputError(f"delta = {delta} must lie in [0, 1).")
    if len({(event.unit, event.relation) for event in events}) > 1:
        raise InputError("events of different units or relations do not compose; price each for one common pair.")
    if not events:
        return 0.0
    if not all(event.is_private for event in events):
        return math.inf
    return _compose_epsilon(_merge(events), delta)


def _merge(events: Sequence[Event]) -> tuple[Event, ...]:
    """Order does not matter for composition: one entry per distinct event."""
    counts: dict[Event, int] = {}
    for event in events:
        counts[event.single] = counts.get(event.single, 0) + event.count
    return tuple(event.repeated(count) for event, count in counts.items())


@functools.lru_cache(maxsize=64)
def _compose_epsilon(events: tuple[Event, ...], delta: float) -> float:
    pure = math.fsum(event.count * event.pure for event in events)
    if delta < FINEST_DELTA:
        return pure
    events = _merge_concentrated(events)
    if [event.kind for event in events] == ["discrete-gaussian"]:
        return _zcdp_epsilon(_rho(events[0]), delta)
    interval = _interval(events)
    if interval > _COARSEST_INTERVAL:
        return pure  # infinite for Gaussian noise: an upper bound, as all here
    repeated = [_repeat(event_pld(event.single, interval), event.count) for event in events]
    composed = functools.reduce(lambda left, right: left.compose(right), repeated)
    if not composed.get_delta_for_epsilon(1e9) >= 0:  # the mass at infinite loss
        raise ArithmeticError("the composed privacy loss distribution has a negative mass at infinity.")
    return min(pure, composed.get_epsilon_for_delta(delta))


def _repeat(single: PrivacyLossDistribution, count: int) -> PrivacyLossDistribution:
    return single.self_compose(count) if count > 1 else single


def _rho(event: Event) -> float:
    """Return the zCDP parameter of ``event.count`` discrete Gaussian releases."""
    return event.count / (2 * (event.noise_multiplier or 0.0) ** 2)


def _merge_concentrated(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Replace all discrete Gaussian releases by one with the sum of their rho: zCDP adds without loss."""
    gaussians = [event for event in events if event.kind == "discrete-gaussian"]
    if not gaussians:
        return events
    rho = math.fsum(_rho(event) for event in gaussians)
    merged = Event("discrete-gaussian", gaussians[0].unit, gaussians[0].relation, 1 / math.sqrt(2 * rho))
    return (*(event for event in events if event.kind != "discrete-gaussian"), merged)


def _loss_scale(event: Event) -> float:
    """Return the size of one event's privacy loss: its pure epsilon, or 1 / noise multiplier for Gaussian noise."""
    return 1 / event.noise_multiplier if event.noise_multiplier is not None else event.pure


def _interval(events: Sequence[Event]) -> float:
    """Return the discretisation: at most a tenth of the smallest loss and 1e-4, coarser only to bound memory."""
    interval = min(_WIDEST_INTERVAL, min(_loss_scale(event) for event in events) / 10)
    span = 0.0
    for event in events:
        loss, count = _loss_scale(event), event.count
        if event.sample_rate is not None:  # chi-square of the mixture bounds the variance of the loss
            variance = event.sample_rate**2 * math.expm1(min(loss**2, 30.0))
            span += loss**2 + 20 * loss + count * variance + 20 * math.sqrt(count * variance)
        elif event.pure == math.inf:
            span += count * loss**2 + 20 * loss * math.sqrt(count)
        else:  # bounded by the pure sum, and concentrated as a sum of bounded terms
            span += 2 * max(loss, min(count * loss, count * loss**2 / 2 + 10 * loss * math.sqrt(count)))
    return max(interval, span / _MOST_POINTS)


@functools.lru_cache(maxsize=16)
def event_pld(event: Event, interval: float) -> PrivacyLossDistribution:
    """Return a pessimistic privacy loss distribution of one event.

    Raises:
        InputError: If no distribution is known for the event's kind.
    """
    multiplier = event.noise_multiplier or 0.0
    if event.kind == "laplace":
        return pld.from_laplace_mechanism(multiplier, value_discretization_interval=interval)
    if event.kind == "gaussian":
        return pld.from_gaussian_mechanism(multiplier, value_discretization_interval=interval)
    if event.kind == "poisson-gaussian":
        return pld.from_gaussian_mechanism(
            multiplier, sampling_prob=event.sample_rate, value_discretization_interval=interval
        )
    if event.kind == "discrete-laplace":
        sensitivity = event.sensitivity or 0
        return _pld_of_curve(
            functools.partial(_discrete_laplace_delta, sensitivity, multiplier * sensitivity), event.pure, interval
        )
    if event.kind == "discrete-gaussian":
        rho = _rho(event)
        largest = rho + 2 * math.sqrt(rho * math.log(1e18))  # zCDP: the loss exceeds it with probability below 1e-18
        return _pld_of_curve(functools.partial(_zcdp_delta, rho), largest, interval)
    if event.kind == "randomised-response":
        categories = event.categories or 0
        # The library lies with probability p, and then answers uniformly, the truth included.
        odds = math.exp(-event.pure)
        noise_parameter = categories * odds / (1 + (categories - 1) * odds)
        return pld.from_randomized_response(noise_parameter, categories, value_discretization_interval=interval)
    if event.kind == "exponential":
        return pld.from_privacy_parameters(common.DifferentialPrivacyParameters(event.pure, 0), interval)
    raise InputError(f"no privacy loss distribution is known for an event of kind {event.kind!r}.")


def _pld_of_curve(
    delta_of: Callable[[np.ndarray], np.ndarray], largest: float, interval: float
) -> PrivacyLossDistribution:
    """Connect the dots of a symmetric pair's hockey-stick curve, or of a bound on it.

    Doroshenko et al. 2022, Algorithm 1: between grid points the true curve, convex in e^epsilon, lies below the
    straight line; where a bound is not convex the library lifts negative masses to zero, which only adds mass.
    """
    steps = math.ceil(largest / interval)
    epsilons = np.arange(steps + 1) * interval
    upper = np.minimum.accumulate(np.clip(delta_of(epsilons), 0.0, 1.0))
    # A symmetric pair: delta(-epsilon) = 1 - e^-epsilon (1 - delta(epsilon)).
    lower = 1 - np.exp(-epsilons[:0:-1]) * (1 - upper[:0:-1])
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -steps, steps, np.minimum.accumulate(np.concatenate([lower, upper]))
    )
    return PrivacyLossDistribution(pmf)


def _discrete_laplace_delta(sensitivity: int, scale: float, epsilons: np.ndarray) -> np.ndarray:
    """Exact hockey-stick divergence of discrete Laplace noise at whole distance ``sensitivity``, epsilon >= 0.

    The loss at x is (|x - s| - |x|) / t, above epsilon exactly for x < (s - epsilon t) / 2; with m the largest such
    x, delta = F(m) - e^epsilon F(m - s), F(x) = 1 - p^(x+1) / (1+p) for x >= 0, p^(-x) / (1+p) below, p = e^(-1/t).
    """
    last = np.ceil((sensitivity - epsilons * scale) / 2) - 1
    log_p = -1 / scale
    normaliser = 1 + math.exp(log_p)
    head = np.where(last >= 0, 1 - np.exp(log_p * (last + 1)) / normaliser, np.exp(-log_p * last) / normaliser)
    shifted = np.exp(epsilons - log_p * (last - sensitivity)) / normaliser
    return np.where(epsilons * scale >= sensitivity, 0.0, np.maximum(head - shifted, 0.0))


def _zcdp_delta(rho: float, epsilons: np.ndarray) -> np.ndarray:
    """Bound the hockey-stick divergence of a rho-zCDP mechanism.

    Canonne, Kamath, Steinke 2020, Proposition 12: for every order a > 1,
    delta <= e^((a-1)(a rho - epsilon)) / (a - 1) * (1 - 1/a)^a. Each order is a bound, so any set of them is sound.
    """
    around = np.maximum(epsilons / rho, 1.0) / 2  # (order - 1) that minimises the exponent, about
    best = np.full_like(epsilons, math.inf)
    for factor in np.concatenate([np.geomspace(0.05, 0.9, 12), np.linspace(0.92, 1.3, 39), np.geomspace(1.35, 20, 12)]):
        excess = around * factor
        order = 1 + excess
        log_delta = excess * (order * rho - epsilons) - np.log(excess) + order * np.log1p(-1 / order)
        np.minimum(best, log_delta, out=best)
    # Total variation bounds delta at any epsilon >= 0: Pinsker, with KL <= rho.
    return np.minimum(np.exp(np.minimum(best, 0.0)), math.sqrt(rho / 2))


def _zcdp_epsilon(rho: float, delta: float) -> float:
    """Return epsilon at ``delta`` of a rho-zCDP mechanism: the bound of `_zcdp_delta`, solved for epsilon."""
    around = math.sqrt(math.log(1 / delta) / rho) if delta < 1 else 1.0
    excess = around * np.geomspace(1e-3, 1e3, 6001)
    order = 1 + excess
    epsilons = order * rho + (math.log(1 / delta) - np.log(order)) / excess + np.log1p(-1 / order)
    return max(float(np.min(epsilons)), 0.0)


def affordable(spent: Sequence[Event], event: Event, epsilon: float, delta: float) -> int:
    """Return how often ``event`` can still happen after ``spent`` within (epsilon, delta).

    Doubling and bisection over PLD compositions: a second or so, so once per run and not per step.

    Returns:
        The largest count, capped at 2^40; 0 if not even one is affordable.
    """

    def within(count: int) -> bool:
        return compose_epsilon([*spent, event.repeated(count)], delta) <= epsilon

    if not event.is_private and epsilon < math.inf:
        return 0
    if epsilon == math.inf:
        return 1 << 40
    low, high = 0, 1
    while high < 1 << 40 and within(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def calibrate(events_of: Callable[[float], Sequence[Event]], epsilon: float, delta: float) -> float:
    """Return a noise multiplier, small to 1e-4 relative, whose events stay within (epsilon, delta).

    Args:
        events_of: Maps a noise multiplier to everything that will be released with it; more noise, less epsilon.
        epsilon: Target, positive and finite.
        delta: Target in [0, 1).

    Returns:
        The noise multiplier; composing ``events_of`` it gives at most ``epsilon``, checked before it is returned.

    Raises:
        InputError: If the target is out of range or cannot be reached with any noise.
    """
    if not 0 < epsilon < math.inf:
        raise InputError(f"target epsilon = {epsilon} must be positive and finite.")

    def within(multiplier: float) -> bool:
        return compose_epsilon(events_of(multiplier), delta) <= epsilon

    low, high = None, 1.0
    while not within(high):
        low, high = high, high * 2
        if high > 1e9:
            raise InputError(
                f"no amount of noise reaches epsilon = {epsilon:g} at delta = {delta:g}: raise one of them."
            )
    while low is None:  # the start was enough: look for where it is not
        if not within(high / 2):
            low = high / 2
        elif high < 1e-9:
            return high
        else:
            high /= 2
    while high / low > 1 + 1e-4:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if within(middle) else (middle, high)
    if not within(high):
        raise ArithmeticError(f"calibration ended above its target at noise multiplier {high}.")
    return high
