r"""Between (epsilon, delta) and trade-off curves: what a false-positive rate allows, and the mu of a Gaussian.

The trade-off function of two laws is ``f(a) = least false-negative rate of any test with false-positive rate a``
(`Dong, Roth, Su (2022) <https://arxiv.org/abs/1905.02383>`_). Two Gaussians of distance mu standard deviations have
``f(a) = Phi(Phi^-1(1 - a) - mu)``; so a test with rates (FPR, TPR) has the separation ``Phi^-1(TPR) - Phi^-1(FPR)``,
and mu-GDP allows none above mu. Unlike epsilon at a tiny delta, that is seen in the middle of the laws, where an audit
has many counts: `Nasr et al. (2023) <https://arxiv.org/abs/2302.07956>`_ audit DP-SGD tightly that way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq, minimize_scalar
from scipy.special import log_ndtr, ndtri

from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event

_GAUSSIAN = {"gaussian"}
_LARGEST_MU = 1e4
_DELTAS = (-14.0, 3.0)  # logits among which the best delta is looked for: 8e-7 .. 0.95
_TOLERANCE = 0.05  # of the logit; any delta gives a bound, the best one the tightest


def separation(true_positive_rate: np.ndarray, false_positive_rate: np.ndarray) -> np.ndarray:
    """Return by how many standard deviations two Gaussians must differ for tests to have these rates, >= 0.

    Example:
        >>> separation(np.array([0.84134, 0.1]), np.array([0.5, 0.5])).round(3).tolist()
        [1.0, 0.0]
    """
    with np.errstate(invalid="ignore"):
        found = ndtri(true_positive_rate) - ndtri(false_positive_rate)
    return np.where(found > 0, found, 0.0)  # also where a rate of 0 meets one of 0


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the least delta at which two Gaussians of distance ``mu`` > 0 are (epsilon, delta)-close.

    `Balle and Wang (2018), Theorem 8 <https://arxiv.org/abs/1805.06530>`_, in logarithms where it would overflow.
    """
    first, second = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    return float(math.exp(first) * -math.expm1(min(second - first, 0.0)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the least epsilon >= 0 at which two Gaussians of distance ``mu`` >= 0 are (epsilon, delta)-close.

    At delta = 0 there is none but infinity, for mu above 0.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 3)
        4.377
    """
    if mu <= 0 or (delta > 0 and gaussian_delta(mu, 0.0) <= delta):
        return 0.0
    if delta <= 0:
        return math.inf
    high = mu * mu / 2 + mu * (math.sqrt(2 * math.log(1 / delta)) + 1)
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, high, xtol=1e-12))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the mu of the Gaussian release that costs exactly (epsilon, delta), delta > 0: inverts `gaussian_epsilon`.

    Example:
        >>> round(gaussian_mu(1.0, 1e-5), 3), round(gaussian_mu(10.0, 1e-5), 3)
        (0.268, 2.0)
    """
    if math.isinf(epsilon):
        return math.inf
    return float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-9, _LARGEST_MU, xtol=1e-12))


def least_misses(epsilon: float, delta: float, false_positive_rate: float) -> float:
    """Return the false-negative rate that (epsilon, delta) forces on every test of that false-positive rate.

    Wasserman and Zhou (2010): both neighbors, and the test as well as its complement.
    """
    one = 1 - delta - math.exp(min(epsilon, 700.0)) * false_positive_rate
    other = math.exp(-epsilon) * (1 - delta - false_positive_rate)
    return max(0.0, one, other)


@functools.lru_cache(maxsize=256)
def proven_separation(events: tuple[Event, ...], false_positive_rate: float, epsilon: float, delta: float) -> float:
    """Return the largest `separation` that the proof allows at this false-positive rate; infinite if nothing is proven.

    Where all noise is Gaussian, the law is that of two Gaussians, and this is the mu of their (epsilon, delta), which
    is proven; otherwise it is the curve that the accountant proves for ``events`` at all deltas.
    """
    if not all(event.is_private for event in events):
        return math.inf
    if delta > 0 and {event.kind for event in events} <= _GAUSSIAN:
        return gaussian_mu(epsilon, delta)

    def misses(logit: float) -> float:
        there = 1 / (1 + math.exp(-logit))
        return -least_misses(compose_epsilon(events, there), there, false_positive_rate)

    best = minimize_scalar(misses, bounds=_DELTAS, method="bounded", options={"xatol": _TOLERANCE})
    found = max(-float(best.fun), least_misses(epsilon, delta, false_positive_rate))
    return float("inf") if found <= 0 else float(ndtri(1 - found) - ndtri(false_positive_rate))


def implied_epsilon(mu: float, delta: float) -> float | None:
    """Return what a separation says of epsilon *if the law is Gaussian*; None where delta = 0 has no such number."""
    return gaussian_epsilon(mu, delta) if delta > 0 else None


def is_nearly_gaussian(events: Sequence[Event]) -> bool:
    """Say whether all noise is Gaussian, sampled or not: where `implied_epsilon` is worth printing."""
    return bool(events) and all(event.kind in _GAUSSIAN | {"poisson-gaussian"} for event in events)
