r"""From scores of members and non-members to numbers with intervals.

The area under the ROC curve is the probability that a member scores higher than a non-member, ties counted half. Its
interval is that of `DeLong, DeLong, Clarke-Pearson (1988) <https://doi.org/10.2307/2531595>`_ on the logit scale, by
the ranks of Sun and Xu (2014). Where one side beats the other in every pair DeLong's variance is 0 and says nothing:
there the n pairs (member i, non-member i), independent of each other, give ``AUC >= (alpha / 2)^(1/n)``, exactly.

Accuracy and precision are those of one threshold, chosen on one half of the scores and judged on the other, with
Clopper-Pearson intervals. Numbers are equal on both sides, so that a guess has accuracy and precision 1/2.

The true-positive rate at a false-positive rate a takes its threshold from the non-members alone. What is estimated is
the rate at the *true* threshold, ``t* = inf{t : P[non-member > t] <= a}``, which n non-members know only up to an
interval of their order statistics: the k-th highest is below t* with probability at most ``P[Bin(n, a) < k]``, and
above it with at most ``P[Bin(n, a) >= k]``. A quarter of alpha goes to each end of that interval, and one to each
Clopper-Pearson bound of the members' rate there; the rate falls with the threshold, so the four together cover it.
Nothing is assumed of the scores, ties included. Below log(alpha / 4) / log(1 - a) non-members (437 at a = 1 %, 4,380
at 0.1 %, 95 %) the lower end is 0: so few cannot show how rarely a non-member scores as high.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from idpgan.checks import typed
from idpgan.errors import InputError

Scores = Tensor | np.ndarray | Sequence[float]
Interval = tuple[float, float]
TOO_SMALL = "n too small"
#: false-positive rate -> non-members without which it is not reported
LEAST_NON_MEMBERS = {0.01: 100, 0.001: 10_000}


@dataclass(frozen=True)
class AttackResult:
    """How well scores tell members from non-members. Computed with private images: curator only.

    Attributes:
        auc: Area under the ROC curve; 0.5 is a guess, also for constant scores.
        auc_interval: Of `auc`, at `confidence`.
        accuracy: On the measuring half, at `threshold`.
        accuracy_interval: Of `accuracy`.
        precision: Members among those of the measuring half that were called members; None if nobody was.
        precision_interval: Of `precision`; (0, 1) if nobody was called a member.
        threshold: Chosen on the calibration half: "member" is said where the score is at least this.
        tpr_at_fpr: Highest true-positive rate at a false-positive rate of at most 0.01 and 0.001, by that rate; None
            where there are fewer non-members than `LEAST_NON_MEMBERS`: n too small.
        tpr_intervals: Of `tpr_at_fpr`, the threshold's own error included; None alike.
        num_members: Members, as many as non-members.
        confidence: Of each interval by itself.
        notes: What a reader has to know.
    """

    auc: float
    auc_interval: Interval
    accuracy: float
    accuracy_interval: Interval
    precision: float | None
    precision_interval: Interval
    threshold: float
    tpr_at_fpr: dict[float, float | None]
    tpr_intervals: dict[float, Interval | None]
    num_members: int
    confidence: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict; a rate that is not reported is the text "n too small"."""
        rates = {f"{rate:g}": TOO_SMALL if tpr is None else tpr for rate, tpr in self.tpr_at_fpr.items()}
        intervals = {f"{rate:g}": interval for rate, interval in self.tpr_intervals.items()}
        threshold = self.threshold if math.isfinite(self.threshold) else str(self.threshold)
        changed = {"tpr_at_fpr": rates, "tpr_intervals": intervals, "threshold": threshold}
        return {**dataclasses.asdict(self), **changed}


