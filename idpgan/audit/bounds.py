r"""Lower bounds of epsilon from counts: Clopper-Pearson intervals, the choice of a threshold, the cap.

An (epsilon, delta) mechanism allows, for every event E, ``P'(E) <= e^epsilon P(E) + delta``, and the same with the two
neighbors swapped or E replaced by its complement. With E = "the attacker says neighbor", TPR its probability on the
neighbor and FPR on the data (Jagielski, Ullman, Oprea 2020):
``epsilon >= max{ log((TPR_low - delta) / FPR_high), log((TNR_low - delta) / FNR_high) }``.
Both terms rest on the same two statements, "TPR >= TPR_low" and "FPR <= FPR_high", each one-sided at alpha / 2, since
FNR_high = 1 - TPR_low and TNR_low = 1 - FPR_high. So the maximum holds with confidence 1 - alpha.

Epsilon at a small delta depends only on the far tails. A second bound, with its own threshold and counts, is the
separation ``Phi^-1(TPR_low) - Phi^-1(FPR_high)``: no mu-GDP with a smaller mu holds (`idpgan.privacy.tradeoff`), since
it allows no test a separation above mu. Unlike epsilon at a tiny delta, mu shows in the middle of the distributions,
where an audit has many counts: `Nasr et al. (2023) <https://arxiv.org/abs/2302.07956>`_ audit DP-SGD tightly that way.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.special import betaincinv

from idpgan.errors import InputError
from idpgan.privacy.event import Event
from idpgan.privacy.tradeoff import separation

_CAUTION = 1000  # the choice uses a stricter confidence, since the best of many thresholds is partly luck
_MIDDLE, _TAIL = 128, 64  # candidate thresholds per side: evenly by rank, and increasingly dense towards each tail


def clopper_pearson(successes: np.ndarray, trials: int, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a lower and an upper bound of a probability, each of which fails with probability at most ``alpha``.

    Args:
        successes: Counts in 0 .. ``trials``.
        trials: Number of independent trials, >= 1.
        alpha: One-sided, in (0, 1).

    Raises:
        InputError: If counts, trials or alpha are out of range.

    Example:
        >>> low, high = clopper_pearson(np.array([0, 10]), 10, 0.05)
        >>> print(low.round(3), high.round(3))
        [0.    0.741] [0.259 1.   ]
    """
    count = np.asarray(successes, dtype=np.float64)
    if not (trials >= 1 and 0 < alpha < 1 and bool(((count >= 0) & (count <= trials)).all())):
        raise InputError(
            f"counts {successes} must lie in 0 .. {trials} trials, at least 1, and alpha {alpha} in (0, 1)."
        )
    low = np.where(count > 0, betaincinv(np.maximum(count, 1), trials - count + 1, alpha), 0.0)
    high = np.where(count < trials, betaincinv(count + 1, np.maximum(trials - count, 1), 1 - alpha), 1.0)
    return low, high


def epsilon_bound(
    true_positives: np.ndarray, false_positives: np.ndarray, held_out: int, delta: float, confidence: float
) -> np.ndarray:
    """Return the lower bound of epsilon that held-out counts prove; see the module. Minus infinity is "nothing".

    The counts are the runs called "neighbor", out of ``held_out`` per side: true positives on the neighbor, false
    positives on the data. The confidence 1 - alpha holds for each bound separately.
    """
    alpha = (1 - confidence) / 2
    tpr_low, _ = clopper_pearson(true_positives, held_out, alpha)
    _, fpr_high = clopper_pearson(false_positives, held_out, alpha)
    chances = ((tpr_low - delta, fpr_high), (1 - fpr_high - delta, 1 - tpr_low))
    with np.errstate(divide="ignore"):
        return np.maximum(*(np.log(np.maximum(above, 0.0)) - np.log(below) for above, below in chances))


def separation_bound(
    true_positives: np.ndarray, false_positives: np.ndarray, held_out: int, confidence: float
) -> np.ndarray:
    """Return the lower bound of the separation that held-out counts prove, >= 0; arguments as in `epsilon_bound`."""
    alpha = (1 - confidence) / 2
    tpr_low, _ = clopper_pearson(true_positives, held_out, alpha)
    _, fpr_high = clopper_pearson(false_positives, held_out, alpha)
    return separation(tpr_low, fpr_high)


