r"""From scores of members and non-members to numbers with intervals.

The area under the ROC curve is the probability that a member scores higher than a non-member, ties counted half. Its
interval is that of `DeLong, DeLong, Clarke-Pearson (1988) <https://doi.org/10.2307/2531595>`_ on the logit scale, by
the ranks of Sun and Xu (2014). Where one side beats the other in every pair DeLong's variance is 0 and says nothing:
there the n pairs (member i, non-member i), independent of each other, give ``AUC >= (alpha / 2)^(1/n)``, exactly.

Accuracy and precision are those of one threshold, chosen on one half of the scores and judged on the other, with
Clopper-Pearson intervals. There are as many members as non-members, so that a guess has accuracy and precision 1/2.

The true-positive rate at a false-positive rate a takes its threshold from the non-members alone. What is estimated is
the rate at the *true* threshold, ``t* = inf{t : P[non-member > t] <= a}``, which n non-members know only up to an
interval of their order statistics: the k-th highest is below t* with probability at most ``P[Bin(n, a) < k]``, and
above it with at most ``P[Bin(n, a) >= k]``. A quarter of alpha goes to each end of that interval, and another to each
Clopper-Pearson bound of the members' rate there; the rate falls with the threshold, so the four together cover it. The
scores need no assumptions; ties are allowed. Below log(alpha / 4) / log(1 - a) non-members (437 at a = 1 %, 4,380 at
0.1 %, 95 %) the lower end is 0: so few non-members cannot show how rarely one scores as high.

Where images belong to people (`member_groups`), all of this holds for people instead of images: intervals are those of
a cluster bootstrap (people drawn with replacement), every other *person* calibrates, and accuracy and precision are at
even odds, whatever the numbers of images in the measuring half. Images of one person resemble each other, so 1,000
images of 100 people say less than 1,000 people do. The variance of a mean over images is that of means over resampled
people (Field and Welsh, Bootstrapping clustered data, 2007). A proportion gets the Clopper-Pearson interval of the
number of independent images with that variance, corrected by Student's t for few people (Korn and Graubard, Confidence
intervals for proportions with small expected number of positive counts estimated from survey data, 1998); a proportion
of 0 or 1, which does not vary, gets the interval for the number of people.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from idpgan.checks import described
from idpgan.errors import InputError

Scores = Tensor | np.ndarray | Sequence[float]
Groups = Tensor | np.ndarray | Sequence[int]
Interval = tuple[float, float]
TOO_SMALL = "n too small"
#: false-positive rate -> non-members without which it is not reported
LEAST_NON_MEMBERS = {0.01: 100, 0.001: 10_000}
_REPLICATES = 1000
_BLOCK = 1 << 22  # weights at once
_SEED = 20_240_117  # of the replicates: equal scores have equal intervals


@dataclass(frozen=True)
class AttackResult:
    """How well scores tell members from non-members. Computed with private images: curator only.

    Attributes:
        auc: Area under the ROC curve; 0.5 is a guess, also for constant scores.
        auc_interval: Interval of `auc` at `confidence`.
        accuracy: Accuracy on the measuring half at `threshold`.
        accuracy_interval: Interval of `accuracy`.
        precision: Members among those of the measuring half that were called members; None if no image was.
        precision_interval: Interval of `precision`; (0, 1) if no image was called a member.
        threshold: Chosen on the calibration half: "member" is said where the score is at least this.
        tpr_at_fpr: Highest true-positive rate at a false-positive rate of at most 0.01 and 0.001, by that rate; None
            where there are fewer non-members than `LEAST_NON_MEMBERS`: n too small.
        tpr_intervals: Intervals of `tpr_at_fpr`, with the error of the threshold included; None in the same cases.
        num_members: Members, as many as non-members.
        confidence: Confidence of each interval by itself.
        notes: What a reader has to know.
        num_people: People among members and among non-members; None where images were treated as independent.
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
    num_people: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict; a rate that is not reported is the text "n too small"."""
        rates = {f"{rate:g}": TOO_SMALL if tpr is None else tpr for rate, tpr in self.tpr_at_fpr.items()}
        intervals = {f"{rate:g}": interval for rate, interval in self.tpr_intervals.items()}
        threshold = self.threshold if math.isfinite(self.threshold) else str(self.threshold)
        changed = {"tpr_at_fpr": rates, "tpr_intervals": intervals, "threshold": threshold}
        return {**dataclasses.asdict(self), **changed}


def evaluate_scores(
    members: Scores,
    non_members: Scores,
    *,
    confidence: float = 0.95,
    member_groups: Groups | None = None,
    non_member_groups: Groups | None = None,
) -> AttackResult:
    """Measure how well an attack's scores tell members from non-members; see the module.

    Args:
        members: (n,) scores, higher = more like a member. Infinite scores are allowed.
        non_members: (n,) scores of as many non-members from the same distribution.
        confidence: Confidence of each interval, in (0, 1).
        member_groups: (n,) whole numbers, the person on each member's image; None where images are independent.
        non_member_groups: The same for the non-members, who are other people.

    Raises:
        InputError: If a score is NaN, numbers differ or are below 2, the confidence is out of range, or groups are
            given for one side only, or a person is on both sides.

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
    people = _people(member_groups, non_member_groups, len(positive))

    auc, auc_interval = _auc(positive, negative, alpha, people)
    judge = _judged if people is None else functools.partial(_judged_by_person, people=people)
    threshold, accuracy, accuracy_interval, precision, precision_interval = judge(positive, negative, alpha)
    notes = (
        [] if precision is not None else ["no image of the measuring half was called a member: there is no precision"]
    )
    rates, intervals, missing = _tpr_at_fpr(positive, negative, alpha, people)
    return AttackResult(
        auc=auc,
        auc_interval=auc_interval,
        accuracy=accuracy,
        accuracy_interval=accuracy_interval,
        precision=precision,
        precision_interval=precision_interval,
        threshold=threshold,
        tpr_at_fpr=rates,
        tpr_intervals=intervals,
        num_members=len(positive),
        confidence=confidence,
        notes=(*notes, *missing),
        num_people=None if people is None else (people[0].num, people[1].num),
    )