@typed
def evaluate_scores(members: Scores, non_members: Scores, *, confidence: float = 0.95) -> AttackResult:
    """Measure how well an attack's scores tell members from non-members.

    Args:
        members: (n,) scores of members, higher = more like a member. Infinite scores are allowed.
        non_members: (n,) scores of as many non-members from the same distribution.
        confidence: Of each interval, in (0, 1).

    Returns:
        AUC, accuracy, precision and true-positive rates, each with its interval; see the module.

    Raises:
        InputError: If a score is NaN, numbers differ or are below 2, or the confidence is out of range.

    Example:
        >>> result = evaluate_scores([3.0, 4.0, 5.0, 6.0], [0.0, 1.0, 2.0, 3.0])
        >>> round(result.auc, 3), result.tpr_at_fpr[0.001]
        (0.969, None)
    """
    positive, negative = _checked(members, "members"), _checked(non_members, "non-members")
    if len(positive) != len(negative):
        raise InputError(
            f"{len(positive)} members and {len(negative)} non-members: numbers must be equal, because accuracy and "
            "precision depend on their ratio. Take as many of each."
        )
    if len(positive) < 2:
        raise InputError("At least 2 members and 2 non-members are needed: one of each chooses the threshold.")
    if not 0 < confidence < 1:
        raise InputError(f"confidence = {confidence} must be in (0, 1).")
    alpha = 1 - confidence

    auc, auc_interval = _auc(positive, negative, alpha)
    # Scores come in an order that has nothing to do with their values: every other one calibrates.
    threshold = _best_threshold(positive[::2], negative[::2])
    judged = positive[1::2], negative[1::2]
    true_positives, false_positives = (int((side >= threshold).sum()) for side in judged)
    half, called = len(judged[0]), true_positives + false_positives
    right = true_positives + half - false_positives

    rates: dict[float, float | None] = dict.fromkeys(LEAST_NON_MEMBERS)
    intervals: dict[float, Interval | None] = dict.fromkeys(LEAST_NON_MEMBERS)
    notes = [] if called else ["no image of the measuring half was called a member: there is no precision"]
    for rate, least in LEAST_NON_MEMBERS.items():
        if len(negative) < least:
            notes.append(f"TPR at {rate:.1%} FPR: {TOO_SMALL} ({len(negative):,} non-members, {least:,} needed)")
            continue
        found = int((positive > _fpr_threshold(negative, rate)).sum())
        rates[rate], intervals[rate] = found / len(positive), _tpr_interval(positive, negative, rate, alpha)
        if len(negative) < math.log(alpha / 4) / math.log1p(-rate):
            notes.append(
                f"TPR at {rate:.1%} FPR: {len(negative):,} non-members cannot bound it from below, "
                f"{math.ceil(math.log(alpha / 4) / math.log1p(-rate)):,} can"
            )
    return AttackResult(
        auc=auc,
        auc_interval=auc_interval,
        accuracy=right / (2 * half),
        accuracy_interval=_binomial_interval(right, 2 * half, alpha),
        precision=true_positives / called if called else None,
        precision_interval=_binomial_interval(true_positives, called, alpha),
        threshold=threshold,
        tpr_at_fpr=rates,
        tpr_intervals=intervals,
        num_members=len(positive),
        confidence=confidence,
        notes=tuple(notes),
    )


