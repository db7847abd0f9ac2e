"""Intervals where several scores belong to one person: the cluster bootstrap, people drawn with replacement.

Images of one person resemble each other, so 1,000 images of 100 people say less than 1,000 people do. What a mean over
images varies by is taken from means over people drawn again (Field and Welsh, Bootstrapping clustered data, 2007).
A proportion gets the Clopper-Pearson interval of as many independent images as would vary like that, corrected by
Student's t for few people (Korn and Graubard, Confidence intervals for proportions with small expected number of
positive counts estimated from survey data, 1998); a proportion of 0 or 1, which does not vary, that of the people.
"""

from __future__ import annotations

import math

import numpy as np

_REPLICATES = 1000
_BLOCK = 1 << 22  # weights at once
_SEED = 20_240_117  # of the replicates: equal scores have equal intervals


class People:
    """The scores of one side, with the people that they belong to.

    Args:
        groups: (n,) whole numbers, equal for images of one person.

    Attributes:
        person: (n,) people numbered in the order in which they appear.
    """

    def __init__(self, groups: np.ndarray, stream: int) -> None:
        _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
        self.person = np.argsort(np.argsort(first))[inverse]
        self.num = len(first)
        draws = np.random.default_rng((_SEED, stream)).multinomial(
            self.num, np.full(self.num, 1 / self.num), _REPLICATES
        )
        self.draws = draws.astype(np.float64)  # (replicates, people): how often each person is drawn

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of values (n,) over the images of each replicate, (replicates,)."""
        return np.asarray(self.draws @ np.bincount(self.person, weights=values, minlength=self.num))

    def rates(self, hits: np.ndarray) -> np.ndarray:
        """Return the share of hits (n,) among the images of each replicate, (replicates,)."""
        return self.sums(hits.astype(np.float64)) / self.sums(np.ones(len(self.person)))


def auc_spread(positive: np.ndarray, negative: np.ndarray, members: People, others: People) -> float:
    """Return the standard deviation of the area under the ROC curve over the replicates."""
    order = np.argsort(negative, kind="stable")
    low, high = (np.searchsorted(negative[order], positive, side=side) for side in ("left", "right"))
    areas = []
    rows = max(1, _BLOCK // (len(positive) + len(negative)))
    for start in range(0, _REPLICATES, rows):
        block = slice(start, start + rows)
        below = np.cumsum(others.draws[block][:, others.person[order]], axis=1)  # (rows, non-members)
        below = np.concatenate([np.zeros((len(below), 1)), below], axis=1)
        weights = members.draws[block][:, members.person]
        beaten = (weights * (below[:, low] + below[:, high])).sum(1) / 2  # a tie counts half
        areas.append(beaten / (weights.sum(1) * below[:, -1]))
    return float(np.concatenate(areas).std(ddof=1))


def student(alpha: float, people: int) -> float:
    """Return the two-sided quantile of Student's t where so many people vary."""
    from scipy.stats import t

    return float(t.isf(alpha / 2, max(people - 1, 1)))


def effective(rate: float, replicates: np.ndarray, images: int, people: int, alpha: float) -> float:
    """Return how many independent images would show a rate as exactly as these do, in [1, images].

    Args:
        rate: What was found.
        replicates: The same rate in each replicate; NaN where there was nothing to count.
        images: How many images the rate was counted over.
        people: How many people these belong to.
        alpha: 1 - confidence of the interval.
    """
    from scipy.stats import norm

    if rate in (0.0, 1.0):
        return float(max(people, 1))
    known = replicates[~np.isnan(replicates)]
    variance = known.var(ddof=1) if len(known) > 1 else math.inf
    if variance == 0:
        return float(images)
    shrunk = (norm.isf(alpha / 2) / student(alpha, people)) ** 2
    return float(np.clip(shrunk * rate * (1 - rate) / variance, 1.0, images))
