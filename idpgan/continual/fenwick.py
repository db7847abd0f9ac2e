r"""The Fenwick tree as a strategy for prefix sums, the weights that make its error least, and noise on its nodes.

The counter that uses it is `idpgan.continual.stream.ContinualCounter`.

Node t of the tree (t = 1 .. n) is the sum of the values t - lowbit(t) + 1 .. t, where lowbit(t) is the largest power of
two that divides t. The prefix sum of t is the sum of the nodes t, t - lowbit(t), ... > 0. As matrices: W = B M with W
the lower triangle of ones, ``M[p, t] = 1`` where value t lies in node p, and ``B[t, p] = 1`` where prefix t uses node
p.

Weights. With ``S = diag(lambda)``, ``B S^-1 (S M x + noise)`` is unbiased, and where every column of ``S M`` has norm
at most 1 (L1 for Laplace noise, L2 for Gaussian noise) the noise has the scale of one release of sensitivity 1. The
total variance is then ``sum_p c_p / lambda_p^2`` releases, ``c_p`` the number of prefixes that use node p.

The chapter (chapter 5, "Continual data release under differential privacy based on the matrix mechanism", of a Chinese
book whose title our copy lacks; FDA, section 5.4.3) splits n = 2^m - 1 at its middle and stops before the closed form.
`fast_diagonal` has the closed form, any n, and both norms. Proof. Let h be the largest power of two <= n. Node h holds
the values 1 .. h and is used by the c = n - h + 1 prefixes h .. n. The nodes below h see only values below h and are
used only by prefixes below h: a complete tree of h - 1. The nodes above h form the tree of n - h and share neither
value nor prefix with the rest, apart from node h's own use. With ``w = lambda^norm`` the columns left of h carry
``w_h`` and a column of the left tree, so the left tree has the budget ``a = 1 - w_h``. This is the same problem,
scaled: its optimum e(h - 1) becomes ``e(h - 1) / a^q``, q = 2 / norm. The remaining function of a, ``e / a^q + c / (1 -
a)^q``, is convex with the minimum ``(e^x + c^x)^(q + 1)`` at ``a = e^x / (e^x + c^x)``, ``x = 1 / (q + 1)``: the
exponent 1/3 for Laplace and 1/2 for Gaussian noise. The right tree keeps the whole budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from idpgan.checks import described
from idpgan.errors import InputError
from idpgan.lazy import torch
from idpgan.privacy import Event, Noise, Relation, Unit
from idpgan.privacy.discrete import discrete_laplace

if TYPE_CHECKING:
    from torch import Tensor

ADJACENCY = (Unit.EVENT, Relation.ZERO_OUT)
MOST_STEPS = 1 << 60
MOST_DENSE = 4096  # 128 MiB per matrix
_FINEST = 1 << 50  # T for epsilon up to 4; less for more, so that budgets stay below 2^52
_LEAST_BUDGET = 1 << 20  # the smallest of 10^6 shares is 1 % of the budget: rounding costs that share 0.01 %


def check_steps(n: int, most: int = MOST_STEPS, name: str = "n") -> None:
    """Refuse an n that is not an integer in 1 .. ``most``."""
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= most:
        raise InputError(f"{name} = {n!r} must be a whole number in 1 .. {most}.")


def chain(t: int) -> list[int]:
    """Return the nodes of the prefix sum of ``t``, ascending, with 0 in front.

    Example:
        >>> chain(13)
        [0, 8, 12, 13]
    """
    nodes = []
    while t:
        nodes.append(t)
        t &= t - 1
    return [0, *reversed(nodes)]


def uses(n: int) -> Tensor:
    """Return c (n,), float64: how many of the prefixes 1 .. n use each node, ``min(lowbit(t), n - t + 1)``."""
    check_steps(n)
    t = torch.arange(1, n + 1)
    return torch.minimum(t & -t, n - t + 1).double()


# The matrices -------------------------------------------------------------------------------------------------------


def matrices(n: int) -> tuple[Tensor, Tensor]:
    """Return B and M (n, n), float64, for tests and small n; `node_sums` and `prefix_sums` are the products.

    Example:
        >>> B, M = matrices(3)
        >>> (B @ M).int().tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    check_steps(n, MOST_DENSE)
    identity = torch.eye(n, dtype=torch.float64)
    return prefix_sums(identity).T, node_sums(identity).T


