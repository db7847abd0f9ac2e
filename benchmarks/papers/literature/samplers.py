"""Exact samplers of the noise of `smooth_sensitivity`: whole numbers only, as `idpgan.privacy.discrete`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from idpgan.privacy.discrete import MAX_SCALE, discrete_laplace
from idpgan.privacy.noise import Noise

_BITS = 62  # random bits of a digit
_FARTHEST = 1 << 60  # larger numbers are moved here: post-processing


def rounded_laplace(scale: int, count: int, noise: Noise) -> torch.Tensor:
    """Draw round(scale * Z), Z Laplace of scale 1, exactly: int64 (count,); ``scale`` as in `discrete_laplace`.

    Either side of the discrete law of scale 2 scale is ``floor(2 scale E)``, E exponential; half of that rounds.
    """
    halves = discrete_laplace(2 * scale, count, noise)
    magnitude = (torch.where(halves >= 0, halves, -halves - 1) + 1) // 2
    return magnitude * (1 - 2 * noise.integers(2, (count,)))


def heavy_tailed(scales: torch.Tensor, exponent: int, noise: Noise) -> torch.Tensor:
    """Draw round(scale * Z), Z of density ~ 1 / (1 + |z|^exponent), exactly, one per scale.

    |Z| is proposed as U or 1 / U with equal chance, of density ~ min(1, 1 / z^2), and kept if a second uniform number
    lies below the ratio of the densities. Both are known by their first digits; more are drawn until they decide.

    Args:
        scales: (n,) int64, each 1 .. 2^50.
        exponent: >= 2; 2 is Cauchy's law.

    Returns:
        int64 (n,) on the CPU, at most 2^60 in size.
    """
    if not bool(((scales >= 1) & (scales <= MAX_SCALE)).all()) or exponent < 2:
        raise ValueError("scales must be 1 .. 2^50 grid steps, and the exponent at least 2.")
    some = 4 * len(scales) + 4  # digits at once, uniform on 0 .. 2^62 - 1
    digits = (digit for _ in itertools.count() for digit in noise.integers(1 << _BITS, (some,)).tolist())
    drawn = [_heavy_tailed(scale, exponent, digits) for scale in scales.tolist()]
    return torch.tensor(drawn, dtype=torch.int64)


def _heavy_tailed(scale: int, exponent: int, digits: Iterator[int]) -> int:
    """Draw one number; ``low`` and ``high`` are the least and the largest that it may round to by the known digits."""
    while True:
        coins, bits = next(digits), _BITS
        u, v = next(digits), next(digits)
        while True:  # the uniform numbers lie in [u, u + 1) / one and [v, v + 1) / one
            one = 1 << bits
            power = one**exponent
            if coins & 1:  # the tail: kept where V (1 + U^g) < U^(g - 2), and rounded from scale / U
                kept_below, lost_above = u ** (exponent - 2) * one**3, (u + 1) ** (exponent - 2) * one**3
                low = (2 * scale * one + u + 1) // (2 * (u + 1))
                high = (2 * scale * one + u) // (2 * u) if u else low + 1
                low, high = min(low, _FARTHEST), _FARTHEST if low >= _FARTHEST else high
            else:  # kept where V (1 + U^g) < 1, and rounded from scale U
                kept_below = lost_above = power * one
                low = (2 * scale * u + one) // (2 * one)
                high = -(-(2 * scale * (u + 1) + one) // (2 * one)) - 1
            if v * (power + u**exponent) >= lost_above:
                break
            if (v + 1) * (power + (u + 1) ** exponent) <= kept_below and low == high:
                return low if coins & 2 else -low
            u, v, bits = u << _BITS | next(digits), v << _BITS | next(digits), bits + _BITS
