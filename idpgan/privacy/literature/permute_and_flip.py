"""The largest of several scores, in whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from idpgan.host import own_state
from idpgan.privacy.discrete import survives
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.noise import Noise
from idpgan.privacy.selection import SAFE, Selection, check_steps


@dataclass(frozen=True)
class PermuteAndFlip(Selection):
    """Report noisy max with exponential noise: the index of the largest ``score_i + E_i``, E_i of mean ``scale``.

    It is drawn without noise on scores: the candidates in random order, each taken with chance
    ``exp((score_i - largest) / scale)`` (McKenna and Sheldon 2020; the same law, Ding, Kifer, Saghaian, Steinke, Wang,
    Xiao, Zhang 2021). Its expected error is at most that of the exponential mechanism at the same price.

    Formal guarantee: pure epsilon = 2 sensitivity / scale, half of that if monotone. Fix the noise of all others: i
    wins if ``E_i`` exceeds ``m - score_i``, m the largest of the others. From D to D' that bound rises by at most 2
    sensitivity, 1 if no score rises where another falls (if all rise, m rises by at most one sensitivity and score_i
    does not fall; likewise if all fall), and ``P(E > x + d) >= e^(-d / scale) P(E > x)`` for all x.

    Attributes:
        sensitivity: Bound on ``max_i |score_i(D) - score_i(D')|`` in grid steps.
        scale: Mean of the noise on each score, in grid steps.
        monotone: Whether, between any two neighbors, no score rises where another falls: counts under zero-out-one.
    """

    sensitivity: int
    scale: int
    unit: Unit
    relation: Relation
    monotone: bool = False

    @property
    def event(self) -> Event:
        """Price of one call."""
        moves = self.sensitivity * (1 if self.monotone else 2)
        return Event("pure", self.unit, self.relation, pure_epsilon=moves / self.scale * SAFE)

    @own_state()
    def __call__(self, answer: Tensor, noise: Noise) -> Tensor:
        """Choose among the last axis of scores (..., K), int64, larger is better; int64 (...)."""
        check_steps(answer)
        scores = answer.cpu().reshape(-1, answer.shape[-1])
        order, every = torch.arange(scores.shape[1]).repeat(len(scores), 1), torch.arange(len(scores))
        for place in range(scores.shape[1] - 1):  # a uniform permutation of each row (Fisher and Yates)
            other = place + noise.integers(scores.shape[1] - place, (len(scores),))
            order[every, place], order[every, other] = order[every, other], order[every, place].clone()
        below = scores.max(1, keepdim=True).values - scores
        chosen = torch.full((len(scores),), -1)
        for turn in range(scores.shape[1]):
            (left,) = torch.nonzero(chosen < 0, as_tuple=True)
            asked = order[left, turn]
            taken = survives(below[left, asked], self.scale, noise)
            chosen[left[taken]] = asked[taken]
        return chosen.reshape(answer.shape[:-1]).to(answer.device)