def roc_curve(members: Scores, non_members: Scores) -> tuple[np.ndarray, np.ndarray]:
    """Return (false-positive rates, true-positive rates), both rising from 0 to 1, one point per distinct score.

    Raises:
        InputError: If a score is NaN, or one side is empty.
    """
    positive, negative = np.sort(_checked(members, "members")), np.sort(_checked(non_members, "non-members"))
    thresholds = np.unique(np.concatenate([positive, negative]))[::-1]
    rates = [1 - np.searchsorted(side, thresholds, side="left") / len(side) for side in (negative, positive)]
    return np.concatenate([[0.0], rates[0]]), np.concatenate([[0.0], rates[1]])


def thinned_curve(members: Scores, non_members: Scores, most: int = 200) -> list[tuple[float, float]]:
    """Return at most ``most`` points (false-positive rate, true-positive rate) of `roc_curve`, for a drawing.

    The false-positive rates are spread evenly on a logarithmic scale. Each point lies on the curve: between two of them
    the curve is nowhere below the first.
    """
    false, true = roc_curve(members, non_members)
    wanted = np.concatenate([[0.0], np.geomspace(1 / max(len(non_members), 2), 1.0, most - 1)])
    index = np.unique(np.searchsorted(false, wanted * (1 + 1e-9), side="right") - 1)
    return [(round(float(false[i]), 6), round(float(true[i]), 6)) for i in index]


def _checked(scores: Scores, what: str) -> np.ndarray:
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


_Judged = tuple[float, float, Interval, float | None, Interval]  # threshold, accuracy, precision with intervals


def _people(members: Groups | None, others: Groups | None, num: int) -> tuple[People, People] | None:
    if members is None or others is None:
        if members is not None or others is not None:
            raise InputError("Groups were given for one side only. Give the people of members and of non-members.")
        return None
    sides = []
    for groups, what in ((members, "member_groups"), (others, "non_member_groups")):
        values = groups.detach().cpu().numpy() if isinstance(groups, Tensor) else np.asarray(groups)
        if values.shape != (num,) or values.dtype.kind not in "iu":
            raise InputError(f"{what} must be one whole number per image, ({num},), got {described(values)}.")
        sides.append(values)
    both = np.intersect1d(sides[0], sides[1])
    if len(both):
        raise InputError(
            f"{len(both)} people, the first number {both[0]}, are among members and non-members. An attack on people "
            "needs non-members who are nobody's member: split by identity."
        )
    people = People(sides[0], 0), People(sides[1], 1)
    if min(side.num for side in people) < 2:
        raise InputError(
            "At least 2 people are needed on each side, one of whom chooses the threshold, and there are "
            f"{people[0].num} and {people[1].num}. Take images of more people, or in a new run a larger "
            "data.holdout_share."
        )
    return people


