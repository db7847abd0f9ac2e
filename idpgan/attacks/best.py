"""The strongest of several attacks, corrected for having been chosen (Bonferroni)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from idpgan.attacks.attack import Outcome, judged
from idpgan.attacks.evaluate import AttackResult, Interval

RATE = 0.01  # false-positive rate of the second measure
_MEASURES = 2  # AUC, and the true-positive rate at `RATE`


@dataclass(frozen=True)
class Strongest:
    """The attack that is best by one measure.

    Attributes:
        name: Of the attack.
        value: Of the measure.
        interval: At the corrected confidence.
    """

    name: str
    value: float
    interval: Interval


@dataclass(frozen=True)
class Best:
    """What the strongest of k attacks shows, at a confidence that holds for all of them together.

    Whoever tries k attacks and reports the best one will find something in images that nobody leaked. Each of the
    ``2 k`` intervals (two measures each) therefore has the confidence ``1 - (1 - confidence) / (2 k)``, so that all of
    them cover what they estimate with the confidence asked for (Bonferroni): no scores are spent on choosing.

    Attributes:
        attacks: k, those that were run.
        confidence: Of all intervals together.
        auc: By the area under the ROC curve.
        tpr: By the true-positive rate at a false-positive rate of 1 %; None with too few non-members.
        leak: Whether one of the two lies above what a guess reaches, in spite of its interval.
    """

    attacks: int
    confidence: float
    auc: Strongest
    tpr: Strongest | None

    @property
    def leak(self) -> bool:
        """See the class."""
        return self.auc.interval[0] > 0.5 or (self.tpr is not None and self.tpr.interval[0] > RATE)

    def __str__(self) -> str:
        """Say which attacks are strongest, in one sentence."""
        (low, high), auc = self.auc.interval, f"{self.auc.name} with AUC {self.auc.value:.3f}"
        rate = ""
        if self.tpr is not None:
            ends = f"{self.tpr.interval[0]:.1%} to {self.tpr.interval[1]:.1%}"
            rate = f"; {self.tpr.name} with {self.tpr.value:.1%} of the members at 1% false positives ({ends})"
        return (
            f"strongest of {self.attacks} attacks, at {self.confidence:g} confidence for all together (Bonferroni): "
            f"{auc} ({low:.3f} to {high:.3f}){rate}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {**dataclasses.asdict(self), "correction": "Bonferroni", "leak": self.leak, "in_words": str(self)}


def corrected(attacks: int, confidence: float, beside: int = 0) -> float:
    """Return the confidence of each interval with which all hold together, ``beside`` so many further statements."""
    return 1 - (1 - confidence) / (_MEASURES * max(attacks, 1) + beside)


def best_of(outcomes: Sequence[Outcome], confidence: float = 0.95, beside: int = 0) -> Best | None:
    """Return the strongest of the attacks that were run, by each measure; None if none was.

    Strongest is the one with the highest lower end: an attack on few records may have a high figure by chance.

    Args:
        confidence: Of all intervals together, and of ``beside`` further statements.
    """
    run = [found for found in outcomes if found.scores is not None]
    if not run:
        return None
    strict = corrected(len(run), confidence, beside)
    results = [(found.attack.name, judged(found.scores, found.people, strict)) for found in run if found.scores]
    areas = [Strongest(name, result.auc, result.auc_interval) for name, result in results]
    rates = [found for name, result in results if (found := _rate(name, result)) is not None]
    auc, tpr = (max(kind, key=lambda each: (each.interval[0], each.value), default=None) for kind in (areas, rates))
    return None if auc is None else Best(len(run), confidence, auc, tpr)


def _rate(name: str, result: AttackResult) -> Strongest | None:
    value, interval = result.tpr_at_fpr[RATE], result.tpr_intervals[RATE]
    return None if value is None or interval is None else Strongest(name, value, interval)


def least_images(attacks: int, confidence: float = 0.95, beside: int = 0) -> int:
    """Return how many members, and as many others, can show anything: with fewer not even a sure attack would.

    n pairs that are all won prove ``AUC >= (alpha / 2)^(1 / n)`` (`evaluate`), which is above one half from here on.
    """
    alpha = 1 - corrected(attacks, confidence, beside)
    return math.ceil(math.log2(2 / alpha) + 1e-9)