def cap(held_out: int, confidence: float = 0.95, delta: float = 0.0) -> float:
    """Return the largest epsilon that ``held_out`` runs per side can show, with all guesses right.

    An audit never measures "infinite": a mechanism without any noise reaches only this number.

    Example:
        >>> [round(cap(10**k), 1) for k in (4, 5, 6)]
        [7.9, 10.2, 12.5]
    """
    return float(epsilon_bound(np.array(held_out), np.array(0), held_out, delta, confidence))


@dataclass(frozen=True)
class Separation:
    """A lower bound of the separation of the two distributions, with everything needed to recompute it.

    Attributes:
        mu_lower: With the result's confidence, no mu-GDP guarantee with a smaller mu holds; 0 if nothing was found.
        fpr_high: Upper bound of the test's false-positive rate: where on the trade-off curve the bound stands.
        statistic: The statistic that the choosing half selected for this bound.
        threshold: Of the statistic.
        direction: See `AuditResult`.
        true_positives: See `AuditResult`.
        false_positives: See `AuditResult`.
    """

    mu_lower: float
    fpr_high: float
    statistic: str
    threshold: float
    direction: int
    true_positives: int
    false_positives: int

    @classmethod
    def of_counts(
        cls, said: tuple[int, int], held_out: int, confidence: float, statistic: str, threshold: float, direction: int
    ) -> Self:
        """Compute the bound from the (false, true) positives of the held-out half."""
        false_positives, true_positives = said
        _, fpr_high = clopper_pearson(np.array(false_positives), held_out, (1 - confidence) / 2)
        bound = separation_bound(np.array(true_positives), np.array(false_positives), held_out, confidence)
        return cls(float(bound), float(fpr_high), statistic, threshold, direction, true_positives, false_positives)


