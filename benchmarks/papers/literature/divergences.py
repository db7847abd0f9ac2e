r"""Divergences of two discrete laws, as Dwork and Roth (2014, section 3.5.1) name them; nothing here charges anything.

A mechanism is epsilon-DP where `max_divergence` of its outputs on any two neighbors is at most epsilon both ways, and
(epsilon, delta)-DP where `approximate_max_divergence` is. The accountant works with the same notions, on grids, for
laws that are not discrete (`idpgan.privacy.losses`).

Laws are arrays (n,) of probabilities over the same n outcomes.
"""

from __future__ import annotations

import math

import numpy as np

from idpgan.errors import InputError

_ROUNDING = 1e-9


def _laws(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    laws = np.asarray(first, float), np.asarray(second, float)
    if laws[0].ndim != 1 or laws[0].shape != laws[1].shape:
        raise InputError(f"two laws over the same outcomes are needed, got {laws[0].shape} and {laws[1].shape}.")
    for law in laws:
        if not (np.all(law >= 0) and abs(law.sum() - 1) <= _ROUNDING):
            raise InputError(f"probabilities must be at least 0 and have the sum 1, got the sum {law.sum():.6g}.")
    return laws


def kl_divergence(first: np.ndarray, second: np.ndarray) -> float:
    """Return the mean privacy loss ``E[log P / Q]``, the outcome drawn from the first law; infinite where Q lacks one.

    Where both max divergences are at most epsilon it is at most ``epsilon (e^epsilon - 1)`` (lemma 3.18).

    Example:
        >>> round(kl_divergence([0.75, 0.25], [0.25, 0.75]), 4)
        0.5493
    """
    p, q = _laws(first, second)
    there = p > 0
    if np.any(q[there] == 0):
        return math.inf
    return float(np.sum(p[there] * np.log(p[there] / q[there])))


def max_divergence(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest privacy loss, ``max log P(S) / Q(S)`` over sets S of outcomes.

    Example:
        >>> round(max_divergence([0.75, 0.25], [0.25, 0.75]), 4)
        1.0986
    """
    return approximate_max_divergence(first, second, 0.0)


def approximate_max_divergence(first: np.ndarray, second: np.ndarray, delta: float) -> float:
    """Return ``max log (P(S) - delta) / Q(S)`` over sets S with ``P(S) > delta``, the least epsilon for this delta.

    The best set holds the outcomes of the largest ratios (Neyman and Pearson), so that n sets are looked at. The
    result is below 0 where the laws differ by less than delta.

    Example:
        >>> round(approximate_max_divergence([0.75, 0.25], [0.25, 0.75], 0.5), 4)
        0.0
    """
    p, q = _laws(first, second)
    if not 0 <= delta < 1:
        raise InputError(f"delta = {delta} must be in [0, 1).")
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.where(p > 0, p / q, 0.0), kind="stable")
        above, below = np.cumsum(p[order]) - delta, np.cumsum(q[order])
        ratios = np.log(above[above > 0] / below[above > 0])
    return float(ratios.max())


def statistical_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return ``max P(S) - Q(S)`` over sets S: the total variation distance.

    Example:
        >>> statistical_distance([0.75, 0.25], [0.25, 0.75])
        0.5
    """
    p, q = _laws(first, second)
    return float(np.clip(p - q, 0, None).sum())
