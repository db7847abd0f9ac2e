r"""dp-sgd: a small convolutional classifier by DP-SGD (Abadi et al. 2016, "Deep Learning with Differential Privacy").

A step reads the records that Poisson sampling at rate q = B / N draws, and releases the noisy sum of their clipped
gradients divided by the public B: a step of `privacy.dpsgd.DPSGDPlan`, the Poisson-sampled Gaussian mechanism, unit
image, zero-out-one. Sensitivity: an image and its label are one record, and a record's gradient is a function of that
record and of the weights, as no layer mixes records (`validate_private_critic` tests this). The moving average of the
weights is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from idpgan.audit.gradient_canaries import NO_LIMIT, SLOPE, STILL, CanaryNetwork, CanarySteps, Training
from idpgan.classify.classifier import ClassifierPrivacy, ClassifierRun, ClassifierSteps, GivesClassifier
from idpgan.data.load import Split
from idpgan.models import ema, optimizers
from idpgan.models.private_classifier import GroupNormCnn, PrivateClassifier
from idpgan.privacy import Noise
from idpgan.privacy.dpsgd import ClipNorm, DPSGDPlan, Weights
from idpgan.private.steps import PrivateSteps, steps_entry, validate_network
from idpgan.training.config import MOST_STEPS, StepsConfig, TrainingConfig
from idpgan.training.method import Stats

_BYTES = 12  # of a record's gradient, per weight: float32, and float64 where it is summed


class DpSgdConfig(StepsConfig):
    """[method] of dp-sgd.

    Attributes:
        width: Feature maps of the first convolution; noise grows with the number of weights.
        clip_norm: C, bound on one record's gradient; a constant, never taken from private gradients.
        learning_rate: Of gradient descent; gradients are divided by the expected batch, and have norm C at most.
        momentum: Weight of the past in a step.
        ema_decay: Weight of the past in the averaged weights, which are released.
        max_physical_batch: Records whose gradients are in memory at once, halved by itself where that is too many; a
            GPU takes 2,048 unless another number is set. "opacus" takes at most 128, and does not halve it.
    """

    name: Literal["dp-sgd"] = "dp-sgd"
    width: int = Field(16, ge=1, le=1024)
    clip_norm: ClipNorm = 1.0
    learning_rate: float = Field(0.05, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    ema_decay: float = Field(0.99, ge=0, lt=1)
    max_physical_batch: int = Field(64, ge=1)


class DpSgdTraining(TrainingConfig):
    """[training] of dp-sgd: large batches, since the noise on a step's sum does not grow with the batch.

    Attributes:
        steps: Steps of DP-SGD, each of which is charged.
    """

    steps: int = Field(1000, ge=1, le=MOST_STEPS)
    batch_size: int = Field(512, ge=1, le=1_000_000)
    tick_steps: int = Field(100, ge=1, le=MOST_STEPS)


class DpSgdRun(ClassifierRun):
    """A whole config file of dp-sgd."""

    ABILITIES = frozenset({"record-gradients"})

    method: DpSgdConfig = DpSgdConfig()
    training: DpSgdTraining = DpSgdTraining()


class DpSgdPlan(ClassifierSteps):
    """The plan of a run of dp-sgd."""

    WAY_OUT = "Lower method.max_physical_batch or method.width."

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """Return a convolutional network whose layers normalize each image by itself."""
        return GroupNormCnn(image_shape, classes, width=self.config.method.width, seed=self.config.training.seed)

    def step_bytes(self, classifier: PrivateClassifier) -> int:
        """Count the gradients of the records that are in memory at once."""
        method, training = self.config.method, self.config.training
        records = min(method.max_physical_batch, training.batch_size, self.shape.num_private)
        return records * sum(weight.numel() for weight in classifier.parameters()) * _BYTES


class DpSgd(PrivateSteps, GivesClassifier):
    """The method as the loop sees it; see `PrivateSteps`.

    Attributes:
        newest: The iterate.
        product: The moving average of the weights, in eval mode: the released classifier.
    """

    SAVED = ("newest", "average", "optimizer", "noise")

    plan: DpSgdPlan

    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        self._average = ema.Ema(self.newest, self.config.ema_decay)
        self.optimizer = optimizers.SGD(
            self.newest.parameters(), self.config.learning_rate, momentum=self.config.momentum
        )
        self.train_privately(self.newest, self.optimizer)

    def _build(self) -> Any:
        network = super()._build()
        validate_network(network, self.config)  # no layer of it mixes records
        return network

    @property
    def product(self) -> PrivateClassifier:
        """The moving average of the weights."""
        return cast(PrivateClassifier, self._average.module)

    def step(self, step: int) -> Stats:
        """Take a private step; then average."""
        found = self.private_step()
        self._average.update(self.newest)
        return found

    def record_loss(self, weights: Weights, *record: Tensor) -> Tensor:
        """Return the cross-entropy of one image."""
        image, label = record
        return cross_entropy(functional_call(self.newest, dict(weights), (image[None],)), label[None])

    def batch_loss(self, network: nn.Module, *records: Tensor) -> Tensor:
        """Return the cross-entropies of images."""
        images, labels = records
        return cross_entropy(network(images), labels, reduction="none")


Settings, Plan, Method = DpSgdRun, DpSgdPlan, DpSgd


# The audit: a network of canaries, one weight each, takes the place of the classifier --------------------------------


class _CanaryClassifier(PrivateClassifier):
    """Scores the first class for an image by the weight of the canary that the image shows."""

    network = "canaries"

    def __init__(self, image_shape: tuple[int, int, int], classes: Sequence[str], canaries: int, slope: float) -> None:
        super().__init__(image_shape, classes)
        self.canaries = CanaryNetwork(canaries, slope)

    def forward(self, images: Tensor) -> Tensor:
        score = self.canaries(images)
        return torch.stack([score, torch.zeros_like(score)], 1)


class _CanarySgd(DpSgd):
    def _build(self) -> PrivateClassifier:
        shape, slope = self._data, 2 * SLOPE * self.config.clip_norm
        return _CanaryClassifier(shape.image_shape, shape.classes, len(self._images), slope)


def canaries(section: DpSgdConfig, sample_rate: float, noise_multiplier: float, count: int) -> CanarySteps:
    """Return the steps as an audit plays them."""
    still = {"learning_rate": STILL, "momentum": 0.0, "ema_decay": 0.0, "max_physical_batch": 512}

    def make(split: Split, dpsgd: DPSGDPlan, steps: int, noise: Noise, device: torch.device) -> Training:
        config = DpSgdRun(
            method=section.model_copy(update=still),
            privacy=ClassifierPrivacy(epsilon=NO_LIMIT, delta=0.5 / len(split.private)),
            training=DpSgdTraining(steps=steps, batch_size=dpsgd.divisor),
        )
        # the loss falls where the score rises
        return _CanarySgd.of_canaries(config, split, dpsgd, noise, device).seen_gradients(lambda gradient: -gradient)

    code = "played through the steps of dp-sgd, with a network whose gradient is the canary"
    return CanarySteps(code, make, sample_rate, noise_multiplier, count, section.clip_norm)


AUDIT = steps_entry("dp-sgd", canaries, DpSgdConfig(), sample_rate=0.3, steps=50)  # nearly Gaussian
