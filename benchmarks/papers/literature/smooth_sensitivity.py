r"""The median with noise in proportion to its smooth sensitivity (Nissim, Raskhodnikova, Smith 2007).

"Smooth sensitivity and sampling in private data analysis", STOC 2007. The local sensitivity of a data set D is the
largest change of the answer on a neighbor of D; noise of that scale reveals how large it is. The smooth sensitivity,

.. math:: S(D) = \max_k e^{-\beta k} A_k(D), \quad A_k(D) = \text{largest local sensitivity within } k \text{ steps},

is at least as large and changes by a factor of at most ``e^beta`` between neighbors. Let ``x_1 <= ... <= x_m`` be the
values that are present, ``x_i = low`` for i < 1 and ``high`` for i > m, and the median the lower one, ``x_c`` with
``c = ceil(m / 2)``.

Replace-one: ``A_k = max over t = 0 .. k + 1 of x_(c+t) - x_(c+t-k-1)`` (their Proposition 3.4).

Zero-out-one, N positions of which m hold a value (the median of none is ``low``). Adding a value to s values, or taking
one away, moves the median by at most the gap between ranks ``floor(s/2)`` and ``floor(s/2) + 1``, and some step does.
Within k steps that gap is widest where the k values around the middle are taken out (a value taken out at one end moves
the middle just as one added at the other does, and neither widens the gap), so ``A_k = x_(l+k+1) - x_l`` with
``l = floor((m - k) / 2)``, for k <= m. The tests compare both with brute force.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from idpgan.checks import typed
from idpgan.errors import InputError
from idpgan.host import own_state
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.discrete import rounded_gaussian
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.noise import Noise
from papers.literature.samplers import heavy_tailed, rounded_laplace

Law = Literal["cauchy", "laplace", "gaussian"]
_MOST_STEPS = 1 << 30  # most grid steps of the declared range
_LEAST_BETA = 2.0**-10  # with a smaller beta the ladder of scales is thousands of rungs long
_SHARE = 0.5  # share of epsilon that pays for the shift of the median; the rest pays for the change of scale
_SAFE = 1 + 2.0**-40  # covers what a few floating-point operations may round down


def _ordered(values: Tensor, low: float, high: float, relation: Relation) -> tuple[np.ndarray, np.ndarray]:
    """Return values (..., n) in order, (R, n), and how many are present, (R,).

    NaN, a null record, comes last, and is refused under replace-one.
    """
    if values.ndim < 1 or values.shape[-1] < 1:
        raise InputError(f"a median needs at least one position, got values of shape {tuple(values.shape)}.")
    found = values.double().cpu().numpy()
    null = np.isnan(found)
    if relation is Relation.REPLACE_ONE and null.any():
        raise InputError("a value is NaN. A null record exists under zero-out-one only.")
    if not ((found >= low) & (found <= high) | null).all():
        raise InputError(f"values must lie in the declared range [{low:g}, {high:g}]; clamp them first.")
    rows = np.sort(found.reshape(-1, found.shape[-1]), axis=1)
    return rows, np.count_nonzero(~np.isnan(rows), axis=1)


def _at(rows: np.ndarray, there: np.ndarray, ranks: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the values of ranks (R, T), ``low`` below rank 1 and ``high`` above the last."""
    inside = np.take_along_axis(rows, np.clip(ranks - 1, 0, rows.shape[1] - 1), axis=1)
    return np.where(ranks < 1, low, np.where(ranks > there[:, None], high, inside))


