"""Private selection: the first few answers above a threshold. Whole numbers only.

Answers are whole grid steps (`Grid.round`), int64, and all randomness is exact. The privacy loss of a choice is known
in closed form, so the event is "pure". For the largest of several scores see `Exponential` and `NoisyMax`, which choose
among floating-point scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from idpgan.host import own_state
from idpgan.lazy import torch
from idpgan.privacy.discrete import MAX_SCALE, discrete_laplace
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.mechanisms import Mechanism, check_positive
from idpgan.privacy.noise import Noise

if TYPE_CHECKING:
    from torch import Tensor

NOT_ANSWERED = -1  # output of `SparseVector` after it stopped
_MOST_STEPS = 1 << 60
_SAFE = 1 + 2.0**-50  # covers what a few floating-point operations may round down


def _check_steps(steps: Tensor) -> None:
    """Refuse what are no whole scores, or could wrap around 64 bits."""
    if steps.dtype != torch.int64 or steps.ndim < 1 or steps.shape[-1] < 1:
        raise ValueError(f"scores must be whole grid steps, int64 (..., K), got {steps.dtype} {tuple(steps.shape)}.")
    if bool((steps.abs() >= _MOST_STEPS).any()):
        raise ValueError("scores must be below 2^60 grid steps.")


@dataclass(frozen=True)
class SparseVector(Mechanism):
    """The sparse vector technique: which answers lie above their thresholds, until ``positives`` of them did.

    One noisy threshold for all (``threshold + rho``), fresh noise for every answer, no answer itself; then it stops:
    Algorithm 1 of Lyu, Su, Li 2017, "Understanding the sparse vector technique for differential privacy", with discrete
    noise. Four of the published variants that they analyze are broken: they have less noise, no stop, or release the
    noisy answers. The tests audit these.

    Formal guarantee: pure epsilon = sensitivity / threshold_scale + 2 positives sensitivity / answer_scale, without the
    2 if monotone. Fix the outputs up to the stop. Moving rho by one sensitivity costs the first term and makes every
    "below" at least as likely on the neighbor, whatever their number. Each "above" then needs its noise moved by at
    most two sensitivities, and there are ``positives`` of these. One is enough if no answer rises where another falls:
    where they rise, rho moves but they do not fall; where they fall, rho stays. All quantities are whole, so are the
    moves. The proof lets answers be chosen after earlier outputs; a call takes them at once.

    Attributes:
        sensitivity: Bound on how much one answer can move, in grid steps.
        threshold_scale: Scale of the discrete Laplace noise of the threshold, in grid steps.
        answer_scale: Scale of the discrete Laplace noise of each answer, in grid steps.
        positives: c, number of answers above the threshold after which it stops.
        monotone: Whether, between any two neighbors, no answer rises where another falls.
    """

    sensitivity: int
    threshold_scale: int
    answer_scale: int
    positives: int
    unit: Unit
    relation: Relation
    monotone: bool = False
    whole = (1, MAX_SCALE, "a whole number of 1 .. 2^50.")

    @classmethod
    def of(
        cls, sensitivity: int, positives: int, epsilon: float, unit: Unit, relation: Relation, *, monotone: bool = False
    ) -> Self:
        """Return the mechanism that costs at most ``epsilon``, divided as Lyu, Su, Li 2017 (section 4.2) find best.

        The variance of a comparison is least where the shares of threshold and answers are as 1 to ``(2 c)^(2/3)``, or
        ``c^(2/3)`` if monotone.
        """
        check_positive("SparseVector", "epsilon", epsilon)
        cls.check(unit, relation, sensitivity=sensitivity, positives=positives)
        moves = positives * (1 if monotone else 2)
        of_threshold = epsilon / (1 + moves ** (2 / 3)) * (1 - 2.0**-40)
        of_answers = epsilon * (1 - 2.0**-40) - of_threshold
        threshold_scale, answer_scale = (
            max(1, math.ceil(min(scale, 2.0**51)))  # a larger scale is refused, as a whole number
            for scale in (sensitivity / of_threshold, moves * sensitivity / of_answers)
        )
        return cls(sensitivity, threshold_scale, answer_scale, positives, unit, relation, monotone)

    @property
    def event(self) -> Event:
        """Price of one call."""
        moves = self.positives * (1 if self.monotone else 2)
        epsilon = self.sensitivity / self.threshold_scale + moves * self.sensitivity / self.answer_scale
        return Event("pure", self.unit, self.relation, pure_epsilon=epsilon * _SAFE)

    @own_state()
    def __call__(self, answer: Tensor, noise: Noise, thresholds: Tensor | int = 0) -> Tensor:
        """Compare answers (..., m), int64, with public thresholds, one or (m,): int64 (..., m).

        1 means above or equal, 0 below, `NOT_ANSWERED` after the stop.
        """
        _check_steps(answer)
        thresholds = torch.as_tensor(thresholds)
        _check_steps(thresholds.reshape(-1))
        answers = answer.cpu().reshape(-1, answer.shape[-1])
        rho = discrete_laplace(self.threshold_scale, len(answers), noise)
        nu = discrete_laplace(self.answer_scale, answers.numel(), noise).reshape(answers.shape)
        above = answers - thresholds.cpu() + nu >= rho[:, None]
        before = above.cumsum(1) - above.long()  # positives before this answer
        found = torch.where(before < self.positives, above.long(), NOT_ANSWERED)
        return found.reshape(answer.shape).to(answer.device)