def _judged(positive: np.ndarray, negative: np.ndarray, alpha: float) -> _Judged:
    """Choose a threshold on every other image, and judge it on the rest."""
    # The order of the scores is independent of their values: every other score calibrates.
    threshold = _best_threshold(positive[::2], negative[::2])
    judged = positive[1::2], negative[1::2]
    true_positives, false_positives = (int((side >= threshold).sum()) for side in judged)
    half, called = len(judged[0]), true_positives + false_positives
    right = true_positives + half - false_positives
    return (
        threshold,
        right / (2 * half),
        binomial_interval(right, 2 * half, alpha),
        true_positives / called if called else None,
        binomial_interval(true_positives, called, alpha),
    )


def _judged_by_person(
    positive: np.ndarray, negative: np.ndarray, alpha: float, *, people: tuple[People, People]
) -> _Judged:
    """Choose a threshold on every other person, and judge it on the others, at even odds."""
    measuring = [side.person % 2 == 1 for side in people]
    threshold = _best_threshold(positive[~measuring[0]], negative[~measuring[1]])
    halves = [People(side.person[half], 2) for side, half in zip(people, measuring, strict=True)]
    halves[1] = People(people[1].person[measuring[1]], 3)
    hits = [scores[half] >= threshold for scores, half in zip((positive, negative), measuring, strict=True)]
    rates = [float(side.mean()) for side in hits]
    replicates = [side.rates(hit) for side, hit in zip(halves, hits, strict=True)]

    accuracy = (1 + rates[0] - rates[1]) / 2
    images, persons = len(hits[0]) + len(hits[1]), halves[0].num + halves[1].num
    trials = effective(accuracy, (1 + replicates[0] - replicates[1]) / 2, images, persons, alpha)
    interval = binomial_interval(accuracy * trials, trials, alpha)
    if not sum(rates):
        return threshold, accuracy, interval, None, (0.0, 1.0)
    precision, called = rates[0] / sum(rates), [side.person[hit] for side, hit in zip(halves, hits, strict=True)]
    persons = sum(len(np.unique(side)) for side in called)
    with np.errstate(invalid="ignore"):  # a replicate in which no image is called a member
        again = replicates[0] / (replicates[0] + replicates[1])
    trials = effective(precision, again, sum(map(len, called)), persons, alpha)
    return threshold, accuracy, interval, precision, binomial_interval(precision * trials, trials, alpha)


def _tpr_at_fpr(
    positive: np.ndarray, negative: np.ndarray, alpha: float, people: tuple[People, People] | None
) -> tuple[dict[float, float | None], dict[float, Interval | None], list[str]]:
    """Return true-positive rates by false-positive rate, their intervals, and notes on rates without enough scores."""
    independent = len(negative) if people is None else people[1].num
    what = "non-members" if people is None else "people among the non-members"
    rates: dict[float, float | None] = dict.fromkeys(LEAST_NON_MEMBERS)
    intervals: dict[float, Interval | None] = dict.fromkeys(LEAST_NON_MEMBERS)
    notes = []
    for rate, least in LEAST_NON_MEMBERS.items():
        if independent < least:
            notes.append(f"TPR at {rate:.1%} FPR: {TOO_SMALL} ({independent:,} {what}, {least:,} needed)")
            continue
        caught = int((positive > _fpr_threshold(negative, rate)).sum())
        rates[rate], intervals[rate] = caught / len(positive), _tpr_interval(positive, negative, rate, alpha, people)
        if independent < math.log(alpha / 4) / math.log1p(-rate):
            notes.append(
                f"TPR at {rate:.1%} FPR: {independent:,} {what} cannot bound it from below, "
                f"{math.ceil(math.log(alpha / 4) / math.log1p(-rate)):,} can"
            )
    return rates, intervals, notes