def _widest_gap(
    rows: np.ndarray, there: np.ndarray, steps: int, low: float, high: float, relation: Relation
) -> np.ndarray:
    """Return A_k of every row, (R,), for k = ``steps``."""
    if relation is Relation.ZERO_OUT:
        k = np.minimum(steps, there)  # with all values gone, the gap is the whole range
        left = ((there - k) // 2)[:, None]
        return (_at(rows, there, left + k[:, None] + 1, low, high) - _at(rows, there, left, low, high))[:, 0]
    right = ((there + 1) // 2)[:, None] + np.arange(steps + 2)
    return (_at(rows, there, right, low, high) - _at(rows, there, right - steps - 1, low, high)).max(1)


@typed
def smooth_sensitivity(
    values: Tensor, low: float, high: float, beta: float, relation: Relation = Relation.REPLACE_ONE
) -> Tensor:
    """Return the beta-smooth sensitivity of the lower median: exact, and secret, since it is not a noisy answer.

    Args:
        values: (..., n) in [low, high]; NaN is a null record (zero-out-one only).
        beta: >= 0; 0 gives the global sensitivity.
        relation: n, the number of positions, is public under both.

    Returns:
        (...), float64. Takes O(n^2) under replace-one, O(n) otherwise.

    Raises:
        InputError: If a value or a number is out of range.

    Example:
        >>> values = torch.tensor([0.4, 0.5, 0.6], dtype=torch.float64)
        >>> smooth_sensitivity(values, 0.0, 1.0, 10.0).item()  # far from its worst neighbors
        0.0999...
        >>> smooth_sensitivity(values, 0.0, 1.0, 0.0).item()
        1.0
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or not 0 <= beta < math.inf:
        raise InputError(f"low = {low} must be below high = {high}, both finite, and beta = {beta} at least 0.")
    rows, there = _ordered(values, low, high, relation)
    best = np.zeros(len(rows))
    for k in range(rows.shape[1] + 1):
        best = np.maximum(best, math.exp(-beta * k) * _widest_gap(rows, there, k, low, high, relation))
    return torch.from_numpy(best.reshape(values.shape[:-1]))


@typed
def local_sensitivity(values: Tensor, low: float, high: float, relation: Relation = Relation.REPLACE_ONE) -> Tensor:
    """Return how far the lower median moves to a neighbor at most, A_0: secret, and no scale for noise.

    Arguments, result and errors are those of `smooth_sensitivity`.

    Example:
        >>> values = torch.tensor([0.4, 0.5, 0.6], dtype=torch.float64)
        >>> local_sensitivity(values, 0.0, 1.0).item()
        0.0999...
    """
    rows, there = _ordered(values, low, high, relation)
    return torch.from_numpy(_widest_gap(rows, there, 0, low, high, relation).reshape(values.shape[:-1]))


# What a scale that moves costs ---------------------------------------------------------------------------------------


def heavy_tail_rates(exponent: int) -> tuple[float, float]:
    """Return what the density ``~ 1 / (1 + |z|^g)`` costs per unit of shift, and per unit of log scale.

    Shift: the derivative of ``log(1 + |z|^g)`` is largest at ``z^g = g - 1``, where it is ``(g - 1)^(1 - 1/g)``. Scale:
    that of ``log(e^l h(e^l z))`` in l is ``1 - g u / (1 + u)``, ``u = |e^l z|^g``, within (1 - g, 1].

    Example:
        >>> heavy_tail_rates(2)
        (1.0, 1)
    """
    return (exponent - 1) ** (1 - 1 / exponent), max(1, exponent - 1)


def laplace_dilation_delta(beta: float, epsilon: float) -> float:
    """Return the delta at which Laplace noise of scale 1 and of scale ``e^(-beta)`` are (epsilon, delta)-close.

    The loss ``-beta + |z| (e^beta - 1)`` exceeds epsilon for ``|z| > t = (epsilon + beta) / (e^beta - 1)``, and
    ``P(|z| > t) - e^epsilon Q(|z| > t) = e^-t (1 - e^-beta)``. It grows with beta, so it bounds every smaller move; the
    other direction has losses of at most beta. Exact for epsilon >= beta > 0.
    """
    return -math.expm1(-beta) * math.exp(-(epsilon + beta) / math.expm1(beta))


def gaussian_dilation_delta(beta: float, epsilon: float) -> float:
    """Return the delta at which Gaussian noise of deviation 1 and ``e^(-beta)`` are (epsilon, delta)-close.

    As `laplace_dilation_delta`, with the loss ``-beta + z^2 (e^(2 beta) - 1) / 2``; exact for epsilon >= beta > 0.
    """
    edge = math.sqrt(2 * (epsilon + beta) / math.expm1(2 * beta))
    return 2 * float(ndtr(-edge) - math.exp(epsilon) * ndtr(-edge * math.exp(beta)))


@functools.lru_cache(maxsize=64)
def admissible(law: Law, epsilon: float, delta: float, exponent: int = 2) -> tuple[float, float]:
    """Return (alpha, beta): noise ``S / alpha * Z`` with a beta-smooth S costs at most (epsilon, delta).

    The proof, for neighbors D, D' with medians f, f' and smooth bounds S, S', of which ``|f - f'|`` exceeds neither:
    from ``f + S/alpha Z`` to ``f + S'/alpha Z`` the scale moves by a factor within ``e^(+-beta)``, and from there to
    ``f' + S'/alpha Z`` the shift is at most alpha in units of the scale. Half of epsilon pays for each step.

    * "cauchy", density ``~ 1 / (1 + |z|^g)``: the two rates of `heavy_tail_rates`; pure.
    * "laplace": the shift costs alpha, pure, so alpha = epsilon / 2; the scale (epsilon / 2, delta).
    * "gaussian": each step costs epsilon / 2 and a delta; ``delta_scale + e^(epsilon/2) delta_shift = delta``, halved.

    Nissim, Raskhodnikova, Smith state smaller constants (g + 1 for both rates, beta = epsilon / (2 ln(2 / delta))).

    Args:
        law: The noise Z.
        epsilon: > 0.
        delta: 0 for "cauchy", in (0, 1) otherwise.
        exponent: g, 2 .. 8, "cauchy" only. 2 is Cauchy's law, with the largest alpha and beta and no variance.

    Raises:
        InputError: If a number is out of range, or no noise is enough.
    """
    if law not in get_args(Law):
        raise InputError(f"there is no noise '{law}' for smooth sensitivity. Known: {', '.join(get_args(Law))}.")
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (epsilon, delta))
    if not numbers or not 0 < epsilon <= 100:
        raise InputError(f"epsilon = {epsilon!r} must be above 0 and at most 100.")
    if (law == "cauchy") != (delta == 0) or not 0 <= delta < 1:
        raise InputError(f"delta = {delta!r} must be 0 for cauchy, and in (0, 1) for laplace and gaussian.")
    shift = epsilon * _SHARE / _SAFE
    scale = (epsilon - shift) / _SAFE
    if law == "cauchy":
        if type(exponent) is not int or not 2 <= exponent <= 8:
            raise InputError(f"exponent = {exponent!r} must be a whole number of 2 .. 8.")
        per_shift, per_scale = heavy_tail_rates(exponent)
        return shift / per_shift, scale / per_scale
    if law == "laplace":
        return shift, _most_beta(laplace_dilation_delta, scale, delta / _SAFE)
    least = calibrate(lambda m: [Event("gaussian", *_ANY, m)], shift, delta / 2 * math.exp(-scale) / _SAFE)
    return 1 / least, _most_beta(gaussian_dilation_delta, scale, delta / 2 / _SAFE)


_ANY = (Unit.IMAGE, Relation.REPLACE_ONE)  # the price of Gaussian noise does not depend on them


def _most_beta(delta_of: Callable[[float, float], float], epsilon: float, delta: float) -> float:
    """Return the largest beta <= epsilon of which the dilation costs (epsilon, delta), rounded down."""
    low, high = 0.0, min(epsilon, 1.0)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, epsilon) <= delta else (low, middle)
    return low / _SAFE


# The mechanism -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SmoothMedian:
    """The lower median of values in a declared range, with noise in proportion to a smooth bound of its sensitivity.

    Everything happens in whole grid steps, ``0 .. steps`` for the range [low, high]; values are clamped and rounded to
    them first. Scales come from a fixed ladder ``T_0 < T_1 < ...`` of whole numbers whose neighboring rungs differ by a
    factor of at most ``e^beta``. With ``rung(g)`` the first rung of at least ``g / alpha``, the scale is
    ``T[max_k rung(A_k) - k]``.

    Formal guarantee: that rung is at least ``rung(A_0)``, so the scale is at least LS(D) / alpha. For neighbors
    ``A_k(D) <= A_(k+1)(D')``, so the rungs of D and D' differ by at most 1: whole numbers, no rounding. Noise is drawn
    exactly and rounded to the grid, ``x + round(T Z) = round(x + T Z)``, post-processing of the continuous mechanism,
    whose proof is in `admissible`. Clamping to the range is post-processing too. Not covered: how long the call takes.
    The event is black-box, "pure" or "approximate": the scale depends on the data, so this is not a Laplace or Gaussian
    release.

    Attributes:
        low: Lower end of the declared range.
        high: Upper end of the declared range.
        epsilon: Price of one median.
        delta: 0 for "cauchy".
        law: "cauchy" (pure), "laplace" or "gaussian" (with a delta).
        exponent: The g of heavy tails, as in `admissible`.
        steps: Grid steps of the range, 2 .. 2^30.
    """

    low: float
    high: float
    epsilon: float
    unit: Unit
    relation: Relation
    delta: float = 0.0
    law: Law = "cauchy"
    exponent: int = 2
    steps: int = 1 << 16

    def __post_init__(self) -> None:
        finite = all(isinstance(v, int | float) and math.isfinite(v) for v in (self.low, self.high))
        if not finite or not self.low < self.high or not math.isfinite(self.high - self.low):
            raise InputError(
                f"SmoothMedian: low = {self.low!r} must be below high = {self.high!r}, both and their distance finite."
            )
        if type(self.steps) is not int or not 2 <= self.steps <= _MOST_STEPS:
            raise InputError(f"SmoothMedian: steps = {self.steps!r} must be a whole number of 2 .. 2^30.")
        if self.beta < _LEAST_BETA:
            raise InputError(
                f"SmoothMedian: epsilon = {self.epsilon:g} at delta = {self.delta:g} leaves beta = {self.beta:.2g} "
                f"below {_LEAST_BETA:.2g}, where smooth sensitivity is nearly the global one. Raise epsilon or delta."
            )
        _ = self.event  # an unknown unit or relation is refused here

    @property
    def alpha(self) -> float:
        """The scale of the noise is S / alpha."""
        return admissible(self.law, self.epsilon, self.delta, self.exponent)[0]

    @property
    def beta(self) -> float:
        """How smooth S is."""
        return admissible(self.law, self.epsilon, self.delta, self.exponent)[1]

    @property
    def event(self) -> Event:
        """Price of one median."""
        if self.law == "cauchy":
            return Event("pure", self.unit, self.relation, pure_epsilon=self.epsilon)
        return Event("approximate", self.unit, self.relation, pure_epsilon=self.epsilon, delta=self.delta)

    @functools.cached_property
    def ladder(self) -> np.ndarray:
        """Return the scales in grid steps, int64, from the finest to one that hides the whole range."""
        factor = math.exp(self.beta) / _SAFE
        rungs = [math.ceil(1 / (factor - 1)) + 1]  # the first rung where one factor is at least one step
        while rungs[-1] * (self.alpha / _SAFE) < self.steps:
            rungs.append(math.floor(rungs[-1] * factor))
        return np.array(rungs, dtype=np.int64)

    def scales(self, values: Tensor) -> Tensor:
        """Return the scale of the noise in grid steps, (...), int64, for values (..., n): secret, as the values are."""
        rows, there = self._rows(values)
        reach = self.ladder * (self.alpha / _SAFE)
        best = np.zeros(len(rows), dtype=np.int64)
        for k in range(min(len(self.ladder), rows.shape[1] + 1)):
            gaps = _widest_gap(rows, there, k, 0.0, float(self.steps), self.relation)
            best = np.maximum(best, np.searchsorted(reach, gaps) - k)
        return torch.from_numpy(self.ladder[best].reshape(values.shape[:-1]))

    @own_state()
    def __call__(self, answer: Tensor, noise: Noise) -> Tensor:
        """Release the median of each row of values (..., n): (...), float64, in [low, high].

        A value beyond the range is clamped; NaN is a null record, and refused under replace-one.
        """
        scales = self.scales(answer).flatten()
        rows, there = self._rows(answer)
        center = _at(rows, there, ((there + 1) // 2)[:, None], 0.0, float(self.steps))[:, 0].astype(np.int64)
        drawn = torch.empty_like(scales)
        if self.law == "cauchy":
            drawn = heavy_tailed(scales, self.exponent, noise)
        else:
            draw = rounded_laplace if self.law == "laplace" else rounded_gaussian
            for scale in scales.unique().tolist():
                mine = scales == scale
                drawn[mine] = draw(scale, int(mine.sum()), noise)
        released = (torch.from_numpy(center) + drawn).clamp(0, self.steps).double()
        return self.low + (released / self.steps).reshape(answer.shape[:-1]) * (self.high - self.low)

    def _rows(self, values: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return `_ordered` of values (..., n) in whole steps; rounding is record by record."""
        if not values.is_floating_point() or values.ndim < 1 or values.shape[-1] < 1:
            raise ValueError(f"values must be floating point (..., n), got {values.dtype} {tuple(values.shape)}.")
        share = ((values.double().cpu() - self.low) / (self.high - self.low)).clamp(0, 1)
        return _ordered((share * self.steps).round(), 0.0, float(self.steps), self.relation)