@dataclass(frozen=True)
class AuditResult:
    """A lower bound of epsilon, with everything needed to recompute it.

    Attributes:
        epsilon_lower: With probability `confidence` over the audit's runs, no (epsilon, delta) guarantee with a smaller
            epsilon holds; 0 if nothing was found.
        cap: The value of `epsilon_lower` if every held-out guess were right.
        statistic: The statistic that the choosing half selected.
        threshold: Of the statistic.
        direction: 1: the guess is "neighbor" if the statistic is at least the threshold; -1: if it is below.
        true_positives: Held-out runs on the neighbor with that guess.
        false_positives: Held-out runs on the data with that guess.
        held_out: Held-out runs per side: runs // 2.
        runs: Runs per side.
        delta: Of the guarantee under test.
        confidence: 1 - alpha, for each of the two bounds separately.
        separation: The second bound.
    """

    epsilon_lower: float
    cap: float
    statistic: str
    threshold: float
    direction: int
    true_positives: int
    false_positives: int
    held_out: int
    runs: int
    delta: float
    confidence: float
    separation: Separation

    def __repr__(self) -> str:
        return (
            f"<AuditResult: epsilon >= {self.epsilon_lower:.4g} at delta = {self.delta:g} ({self.confidence:g} "
            f"confident, at most {self.cap:.4g} could be found in {self.runs:,} runs)>"
        )

    @classmethod
    def of_counts(
        cls, true_positives: int, false_positives: int, *, runs: int, delta: float, confidence: float, **chosen: Any
    ) -> Self:
        """Compute bound and cap from the counts of the held-out half; ``chosen`` holds the other attributes."""
        held_out = runs // 2
        bound = epsilon_bound(np.array(true_positives), np.array(false_positives), held_out, delta, confidence)
        return cls(
            epsilon_lower=max(float(bound), 0.0),
            cap=cap(held_out, confidence, delta),
            true_positives=true_positives,
            false_positives=false_positives,
            held_out=held_out,
            runs=runs,
            delta=delta,
            confidence=confidence,
            **chosen,
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        facts = dataclasses.asdict(self)
        for bound in (facts, facts["separation"]):
            if not np.isfinite(bound["threshold"]):  # JSON has no infinity
                bound["threshold"] = str(bound["threshold"])
        return facts

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild from the output of `to_json`, and recompute the bound.

        Raises:
            InputError: If a key is missing or unknown, or bound and counts do not fit.
        """
        if set(data) != {field.name for field in dataclasses.fields(cls)}:
            raise InputError(f"not an audit result: keys {sorted(data)}.")
        second = data["separation"]
        if set(second) != {field.name for field in dataclasses.fields(Separation)}:
            raise InputError(f"not a bound of the separation: keys {sorted(second)}.")
        known = ("runs", "delta", "confidence", "statistic", "direction")
        again = cls.of_counts(
            data["true_positives"],
            data["false_positives"],
            threshold=float(data["threshold"]),
            separation=Separation.of_counts(
                (second["false_positives"], second["true_positives"]),
                data["runs"] // 2,
                data["confidence"],
                second["statistic"],
                float(second["threshold"]),
                second["direction"],
            ),
            **{name: data[name] for name in known},
        )
        if abs(again.separation.mu_lower - second["mu_lower"]) > 1e-9:
            raise InputError(
                f"the counts prove mu >= {again.separation.mu_lower:.6g}, the result says {second['mu_lower']:.6g}."
            )
        if abs(again.epsilon_lower - data["epsilon_lower"]) > 1e-9 or again.held_out != data["held_out"]:
            raise InputError(
                f"the counts prove epsilon >= {again.epsilon_lower:.6g}, the result says {data['epsilon_lower']:.6g}."
            )
        return again


@dataclass(frozen=True)
class Choice:
    """The choice made on the first half of the runs.

    Attributes:
        direction: See `AuditResult`.
        threshold: See `AuditResult`.
        bound: The lower bound from the choosing runs themselves, only for comparing statistics.
    """

    direction: int
    threshold: float
    bound: float


def choose(
    data_scores: np.ndarray, neighbor_scores: np.ndarray, delta: float, confidence: float
) -> tuple[Choice, Choice]:
    """Choose direction and threshold with the best bound on the first half's scores, (n,) on each side.

    Returns:
        The choice for epsilon and the choice for the separation.
    """
    data, neighbor = np.sort(data_scores).astype(np.float64), np.sort(neighbor_scores).astype(np.float64)
    runs = len(data)
    # Candidate thresholds: scores at some ranks, dense in the tails, and midpoints of adjacent ones.
    tail = np.geomspace(1, runs, _TAIL).astype(int) - 1
    ranks = np.unique(np.concatenate([np.linspace(0, runs - 1, _MIDDLE).astype(int), tail, runs - 1 - tail]))
    values = np.unique(np.concatenate([scores[ranks] for scores in (data, neighbor)]))
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
    ends = [np.nextafter(values[-1], np.inf)]  # for scores of plus infinity
    thresholds = np.unique(np.concatenate([values, (values[1:] + values[:-1]) / 2, ends]))
    confidence = 1 - (1 - confidence) / _CAUTION
    true, false = (runs - np.searchsorted(side, thresholds, side="left") for side in (neighbor, data))
    ways = ((true, false), (runs - true, runs - false))  # upward and downward
    by_epsilon = [epsilon_bound(hits, alarms, runs, delta, confidence) for hits, alarms in ways]
    by_separation = [separation_bound(hits, alarms, runs, confidence) for hits, alarms in ways]
    chosen = []
    for upward, downward in (by_epsilon, by_separation):
        best, direction = max((float(upward.max()), 1), (float(downward.max()), -1))
        (ties,) = np.nonzero((upward if direction == 1 else downward) == best)
        middle = float(thresholds[ties[len(ties) // 2]])  # the middle of equally good thresholds
        chosen.append(Choice(direction, middle, best))
    return chosen[0], chosen[1]


SHARE = "share of the proven separation"
"""The one term under which tables, cards and reports say how close an audit came to a proof; see `share_text`."""

SHARE_MEANS = (
    "separation says how far apart, in standard deviations, what comes out with one record and without it may lie; "
    "near 100 % the attack found nearly all that the proof allows, so that the proof could hardly be tighter; above it "
    "the proof would be refuted"
)


def share_text(audited: float | None, proven: float | str | None) -> str:
    """Return how much of the `separation` that the proof allows an audit has reached, such as "93 %".

    Unlike epsilon, of which an audit sees little at a small delta, it is a fair measure of what is left unexplained. It
    is "none is proven" without a proof, and "-" without an audit.

    Example:
        >>> share_text(0.2489, 0.2680), share_text(0.7, math.inf), share_text(None, None)
        ('93 %', 'none is proven', '-')
    """
    if proven is not None and math.isinf(float(proven)):
        return "none is proven"
    if audited is None or not proven:
        return "-"
    return f"{audited / float(proven):.0%}".replace("%", " %")


def is_nearly_gaussian(events: Sequence[Event]) -> bool:
    """Return whether all noise is Gaussian, sampled or not; only then is the epsilon of a separation printed."""
    return bool(events) and all(event.kind in ("gaussian", "poisson-gaussian") for event in events)
