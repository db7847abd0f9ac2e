"""Settings of scattering-linear, known before an image is read; the method is in `method`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from idpgan.classify.config import ClassifierRun
from idpgan.models.private_classifier import LinearScattering, PrivateClassifier
from idpgan.training.config import MOST_STEPS, MethodConfig, TrainingConfig

_MOST_RATE = 1000.0
_LOGIT_NOISE = 2.0  # standard deviation that the noise of all steps may add up to in one logit
_FLOAT = 4  # bytes


class ScatteringLinearConfig(MethodConfig):
    """[method] of scattering-linear.

    Attributes:
        scales: J of the scattering; None = 2 up to 39 pixels, 3 up to 79, then 4.
        directions: L of the scattering.
        clip_norm: C, bound on one record's gradient, which is at most sqrt(2) by itself.
        learning_rate: Of gradient descent on the mean loss; None = that at which the noise of all steps adds up to
            2 in a logit (1000 at most): it follows from N, sigma and the number of steps.
        momentum: Weight of the past in a step.
        average_from: Share of the steps after which the average of the iterates begins, which is released.
    """

    name: Literal["scattering-linear"] = "scattering-linear"
    scales: int | None = Field(None, ge=1, le=6)
    directions: int = Field(8, ge=1, le=16)
    clip_norm: float = Field(0.1, gt=0)
    learning_rate: float | None = Field(None, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    average_from: float = Field(0.5, ge=0, lt=1)


class ScatteringLinearTraining(TrainingConfig):
    """[training] of scattering-linear: few steps, each on all images up to a million."""

    steps: int = Field(80, ge=1, le=MOST_STEPS)
    batch_size: int = Field(1_000_000, ge=1, le=1_000_000)
    tick_steps: int = Field(20, ge=1, le=MOST_STEPS)


class ScatteringLinearRun(ClassifierRun):
    """A whole config file of scattering-linear."""

    method: ScatteringLinearConfig = ScatteringLinearConfig()
    training: ScatteringLinearTraining = ScatteringLinearTraining()

    @property
    def clip_norm(self) -> float:
        """C."""
        return self.method.clip_norm

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """See `ClassifierRun.classifier`."""
        return LinearScattering(image_shape, classes, scales=self.method.scales, directions=self.method.directions)

    def step_bytes(self, classifier: PrivateClassifier, num_private: int) -> int:
        """See `ClassifierRun.step_bytes`: the features of all images are kept."""
        return num_private * sum(weight.shape[1] for weight in classifier.parameters()) * _FLOAT

    @property
    def way_out(self) -> str:
        """See `ClassifierRun.way_out`."""
        return "Lower method.directions, resize the images, or take a classifier that keeps no features (dp-sgd)."

    def learning_rate(self, num_private: int) -> float:
        """Return the learning rate for N images.

        T steps of noise sigma C / N, which momentum m multiplies by 1 / (1 - m), add up to a standard deviation of
        ``rate sigma C sqrt(T) / ((1 - m) N)`` in a logit, as features have norm 1.
        """
        if self.method.learning_rate is not None:
            return self.method.learning_rate
        plan = self.plan(num_private)
        walk = plan.noise_multiplier * plan.clip_norm * math.sqrt(self.training.steps) / plan.divisor
        return min(_MOST_RATE, _LOGIT_NOISE * (1 - self.method.momentum) / walk)