def parents(first: int, last: int, known: Sequence[int] = (0,)) -> Tensor:
    """Return where to find prefix t - lowbit(t) for t = first .. last, int64: positions in ``[*known, first .. last]``.

    ``known`` is `chain` of first - 1: those earlier prefixes that later ones still need.
    """
    t = torch.arange(first, last + 1)
    before = t & (t - 1)
    return torch.where(before < first, torch.searchsorted(torch.tensor(known), before), before - first + len(known))


def accumulate(nodes: Tensor, earlier: Tensor, first: int, above: Tensor) -> Tensor:
    """Return prefix sums from nodes, level by level from the top: each is its node plus the prefix before that node.

    Args:
        nodes: (..., n), nodes first .. first + n - 1.
        earlier: (..., k), the prefixes of ``known``.
        first: Index of the first node.
        above: `parents` (n,), on the device of ``nodes``.

    Returns:
        (..., k + n): ``earlier``, then the prefixes.
    """
    n, k = nodes.shape[-1], earlier.shape[-1]
    sums = torch.cat([earlier, nodes], -1)
    for level in reversed(range((first + n - 1).bit_length())):
        size = 1 << level
        start = (size - first) % (2 * size)  # the first t with lowbit(t) = size
        sums[..., k + start :: 2 * size] += sums[..., above[start :: 2 * size]]
    return sums


def node_sums(values: Tensor) -> Tensor:
    """Return M x: (..., n) values to (..., n) nodes."""
    totals = torch.cat([torch.zeros_like(values[..., :1]), values.cumsum(-1)], -1)
    return totals[..., 1:] - totals[..., parents(1, values.shape[-1]).to(values.device)]


def prefix_sums(nodes: Tensor) -> Tensor:
    """Return B z: (..., n) nodes to (..., n) prefix sums."""
    above = parents(1, nodes.shape[-1]).to(nodes.device)
    return accumulate(nodes, torch.zeros_like(nodes[..., :1]), 1, above)[..., 1:]


# The weights --------------------------------------------------------------------------------------------------------


def exponent_of(norm: int) -> float:
    """Return the power of a node's uses to which its share is proportional; see the proof."""
    if norm not in (1, 2):
        raise InputError(f"norm = {norm!r} must be 1 (Laplace noise) or 2 (Gaussian noise).")
    return norm / (norm + 2)


def _complete(levels: int, exponent: float) -> list[float]:
    """Return e(2^m - 1) for m = 0 .. levels."""
    least = [0.0]
    for level in range(levels):
        joined = (least[level] ** exponent + (1 << level) ** exponent) ** (1 / exponent)  # with the middle node
        least.append(joined + least[level])
    return least


def _middle(left: float, count: int, exponent: float) -> float:
    """Return the middle node's share ``1 - a`` of the budget."""
    return count**exponent / (left**exponent + count**exponent)


def fast_diagonal(n: int, norm: int = 1, later: int = 0) -> tuple[torch.Tensor, float]:
    """Return the weights of least total error and that error, in closed form and O(n) time.

    Minimizes ``sum_p c_p / lambda_p^2`` over lambda > 0 whose columns ``(sum_p M[p, t] lambda_p^norm)^(1/norm)`` are at
    most 1. Multiplied by 2 / epsilon^2 the objective is the total expected squared error with Laplace noise.

    Args:
        n: Number of steps, >= 1.
        norm: 1 for Laplace noise, 2 for Gaussian noise (then lambda_p = 1 / standard deviation of node p).
        later: Number of further answers after the n-th that contain the n-th prefix sum and so add its error.

    Returns:
        lambda (n,) float64, and the objective.

    Example:
        >>> weights, objective = fast_diagonal(3)
        >>> print([round(weight, 4) for weight in weights.tolist()], round(2 * objective, 4))
        [0.4425, 0.5575, 1.0] 25.0839
    """
    weights = shares(1, n, n, norm=norm, later=later) ** (1 / norm)
    exponent = exponent_of(norm)
    least = _complete(n.bit_length(), exponent)
    levels = [level for level in range(n.bit_length()) if n >> level & 1]
    counts = [(n & ((1 << level) - 1)) + 1 + later for level in levels]
    parts = zip(levels, counts, strict=True)
    return weights, math.fsum((least[level] ** exponent + count**exponent) ** (1 / exponent) for level, count in parts)


