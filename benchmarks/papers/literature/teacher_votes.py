"""The noisy votes of teachers on disjoint parts of the private images: PATE."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from idpgan.errors import InputError
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.mechanisms import DiscreteLaplace, RoundedGaussian
from idpgan.privacy.noise import Noise
from idpgan.privacy.sums import Law

STEPS = 1 << 20  # grid steps of a vote
_SLACK = 1e-12  # of a float64 square root


@dataclass(frozen=True)
class TeacherVotes:
    r"""The class that most teachers name for each of Q public images, by noisy counts.

    Papernot, Abadi, Erlingsson, Goodfellow and Talwar, "Semi-supervised knowledge transfer for deep learning from
    private training data" (2017): Laplace noise; Papernot, Song, Mironov, Raghunathan, Talwar and Erlingsson, "Scalable
    private learning with PATE" (2018): Gaussian noise.

    Proof of the sensitivity. Which teacher learns from a record follows from the record's position alone, and a teacher
    from nothing else but its own records, the images that are asked about, and coins of its own. So neighbors, of
    zero-out-one as of replace-one, differ in one teacher, which may then name any other class: of the counts of one
    image, one falls by 1 and one rises by 1, at most 2 in L1 and sqrt(2) in L2, and both are reached. Q images are Q
    such releases, composed. The largest noisy count is post-processing.

    So the price does not hang on the votes. Where teachers agree, the papers prove less; but that epsilon is itself
    computed from the private images, and is not released here.

    Attributes:
        questions: Q, images that are asked about.
        classes: K.
        law: "gaussian" or "laplace".
        noise_multiplier: Least noise scale / sensitivity of one image's counts; that of `event` is rounded up.
    """

    questions: int
    classes: int
    law: Law
    noise_multiplier: float
    unit: Unit = Unit.IMAGE
    relation: Relation = Relation.ZERO_OUT

    def __post_init__(self) -> None:
        if self.questions < 1 or self.classes < 2 or self.law not in ("gaussian", "laplace"):
            raise InputError(
                f"questions ({self.questions}) must be at least 1, classes ({self.classes}) at least 2, and law "
                f"('{self.law}') gaussian or laplace."
            )

    @classmethod
    def calibrated(
        cls, questions: int, classes: int, law: Law = "gaussian", *, epsilon: float, delta: float
    ) -> TeacherVotes:
        """Return the votes with the least noise whose answers cost at most (epsilon, delta) together.

        Raises:
            InputError: If the budget is impossible.
        """
        return cls(
            questions, classes, law, calibrate(lambda m: [cls(questions, classes, law, m).event], epsilon, delta)
        )

    @property
    def mechanism(self) -> DiscreteLaplace | RoundedGaussian:
        """The noise on the counts of one image, in grid steps."""
        if self.law == "laplace":
            scale = math.ceil(self.noise_multiplier * 2 * STEPS)
            return DiscreteLaplace(2 * STEPS, scale, self.unit, self.relation)
        distance = math.sqrt(2) * STEPS * (1 + _SLACK)
        return RoundedGaussian(distance, math.ceil(self.noise_multiplier * distance), self.unit, self.relation)

    @property
    def event(self) -> Event:
        """Price of all answers."""
        return self.mechanism.event.repeated(self.questions)

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on a count, in votes."""
        return self.mechanism.scale / STEPS * (math.sqrt(2) if self.law == "laplace" else 1.0)

    def exact(self, votes: Tensor) -> Tensor:
        """Return the counts without noise, in grid steps, int64 (Q, K) on the CPU: secret.

        Args:
            votes: The class that each teacher names for each image, int64 (T, Q).

        Raises:
            ValueError: If votes are of another shape or name another class. Nothing is released then.
        """
        if votes.ndim != 2 or votes.shape[1] != self.questions or votes.dtype != torch.int64 or not len(votes):
            raise ValueError(f"votes must be int64 (teachers, {self.questions}), got {votes.dtype} {votes.shape}.")
        if bool(((votes < 0) | (votes >= self.classes)).any()):
            raise ValueError("a vote names a class that does not exist.")
        return STEPS * one_hot(votes.cpu(), self.classes).sum(0)

    def release(self, votes: Tensor, noise: Noise) -> Tensor:
        """Return the class of each image, int64 (Q,) on the CPU; arguments and errors as of `exact`."""
        return self.mechanism(self.exact(votes), noise).argmax(1)
