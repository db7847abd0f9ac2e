r"""Exact samplers of discrete noise: integers only, no floating point between the random bits and the answer.

Canonne, Kamath, Steinke 2020, "The Discrete Gaussian for Differential Privacy", Algorithms 1-3, batched: every loop
below runs over *rounds*, in each of which the not yet finished entries of the whole batch are drawn at once. Scales
are whole numbers of grid steps, which keeps every fraction exact in 64 bits.
"""

from __future__ import annotations

import numpy as np
import torch

from idpgan.privacy.noise import Noise

MAX_LAPLACE_SCALE = 1 << 50
MAX_GAUSSIAN_SCALE = 1 << 27  # 2 scale^2 times a few rounds must stay below 2^62


def _integers(below: int, count: int, noise: Noise) -> np.ndarray:
    return noise.integers(below, (count,)).numpy()


def _bernoulli_exp_fraction(numerator: np.ndarray, denominator: int, noise: Noise) -> np.ndarray:
    """Return Bernoulli(exp(-numerator / denominator)), 0 <= numerator <= denominator, (n,) bool. Algorithm 1."""
    result = np.zeros(len(numerator), dtype=bool)
    active = np.arange(len(numerator))
    k = 0
    while len(active):  # k = 1, 2, ...: go on with probability gamma / k; the parity of the last k is the answer
        k += 1
        goes_on = _integers(denominator * k, len(active), noise) < numerator[active]
        result[active[~goes_on]] = k % 2 == 1
        active = active[goes_on]
    return result


def bernoulli_exp(numerator: np.ndarray, denominator: int, noise: Noise) -> np.ndarray:
    """Draw Bernoulli(exp(-gamma)) for gamma = numerator / denominator >= 0, exactly. Algorithm 1.

    Args:
        numerator: int64 (n,), >= 0.
        denominator: Whole number >= 1; the product with about 40 must stay below 2^62.
        noise: Source of random integers.

    Returns:
        bool (n,).
    """
    result = _bernoulli_exp_fraction(numerator % denominator, denominator, noise)
    whole = numerator // denominator  # exp(-gamma) = exp(-1)^whole * exp(-fraction)
    (active,) = np.nonzero(result & (whole > 0))
    while len(active):
        survives = _bernoulli_exp_fraction(np.ones(len(active), dtype=np.int64), 1, noise)
        result[active[~survives]] = False
        whole[active] -= 1
        active = active[survives & (whole[active] > 0)]
    return result


def _geometric(count: int, noise: Noise) -> np.ndarray:
    """Return the number of successes of Bernoulli(exp(-1)) before the first failure, int64 (count,)."""
    result = np.zeros(count, dtype=np.int64)
    active = np.arange(count)
    while len(active):
        active = active[_bernoulli_exp_fraction(np.ones(len(active), dtype=np.int64), 1, noise)]
        result[active] += 1
    return result


def discrete_laplace(scale: int, count: int, noise: Noise) -> torch.Tensor:
    """Draw from P(x) ~ exp(-|x| / scale) on the integers, exactly. Algorithm 2.

    Args:
        scale: Whole number of grid steps, 1 .. 2^50.
        count: Number of independent draws.
        noise: Source of random integers.

    Returns:
        int64 (count,) on the CPU.

    Raises:
        ValueError: If ``scale`` is out of range.
    """
    if not 1 <= scale <= MAX_LAPLACE_SCALE:
        raise ValueError(f"discrete Laplace scale = {scale} grid steps must lie in 1 .. 2^50; choose a coarser grid.")
    return torch.from_numpy(_discrete_laplace(scale, count, noise))


def _discrete_laplace(scale: int, count: int, noise: Noise) -> np.ndarray:
    result = np.empty(count, dtype=np.int64)
    pending = np.arange(count)
    while len(pending):
        remainder = _integers(scale, len(pending), noise)
        (kept,) = np.nonzero(_bernoulli_exp_fraction(remainder, scale, noise))
        magnitude = remainder[kept] + scale * _geometric(len(kept), noise)
        negative = _integers(2, len(kept), noise).astype(bool)
        accepted = ~(negative & (magnitude == 0))  # zero must not be counted twice
        result[pending[kept[accepted]]] = np.where(negative, -magnitude, magnitude)[accepted]
        pending = np.delete(pending, kept[accepted])
    return result


def discrete_gaussian(scale: int, count: int, noise: Noise) -> torch.Tensor:
    r"""Draw from P(x) ~ exp(-x^2 / (2 scale^2)) on the integers, exactly. Algorithm 3 with t = scale.

    A discrete Laplace proposal y of scale t = sigma is kept with probability exp(-(|y| - sigma)^2 / (2 sigma^2)).

    Args:
        scale: sigma, a whole number of grid steps, 1 .. 2^27. The standard deviation is at most sigma.
        count: Number of independent draws.
        noise: Source of random integers.

    Returns:
        int64 (count,) on the CPU.

    Raises:
        ValueError: If ``scale`` is out of range.
    """
    if not 1 <= scale <= MAX_GAUSSIAN_SCALE:
        raise ValueError(f"discrete Gaussian scale = {scale} grid steps must lie in 1 .. 2^27; choose a coarser grid.")
    result = np.empty(count, dtype=np.int64)
    pending = np.arange(count)
    while len(pending):
        proposal = _discrete_laplace(scale, len(pending), noise)
        # 20 sigma away a proposal is kept with probability < 2^-288; the clamp keeps the square within 64 bits.
        distance = np.minimum(np.abs(proposal) - scale, 20 * scale)
        kept = bernoulli_exp(distance * distance, 2 * scale * scale, noise)
        result[pending[kept]] = proposal[kept]
        pending = pending[~kept]
    return torch.from_numpy(result)
