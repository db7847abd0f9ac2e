r"""The joint price of several reads: theorems from the literature, for comparison with `accounting`.

They charge nothing. For k reads, each (epsilon, delta)-DP, chosen one after the other:

* the sums, (k epsilon, k delta) (Dwork, McSherry, Nissim, Smith 2006): OpenDP's `make_composition`;
* `advanced_composition`: Dwork, Rothblum, Vadhan 2010, Theorem III.3;
* `closed_form_composition`: Kairouz, Oh, Viswanath 2015, Theorem 3.4, no worse than either;
* `optimal_composition`: Kairouz, Oh, Viswanath 2015, Theorem 3.3: the best that (epsilon, delta) alone can tell.

The accountant composes "pure" and "approximate" events like `optimal_composition`, up to its grid; where the noise is
known (Laplace, Gaussian) its bound is far lower.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln

from idpgan.checks import typed, whole
from idpgan.errors import InputError

_MOST = 1 << 22  # reads of `optimal_composition`, which sums over them


def _check(epsilon: float, delta: float, count: int, slack: float) -> None:
    whole(count, "count", 1, 1 << 62)
    if not 0 < epsilon < math.inf or not 0 <= delta < 1 or not 0 <= slack < 1:
        raise InputError(f"epsilon = {epsilon} must be above 0, delta = {delta} and slack = {slack} in [0, 1).")


@typed
def advanced_composition(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """Return (epsilon, delta) of ``count`` reads by ``epsilon sqrt(2 k ln(1 / slack)) + k epsilon (e^epsilon - 1)``.

    Dwork, Rothblum, Vadhan 2010, "Boosting and differential privacy", Theorem III.3. (Reading notes print the logarithm
    of ``1 / (slack epsilon)``: a slip.) The delta is ``k delta + slack``, ``slack`` in (0, 1).

    Example:
        >>> round(advanced_composition(0.1, 0.0, 100, 1e-5)[0], 4)
        5.8502
    """
    _check(epsilon, delta, count, slack)
    if slack == 0:
        raise InputError("slack = 0 must be above 0: advanced composition buys a smaller epsilon with it.")
    total = epsilon * math.sqrt(2 * count * math.log(1 / slack)) + count * epsilon * math.expm1(min(epsilon, 700.0))
    return total, min(count * delta + slack, 1.0)


@typed
def closed_form_composition(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """Return (epsilon, delta) of ``count`` reads by the closed form of Kairouz, Oh, Viswanath 2015, Theorem 3.4.

    The least of ``k epsilon``, ``m + epsilon sqrt(2 k ln(e + sqrt(k epsilon^2) / slack))`` and
    ``m + epsilon sqrt(2 k ln(1 / slack))``, with ``m = k epsilon (e^epsilon - 1) / (e^epsilon + 1)``. The delta is
    ``1 - (1 - delta)^k (1 - slack)``.

    Example:
        >>> round(closed_form_composition(0.1, 0.0, 100, 1e-5)[0], 4)
        5.2981
    """
    _check(epsilon, delta, count, slack)
    whole_delta = -math.expm1(count * math.log1p(-delta) + math.log1p(-slack))
    if slack == 0:
        return count * epsilon, whole_delta
    mean = count * epsilon * math.tanh(epsilon / 2)
    spread = epsilon * math.sqrt(2 * count)
    mixed = mean + spread * math.sqrt(math.log(math.e + math.sqrt(count) * epsilon / slack))
    return min(count * epsilon, mixed, mean + spread * math.sqrt(math.log(1 / slack))), whole_delta


@typed
def optimal_delta(epsilon: float, delta: float, count: int, total_epsilon: float) -> float:
    """Return the least delta at which ``count`` reads are surely (total_epsilon, delta)-DP.

    Kairouz, Oh, Viswanath 2015, Theorem 3.3. Randomized response with two answers dominates a read that does not fail;
    l of k answers against the truth have a loss of ``(k - 2 l) epsilon``. With E = total_epsilon,
    ``d = sum over losses above E of C(k, l) (e^((k-l) epsilon) - e^(E + l epsilon)) / (1 + e^epsilon)^k``, and with
    failures ``1 - (1 - delta)^k (1 - d)``.
    """
    _check(epsilon, delta, count, 0.0)
    whole(count, "count", 1, _MOST)
    if not total_epsilon >= 0:
        raise InputError(f"total_epsilon = {total_epsilon} must be at least 0.")
    wrong = np.arange(count + 1.0)
    losses = (count - 2 * wrong) * epsilon
    above = losses > total_epsilon
    log_chance = gammaln(count + 1.0) - gammaln(wrong + 1) - gammaln(count - wrong + 1)
    log_chance += (count - wrong) * epsilon - count * np.logaddexp(0.0, epsilon)
    excess = float(np.sum(np.exp(log_chance[above]) * -np.expm1(total_epsilon - losses[above])))
    return -math.expm1(count * math.log1p(-delta) + math.log1p(-min(excess, 1 - 2.0**-53)))


@typed
def optimal_composition(epsilon: float, delta: float, count: int, total_delta: float) -> float:
    """Return the least epsilon at which ``count`` reads are surely (epsilon, total_delta)-DP; infinite if none is.

    Kairouz, Oh, Viswanath 2015, Theorem 3.3, solved for epsilon between its grid points too; see `optimal_delta`.

    Example:
        >>> round(optimal_composition(0.1, 0.0, 100, 1e-5), 4)
        4.3068
    """
    _check(epsilon, delta, count, total_delta)
    low, high = 0.0, count * epsilon
    if optimal_delta(epsilon, delta, count, high) > total_delta * (1 + 1e-12):
        return math.inf
    if optimal_delta(epsilon, delta, count, low) <= total_delta:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if optimal_delta(epsilon, delta, count, middle) > total_delta else (low, middle)
    return high
