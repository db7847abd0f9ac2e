r"""Noise on the nodes of a tree: every node has its own rational scale, and one exact sampler serves them all.

With ``g`` geometric, ``P(g) ~ exp(-g / T)``, the whole part y of g / s has ``P(y) ~ exp(-y s / T)``, and a random sign
makes it discrete Laplace noise of scale T / s (Canonne, Kamath, Steinke 2020, Algorithm 2). T is fixed and s differs by
node.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from idpgan.continual import fenwick
from idpgan.errors import InputError
from idpgan.privacy.discrete import discrete_laplace
from idpgan.privacy.event import Event
from idpgan.privacy.noise import Noise

_FINEST = 1 << 50  # T for epsilon up to 4; less for more, so that budgets stay below 2^52
_LEAST_BUDGET = 1 << 20  # the smallest of 10^6 shares is 1 % of the budget: rounding costs it 0.01 %


class NodeNoise:
    """Discrete Laplace noise of scale ``T / s_p`` grid steps on node p, for a whole budget of the s_p.

    Formal guarantee: pure ``event.pure`` <= epsilon for all releases with this noise together, if one event moves by at
    most ``moved`` steps a set of nodes whose s_p sum to at most ``budget``. Proof: the log-density moves by ``moved s_p
    / T`` for each node of the set, together at most ``moved budget / T``, and ``budget = floor(event.pure T / moved)``
    in rational arithmetic.

    Attributes:
        event: What all releases together cost.
        scale: T, a power of two.
        budget: Largest sum of the s_p of one event's nodes.
    """

    def __init__(self, epsilon: float, moved: int) -> None:
        """Find T and the budget for an event that moves each of its nodes by ``moved`` steps.

        Raises:
            InputError: If epsilon is out of the range that whole numbers of 52 bits can hold.
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
    while 1 / multiplier > epsilon:  # a rounding step
        multiplier = math.nextafter(multiplier, math.inf)
    return Event("discrete-laplace", *fenwick.ADJACENCY, multiplier, sensitivity=1)