def shares(first: int, last: int, n: int, budget: int | float = 1.0, norm: int = 1, later: int = 0) -> Tensor:
    """Return ``budget * lambda^norm`` of the nodes first .. last, in O(last - first + log n) time, without the others.

    An integer budget is split into integers, and one side gets exactly what the other side loses. So the sum over the
    nodes of any value, ``sum_p M[p, t] share_p``, is at most the budget exactly, despite floating point.

    Args:
        first: Index of the first node wanted, >= 1.
        last: Index of the last node wanted, at most n.
        n: Number of steps.
        budget: 1.0 for `fast_diagonal`'s weights (to the power norm), or a whole number up to 2^52.
        norm: See `fast_diagonal`, also for ``later``.

    Returns:
        (last - first + 1,), float64, or int64 for a whole budget.

    Raises:
        InputError: If an argument is out of range or a whole budget is too small for every node to get 1.
    """
    check_steps(n)
    check_steps(last, n, "last")
    check_steps(first, last, "first")
    exponent, whole = exponent_of(norm), isinstance(budget, int)
    if not 0 < budget <= 1 << 52:
        raise InputError(f"a budget of {budget} must be above 0 and at most 2^52.")
    least = _complete(n.bit_length(), exponent)
    result = torch.empty(last - first + 1, dtype=torch.float64)
    # Trees of 2 size - 1 nodes side by side, the last one incomplete; budgets[j] is that of tree lowest + j.
    budgets, lowest = torch.full((1,), float(budget), dtype=torch.float64), 0
    for level in reversed(range(n.bit_length())):
        size = 1 << level
        middle = budgets * _middle(least[level], size, exponent)
        edge = (n >> (level + 1)) - lowest  # the incomplete tree; its middle node exists if n has this bit
        if edge < len(budgets):
            count = (n & (size - 1)) + 1 + later
            middle[edge] = budgets[edge] * _middle(least[level], count, exponent) if n & size else 0.0
        middle = middle.floor_() if whole else middle  # below 2^53, so float64 holds it exactly
        start = (size - first) % (2 * size)  # the first node of this level
        if start < len(result):
            wanted = result[start :: 2 * size]
            skip = ((first + start) >> (level + 1)) - lowest
            wanted.copy_(middle[skip : skip + len(wanted)])
        below = torch.stack([budgets - middle, budgets], -1).flatten()
        skip = (first >> level) - 2 * lowest
        lowest = first >> level
        budgets = below[skip : (last >> level) - lowest + skip + 1]
    if not whole:
        return result
    if result.min() < 1:
        raise InputError(f"a budget of {budget} is too small to be split over {n} steps: raise epsilon.")
    return result.long()


# Noise on the nodes -------------------------------------------------------------------------------------------------


