"""The outcome of one attack, and the strongest of several."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idpgan.attacks.evaluate import AttackResult, Interval, evaluate_scores, thinned_curve
from idpgan.attacks.knowledge import Attack
from idpgan.errors import InputError

RATE = 0.01  # false-positive rate of the second measure
_MEASURES = 2  # AUC, and the true-positive rate at `RATE`


@dataclass(frozen=True)
class Outcome:
    """The outcome of one attack; a skipped one has a reason in ``skipped`` and neither result nor scores.

    Attributes:
        seconds: Run time.
        scores: Scores of members and of non-members, (n,) each, float32 on the CPU; of people, for an attack on people.
        people: People on the images that were scored, (n,) each; None where each score is independent.
    """

    attack: Attack
    result: AttackResult | None = None
    skipped: str | None = None
    seconds: float = 0.0
    scores: tuple[Tensor, Tensor] | None = None
    people: tuple[Tensor, Tensor] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict; "roc" holds the points (false-positive rate, true-positive rate) of the curve."""
        facts = {"access": self.attack.access, "paper": self.attack.paper, "seconds": round(self.seconds, 2)}
        curve = {} if self.scores is None else {"roc": thinned_curve(*self.scores)}
        return {**facts, "skipped": self.skipped, **(self.result.to_json() if self.result else {}), **curve}


def mean_of_people(scores: Tensor, people: Tensor) -> Tensor:
    """Return the mean score of each person, (P,), in the order in which people first appear in ``people`` (n,).

    Raises:
        InputError: If there is not one person per score.
    """
    if scores.ndim != 1 or people.shape != scores.shape:
        raise InputError(f"{tuple(scores.shape)} scores need as many people, got {tuple(people.shape)}.")
    numbers = {person: place for place, person in enumerate(dict.fromkeys(people.tolist()))}
    index = torch.tensor([numbers[person] for person in people.tolist()])
    total = torch.zeros(len(numbers), dtype=torch.float64).index_add_(0, index, scores.double().cpu())
    return (total / torch.bincount(index, minlength=len(numbers))).float()


def judged(sides: tuple[Tensor, Tensor], groups: tuple[Tensor, Tensor] | None, confidence: float) -> AttackResult:
    """Evaluate the scores of members and non-members, (n,) each, and the people whose images these are, if any."""
    members, others = (None, None) if groups is None else groups
    return evaluate_scores(*sides, confidence=confidence, member_groups=members, non_member_groups=others)


# The strongest of several attacks, corrected for having been chosen (Bonferroni) --------------------------------------


@dataclass(frozen=True)
class Strongest:
    """The attack that is best by one measure.

    Attributes:
        name: Name of the attack.
        value: Value of the measure.
        interval: Its interval at the corrected confidence.
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
        confidence: Confidence of all intervals together.
        auc: The strongest by the area under the ROC curve.
        tpr: The strongest by the true-positive rate at a false-positive rate of 1 %; None with too few non-members.
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


def corrected(attacks: int, confidence: float, further: int = 0) -> float:
    """Return the confidence of each interval with which all hold together, and so many ``further`` statements."""
    return 1 - (1 - confidence) / (_MEASURES * max(attacks, 1) + further)


def best_of(outcomes: Sequence[Outcome], confidence: float = 0.95, further: int = 0) -> Best | None:
    """Return the strongest of the attacks that were run, by each measure; None if none was.

    Strongest is the one with the highest lower end: an attack on few records may have a high figure by chance.

    Args:
        confidence: Confidence of all intervals together, and of so many ``further`` statements.
    """
    run = [outcome for outcome in outcomes if outcome.scores is not None]
    if not run:
        return None
    strict = corrected(len(run), confidence, further)
    results = [(part.attack.name, judged(part.scores, part.people, strict)) for part in run if part.scores]
    areas = [Strongest(name, result.auc, result.auc_interval) for name, result in results]
    rates = [
        Strongest(name, value, interval)
        for name, result in results
        if (value := result.tpr_at_fpr[RATE]) is not None and (interval := result.tpr_intervals[RATE]) is not None
    ]
    auc, tpr = (
        max(kind, key=lambda strongest: (strongest.interval[0], strongest.value), default=None)
        for kind in (areas, rates)
    )
    return None if auc is None else Best(len(run), confidence, auc, tpr)


def least_images(attacks: int, confidence: float = 0.95, further: int = 0) -> int:
    """Return how many members, and as many others, can show anything: with fewer not even a sure attack would.

    n pairs that are all won prove ``AUC >= (alpha / 2)^(1 / n)`` (`evaluate`), which is above one half from here on.
    """
    alpha = 1 - corrected(attacks, confidence, further)
    return math.ceil(math.log2(2 / alpha) + 1e-9)