@typed
def roc_curve(members: Scores, non_members: Scores) -> tuple[np.ndarray, np.ndarray]:
    """Return (false-positive rates, true-positive rates), both rising from 0 to 1, one point per distinct score.

    Raises:
        InputError: If a score is NaN, or one side is empty.
    """
    positive, negative = np.sort(_checked(members, "members")), np.sort(_checked(non_members, "non-members"))
    thresholds = np.unique(np.concatenate([positive, negative]))[::-1]
    rates = [1 - np.searchsorted(side, thresholds, side="left") / len(side) for side in (negative, positive)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


def _checked(scores: Scores, what: str) -> np.ndarray:
    """Return scores as float64 (n,), or refuse them."""
    try:
        values = scores.detach().cpu().numpy() if isinstance(scores, Tensor) else np.asarray(scores)
    except (TypeError, ValueError) as error:  # rows of different lengths
        raise InputError(f"The scores of the {what} must be one number per image ({error}).") from error
    if values.ndim != 1 or len(values) == 0:
        raise InputError(f"The scores of the {what} must be one number per image, got the shape {values.shape}.")
    if values.dtype.kind not in "biuf":
        raise InputError(f"The scores of the {what} must be numbers, got {values.dtype}.")
    values = values.astype(np.float64)
    if np.isnan(values).any():
        raise InputError(
            f"{int(np.isnan(values).sum())} of {len(values)} scores of the {what} are NaN. An attack that diverged "
            "says nothing about privacy: mend it, or leave it out."
        )
    return values


def _auc(positive: np.ndarray, negative: np.ndarray, alpha: float) -> tuple[float, Interval]:
    """Return AUC and DeLong's interval on the logit scale; see the module for the degenerate case."""
    from scipy.stats import norm, rankdata

    n = len(positive)
    ranks = rankdata(np.concatenate([positive, negative]))  # mid-ranks: a tie counts half
    # Per member, the share of non-members below it; per non-member, the share of members above it.
    above = (ranks[:n] - rankdata(positive)) / n
    below = 1 - (ranks[n:] - rankdata(negative)) / n
    auc = float(above.mean())
    variance = (above.var(ddof=1) + below.var(ddof=1)) / n
    if auc in (0.0, 1.0):
        bound = (alpha / 2) ** (1 / n)
        return auc, (bound, 1.0) if auc == 1.0 else (0.0, 1 - bound)
    logit = math.log(auc / (1 - auc))
    spread = norm.isf(alpha / 2) * math.sqrt(variance) / (auc * (1 - auc))
    return auc, (_sigmoid(logit - spread), _sigmoid(logit + spread))


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0


def _best_threshold(positive: np.ndarray, negative: np.ndarray) -> float:
    """Return the score from which on calling everything a member is most often right; the lowest of equal ones."""
    candidates = np.unique(np.concatenate([positive, negative]))
    hits = len(positive) - np.searchsorted(np.sort(positive), candidates, side="left")
    alarms = len(negative) - np.searchsorted(np.sort(negative), candidates, side="left")
    return float(candidates[np.argmax(hits - alarms)])


def _fpr_threshold(negative: np.ndarray, rate: float) -> float:
    """Return the lowest score that at most ``rate`` of the non-members exceed."""
    allowed = math.floor(rate * len(negative) + 1e-9)
    return float(np.sort(negative)[::-1][allowed])


def _tpr_interval(positive: np.ndarray, negative: np.ndarray, rate: float, alpha: float) -> Interval:
    """Return the interval of the members' rate above the true threshold of a false-positive rate; see the module."""
    from scipy.stats import binom

    n, highest = len(negative), np.sort(negative)[::-1]
    # Largest k with P[Bin(n, rate) <= k - 1] <= alpha / 4, and smallest with P[Bin(n, rate) >= k] <= alpha / 4.
    counts = np.arange(n + 1)
    strict = int(np.searchsorted(binom.cdf(counts, n, rate), alpha / 4, side="right"))
    loose = int(np.argmax(np.append(binom.sf(counts - 1, n, rate), 0.0) <= alpha / 4))
    high_threshold = highest[strict - 1] if strict else math.inf
    low_threshold = highest[loose - 1] if loose <= n else -math.inf
    surely, perhaps = (int((positive > threshold).sum()) for threshold in (high_threshold, low_threshold))
    if loose > n:
        perhaps = len(positive)
    # Each end has alpha / 4 of its own: the two-sided interval at alpha / 2.
    low, _ = _binomial_interval(surely, len(positive), alpha / 2)
    _, high = _binomial_interval(perhaps, len(positive), alpha / 2)
    return low, high


def _binomial_interval(successes: int, trials: int, alpha: float) -> Interval:
    """Return the two-sided Clopper-Pearson interval; (0, 1) without trials."""
    from scipy.special import betaincinv

    low = betaincinv(successes, trials - successes + 1, alpha / 2) if successes else 0.0
    high = betaincinv(successes + 1, trials - successes, 1 - alpha / 2) if successes < trials else 1.0
    return float(low), float(high)
