r"""dp-sgd: a small convolutional classifier by DP-SGD (Abadi et al. 2016, "Deep Learning with Differential Privacy").

A step reads the records that Poisson sampling at rate q = B / N draws, and releases the noisy sum of their clipped
gradients divided by the public B: a step of `privacy.dpsgd.DPSGDPlan`, the Poisson-sampled Gaussian mechanism, unit
image, zero-out-one. Sensitivity: an image and its label are one record, and a record's gradient is a function of that
record and of the weights, as no layer mixes records (`validate_private_critic` tests this). The moving average of the
weights is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from idpgan.audit.gradient_canaries import NO_LIMIT, SLOPE, STILL, CanaryNetwork, CanarySteps, Training
from idpgan.classify import classifier
from idpgan.config import key
from idpgan.data.load import Split, place
from idpgan.models import initialize, optimizers
from idpgan.models.private_classifier import GroupNormCnn, PrivateClassifier
from idpgan.privacy import Noise
from idpgan.privacy.dpsgd import ClipNorm, DPSGDPlan, Weights
from idpgan.private import steps
from idpgan.training.config import ENGINE, MOST_STEPS, check_engine, section_of, settings
from idpgan.training.method import Stats

_BYTES = 12  # of a record's gradient, per weight: float32, and float64 where it is summed


Settings = settings(
    "dp-sgd",
    method=[
        ENGINE,
        {
            "width": key(
                int, 16, "Feature maps of the first convolution; noise grows with the number of weights.", ge=1, le=1024
            ),
            "clip_norm": key(
                ClipNorm, 1.0, "C, bound on one record's gradient; a constant, never taken from private gradients."
            ),
            "learning_rate": key(
                float,
                0.05,
                "Of gradient descent; gradients are divided by the expected batch, and have norm C at most.",
                gt=0,
            ),
            "momentum": key(float, 0.9, "Weight of the past in a step.", ge=0, lt=1),
            "ema_decay": key(
                float, 0.99, "Weight of the past in the averaged weights, which are released.", ge=0, lt=1
            ),
            "max_physical_batch": key(int, 64, steps.PHYSICAL_BATCH, ge=1),
        },
    ],
    privacy=[classifier.PRIVACY],
    training=[  # large batches, since the noise on a step's sum does not grow with the batch
        {
            "steps": key(int, 1000, "Steps of DP-SGD, each of which is charged.", ge=1, le=MOST_STEPS),
            "batch_size": 512,
            "tick_steps": 100,
        }
    ],
    method_checks=[check_engine],
    abilities={"record-gradients"},
)


class Plan(classifier.StepsPlan):
    """The plan of a run of dp-sgd."""

    WAY_OUT = "Lower method.width."

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """Return a convolutional network whose layers normalize each image by itself."""
        return GroupNormCnn(image_shape, classes, width=self.config.method.width, seed=self.config.training.seed)

    def step_bytes(self, network: PrivateClassifier) -> int:
        """Count the gradient of one record: fewer are in memory at once where it is short."""
        return sum(weight.numel() for weight in network.parameters()) * _BYTES


class Method(steps.PrivateSteps):
    """The method as the loop sees it; see `PrivateSteps`.

    Attributes:
        newest: The iterate.
        product: The moving average of the weights, in eval mode: the released classifier.
    """

    SAVED = ("newest", "average", "optimizer", "noise")

    plan: Plan

    def _set_up(self, split: Split, canaries: PrivateClassifier | None = None) -> None:
        """Make the network; the steps of an audit train ``canaries`` in its place."""
        self._images = place(split.private, self.device)
        self.newest = canaries or self.plan.classifier(split.image_shape, split.classes).eval()
        if canaries is None:
            steps.validate_network(self.newest, self.config)  # no layer of it mixes records
        self.newest.to(self.device)
        self._average = initialize.Ema(self.newest, self.config.ema_decay)
        self.optimizer = optimizers.SGD(
            self.newest.parameters(), self.config.learning_rate, momentum=self.config.momentum
        )
        self.train_privately(self.newest, self.optimizer)

    @property
    def product(self) -> PrivateClassifier:
        """The moving average of the weights."""
        return cast(PrivateClassifier, self._average.module)

    artifact, critic_scores = classifier.artifact, classifier.critic_scores

    def step(self, step: int) -> Stats:
        """Take a private step; then average."""
        stats = self.private_step()
        self._average.update(self.newest)
        return stats

    def record_loss(self, weights: Weights, *record: Tensor) -> Tensor:
        """Return the cross-entropy of one image."""
        image, label = record
        return cross_entropy(functional_call(self.newest, dict(weights), (image[None],)), label[None])

    def batch_loss(self, network: nn.Module, *records: Tensor) -> Tensor:
        """Return the cross-entropies of images."""
        images, labels = records
        return cross_entropy(network(images), labels, reduction="none")


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


def canaries(section: Any, sample_rate: float, noise_multiplier: float, count: int) -> CanarySteps:
    """Return the steps as an audit plays them."""
    still = {"learning_rate": STILL, "momentum": 0.0, "ema_decay": 0.0, "max_physical_batch": 512}

    def make(split: Split, dpsgd: DPSGDPlan, num_steps: int, noise: Noise, device: torch.device) -> Training:
        config = Settings(
            method=section.model_copy(update=still),
            privacy={"epsilon": NO_LIMIT, "delta": 0.5 / len(split.private)},
            training={"steps": num_steps, "batch_size": dpsgd.divisor},
        )
        slope = 2 * SLOPE * section.clip_norm
        network = _CanaryClassifier(split.image_shape, split.classes, len(split.private), slope)
        method = Method.of_canaries(config, split, dpsgd, noise, device, canaries=network)
        return method.seen_gradients(lambda gradient: -gradient)  # the loss falls where the score rises

    code = "played through the steps of dp-sgd, with a network whose gradient is the canary"
    return CanarySteps(code, make, sample_rate, noise_multiplier, count, section.clip_norm)


AUDIT = steps.steps_entry(
    "dp-sgd", canaries, section_of(Settings, "method")(), sample_rate=0.3, steps=50
)  # nearly Gaussian
