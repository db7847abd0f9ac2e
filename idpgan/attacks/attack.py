"""One attack: its row in the registry, how it is run, and what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idpgan.attacks.evaluate import AttackResult, evaluate_scores, thinned_curve
from idpgan.attacks.knowledge import Knowledge, Membership, joined
from idpgan.data.images import Images
from idpgan.progress import Progress, renamed, silent


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        access: "black box" (images, or logits, only), "partial black box" (the generator), "white box" (the critic).
        needs: Attributes of `Knowledge`, or "sample_labels", without which it cannot be run.
        score: Maps (knowledge, images to be judged, progress) to scores (n,), higher = member.
        costly: Whether it optimizes for each image, so that fewer images are judged.
        target: What it attacks: "generator" or "classifier".
    """

    name: str
    access: str
    needs: tuple[str, ...]
    paper: str
    score: Callable[[Knowledge, Images, Progress], Tensor]
    costly: bool = False
    target: str = "generator"

    def missing(self, knowledge: Knowledge) -> str | None:
        """Return why this attack cannot be run, or None if it can."""
        reasons = (knowledge.missing(name) for name in self.needs)
        return next((reason for reason in reasons if reason is not None), None)


@dataclass(frozen=True)
class Outcome:
    """What one attack came to; a skipped one has a reason in ``skipped`` and neither result nor scores.

    Attributes:
        seconds: What it took.
        scores: Of members and of non-members, (n,) each, float32 on the CPU.
    """

    attack: Attack
    result: AttackResult | None = None
    skipped: str | None = None
    seconds: float = 0.0
    scores: tuple[Tensor, Tensor] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict; "roc" are points (false-positive rate, true-positive rate) of the curve."""
        facts = {"access": self.attack.access, "paper": self.attack.paper, "seconds": round(self.seconds, 2)}
        curve = {} if self.scores is None else {"roc": thinned_curve(*self.scores)}
        return {**facts, "skipped": self.skipped, **(self.result.to_json() if self.result else {}), **curve}


def run_attack(
    attack: Attack,
    knowledge: Knowledge,
    images: Membership,
    *,
    most_costly: int = 1_000,
    confidence: float = 0.95,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Outcome:
    """Score members and non-members in one set, in which the attack cannot tell them apart, and judge the scores.

    At most ``most_costly`` members are judged by an attack that optimizes for each image.
    """
    reason = attack.missing(knowledge)
    if reason is not None:
        return Outcome(attack, skipped=reason)
    started = time.monotonic()
    num = min(len(images.members), most_costly if attack.costly else len(images.members))
    index = torch.arange(num)
    judged = joined(images.members.select(index), images.non_members.select(index)).to(device)
    scores = attack.score(knowledge, judged, renamed(progress, attack.name)).float().cpu()
    people = images.people
    result = evaluate_scores(
        scores[:num],
        scores[num:],
        confidence=confidence,
        member_groups=None if people is None else people[0][:num],
        non_member_groups=None if people is None else people[1][:num],
    )
    return Outcome(attack, result, None, time.monotonic() - started, (scores[:num], scores[num:]))