class NodeNoise:
    """Discrete Laplace noise of scale ``T / s_p`` grid steps on node p, for a whole budget of the s_p.

    With ``g`` geometric, ``P(g) ~ exp(-g / T)``, the whole part y of g / s has ``P(y) ~ exp(-y s / T)``, and a random
    sign makes it discrete Laplace noise of scale T / s (Canonne, Kamath, Steinke 2020, Algorithm 2). T is fixed and s
    differs by node.

    Formal guarantee: pure ``event.pure`` <= epsilon for all releases with this noise together, if one event moves by at
    most ``moved`` steps a set of nodes whose s_p sum to at most ``budget``. Proof: the log-density moves by ``moved s_p
    / T`` for each node of the set, together at most ``moved budget / T``, and ``budget = floor(event.pure T / moved)``
    in rational arithmetic.

    Attributes:
        event: The charge for all releases together.
        scale: T, a power of two.
        budget: Largest sum of the s_p of one event's nodes.
    """

    def __init__(self, epsilon: float, moved: int) -> None:
        """Find T and the budget for an event that moves each of its nodes by ``moved`` steps.

        Raises:
            InputError: If epsilon is out of the range that 52-bit integers can represent.
        """
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
            raise InputError(f"epsilon = {epsilon!r} must be a positive, finite number.")
        self.event = pure_event(float(epsilon))
        exact = Fraction(self.event.pure) / moved
        self.scale = _FINEST
        while exact * self.scale > 1 << 52 and self.scale > 1:
            self.scale //= 2
        self.budget = math.floor(exact * self.scale)
        if not _LEAST_BUDGET <= self.budget <= 1 << 52:
            raise InputError(
                f"epsilon = {epsilon:g} must lie in {moved * _LEAST_BUDGET / _FINEST:.1g} .. {moved * 2.0**52:.1g}."
            )

    def draw(self, divisors: Tensor, noise: Noise) -> Tensor:
        """Draw ``P(x) ~ exp(-|x| s / T)`` exactly for each s >= 1 in ``divisors`` (int64, any shape): int64, CPU."""
        divisor = divisors.flatten().numpy()
        result = np.empty(len(divisor), dtype=np.int64)
        pending = np.arange(len(divisor))
        while len(pending):
            draws = discrete_laplace(self.scale, len(pending), noise).numpy()
            # Given its sign a discrete Laplace number is geometric, P(g) ~ e^(-g / T): x if x >= 0, -x - 1 if x < 0.
            magnitude = (draws ^ (draws >> 63)) // divisor[pending]
            negative = noise.integers(2, (len(pending),)).numpy().astype(bool)
            accepted = ~(negative & (magnitude == 0))  # zero must not be counted twice
            result[pending[accepted]] = np.where(negative, -magnitude, magnitude)[accepted]
            pending = pending[~accepted]
        return torch.from_numpy(result).reshape(divisors.shape)

    def variance(self, divisors: Tensor) -> Tensor:
        """Return the variance of `draw`, float64: ``2 q / (1 - q)^2``, ``q = exp(-s / T)``; Laplace noise has more."""
        return 0.5 / torch.sinh(divisors.double() / (2 * self.scale)).square()


def pure_event(epsilon: float) -> Event:
    """Return the event of a release with pure epsilon, unit event, zero-out-one; its ``pure`` is at most ``epsilon``.

    Discrete Laplace noise at distance 1 has the privacy losses +epsilon and -epsilon and no other. Its pair is the one
    that dominates every mechanism of that pure epsilon.
    """
    multiplier = 1 / epsilon
    while 1 / multiplier > epsilon:  # corrects rounding
        multiplier = math.nextafter(multiplier, math.inf)
    return Event("discrete-laplace", *ADJACENCY, multiplier, sensitivity=1)


# Counts that never decrease -----------------------------------------------------------------------------------------


def isotonic(answers: Any, *, nonnegative: bool = True, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Return the nearest non-decreasing series, for counts that never decrease.

    Least squares (pool adjacent violators). Every number of the result depends on the whole series, so apply the
    function to a finished series.

    Args:
        answers: Noisy running counts (..., T).
        nonnegative: Whether to raise numbers below 0 to 0, which keeps the order.
        weights: (T,), positive: 1 / `ContinualCounter.variance`; None = equal.

    Returns:
        float64 (..., T), on the device of ``answers``.

    Example:
        >>> isotonic([-3, 10, 14, 9]).tolist()
        [0.0, 10.0, 11.5, 11.5]
    """
    from scipy.optimize import isotonic_regression  # half a second to import

    try:
        answers = torch.as_tensor(answers)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"answers must be numbers, got {described(answers)}.") from error
    if not answers.ndim or not answers.shape[-1] or answers.is_complex() or not bool(answers.isfinite().all()):
        raise InputError(f"answers must be finite numbers (..., T) with T >= 1, got {described(answers)}.")
    series = answers.double().cpu().reshape(-1, answers.shape[-1]).numpy()
    weight = None if weights is None else weights.double().cpu().numpy()
    fitted = np.stack([isotonic_regression(counts, weights=weight).x for counts in series])
    result = torch.from_numpy(fitted).reshape(answers.shape).to(answers.device)
    return result.clamp_(min=0) if nonnegative else result
