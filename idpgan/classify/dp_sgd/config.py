"""Settings of dp-sgd, known before an image is read; the method is in `method`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from idpgan.classify.config import ClassifierRun
from idpgan.models.private_classifier import GroupNormCnn, PrivateClassifier
from idpgan.training.config import MOST_STEPS, MethodConfig, TrainingConfig

_BYTES = 12  # of a record's gradient, per weight: float32, and float64 where it is summed


class DpSgdConfig(MethodConfig):
    """[method] of dp-sgd.

    Attributes:
        width: Feature maps of the first convolution; noise grows with the number of weights.
        clip_norm: C, bound on one record's gradient; a constant, never taken from private gradients.
        learning_rate: Of gradient descent; gradients are divided by the expected batch, and have norm C at most.
        momentum: Weight of the past in a step.
        ema_decay: Weight of the past in the averaged weights, which are released.
        max_physical_batch: Records whose gradients are in memory at once; halved by itself where that is too many.
    """

    name: Literal["dp-sgd"] = "dp-sgd"
    width: int = Field(16, ge=1, le=1024)
    clip_norm: float = Field(1.0, gt=0)
    learning_rate: float = Field(0.05, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    ema_decay: float = Field(0.99, ge=0, lt=1)
    max_physical_batch: int = Field(64, ge=1)


class DpSgdTraining(TrainingConfig):
    """[training] of dp-sgd: large batches, as the noise of a step is that of its sum."""

    steps: int = Field(1000, ge=1, le=MOST_STEPS)
    batch_size: int = Field(512, ge=1, le=1_000_000)
    tick_steps: int = Field(100, ge=1, le=MOST_STEPS)


class DpSgdRun(ClassifierRun):
    """A whole config file of dp-sgd."""

    method: DpSgdConfig = DpSgdConfig()
    training: DpSgdTraining = DpSgdTraining()

    @property
    def clip_norm(self) -> float:
        """C."""
        return self.method.clip_norm

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """See `ClassifierRun.classifier`."""
        return GroupNormCnn(image_shape, classes, width=self.method.width, seed=self.training.seed)

    def step_bytes(self, classifier: PrivateClassifier, num_private: int) -> int:
        """See `ClassifierRun.step_bytes`: the gradients of the records that are in memory at once."""
        records = min(self.method.max_physical_batch, self.training.batch_size, num_private)
        return records * sum(weight.numel() for weight in classifier.parameters()) * _BYTES

    @property
    def way_out(self) -> str:
        """See `ClassifierRun.way_out`."""
        return "Lower method.max_physical_batch or method.width."