def _auc(
    positive: np.ndarray, negative: np.ndarray, alpha: float, people: tuple[People, People] | None
) -> tuple[float, Interval]:
    """Return AUC and its interval on the logit scale, DeLong's or by person; see the module for the degenerate case."""
    from scipy.stats import norm, rankdata

    n = len(positive)
    ranks = rankdata(np.concatenate([positive, negative]))  # mid-ranks: a tie counts half
    # Per member, the share of non-members below it; per non-member, the share of members above it.
    above = (ranks[:n] - rankdata(positive)) / n
    below = 1 - (ranks[n:] - rankdata(negative)) / n
    auc = float(above.mean())
    variance = (above.var(ddof=1) + below.var(ddof=1)) / n
    if auc in (0.0, 1.0):
        bound = (alpha / 2) ** (1 / (n if people is None else min(side.num for side in people)))
        return auc, (bound, 1.0) if auc == 1.0 else (0.0, 1 - bound)
    logit = math.log(auc / (1 - auc))
    deviations = norm.isf(alpha / 2) * math.sqrt(variance)
    if people is not None:
        deviations = auc_spread(positive, negative, *people) * student(alpha, min(side.num for side in people))
    spread = deviations / (auc * (1 - auc))
    low, high = (1 / (1 + math.exp(-end)) if end > -700 else 0.0 for end in (logit - spread, logit + spread))
    return auc, (low, high)


def _best_threshold(positive: np.ndarray, negative: np.ndarray) -> float:
    """Return the threshold with the highest accuracy; the lowest of equally good ones."""
    candidates = np.unique(np.concatenate([positive, negative]))
    hits = len(positive) - np.searchsorted(np.sort(positive), candidates, side="left")
    alarms = len(negative) - np.searchsorted(np.sort(negative), candidates, side="left")
    return float(candidates[np.argmax(hits - alarms)])


def _fpr_threshold(negative: np.ndarray, rate: float) -> float:
    """Return the lowest score that at most ``rate`` of the non-members exceed."""
    allowed = math.floor(rate * len(negative) + 1e-9)
    return float(np.sort(negative)[::-1][allowed])


def _tpr_interval(
    positive: np.ndarray, negative: np.ndarray, rate: float, alpha: float, people: tuple[People, People] | None = None
) -> Interval:
    """Return the interval of the members' rate above the true threshold of a false-positive rate; see the module."""
    from scipy.stats import binom

    threshold, highest = _fpr_threshold(negative, rate), np.sort(negative)[::-1]
    trials, n = float(len(positive)), len(negative)
    if people is not None:  # the number of independent images with the same variance
        trials, others = (
            effective(float((scores > threshold).mean()), side.rates(scores > threshold), len(scores), side.num, alpha)
            for scores, side in zip((positive, negative), people, strict=True)
        )
        n = math.floor(others)
    # Largest k with P[Bin(n, rate) <= k - 1] <= alpha / 4, and smallest with P[Bin(n, rate) >= k] <= alpha / 4.
    counts = np.arange(n + 1)
    strict = int(np.searchsorted(binom.cdf(counts, n, rate), alpha / 4, side="right"))
    loose = int(np.argmax(np.append(binom.sf(counts - 1, n, rate), 0.0) <= alpha / 4))
    repeats = len(negative) / n  # ranks among all images, from those among independent ones
    high_threshold = highest[math.floor(strict * repeats) - 1] if strict else math.inf
    low_threshold = highest[math.ceil(loose * repeats) - 1] if loose <= n else -math.inf
    surely, perhaps = (int((positive > threshold).sum()) for threshold in (high_threshold, low_threshold))
    if loose > n:
        perhaps = len(positive)
    # Each end has alpha / 4 of its own: the two-sided interval at alpha / 2.
    share = trials / len(positive)
    low, _ = binomial_interval(surely * share, trials, alpha / 2)
    _, high = binomial_interval(perhaps * share, trials, alpha / 2)
    return low, high


def binomial_interval(successes: float, trials: float, alpha: float) -> Interval:
    """Return the two-sided Clopper-Pearson interval; (0, 1) without trials."""
    from scipy.special import betaincinv

    low = betaincinv(successes, trials - successes + 1, alpha / 2) if successes else 0.0
    high = betaincinv(successes + 1, trials - successes, 1 - alpha / 2) if successes < trials else 1.0
    return float(low), float(high)


# Intervals where several scores belong to one person ---------------------------------------------------------------


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
    step = max(1, _BLOCK // (len(positive) + len(negative)))
    for start in range(0, _REPLICATES, step):
        block = slice(start, start + step)
        below = np.cumsum(others.draws[block][:, others.person[order]], axis=1)  # (step, non-members)
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
    """Return how many independent images would estimate a rate as precisely as these do, in [1, images].

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
