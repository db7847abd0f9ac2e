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
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from idpgan.classify.classifier import ClassifierRun, StepsPlan, TrainsClassifier
from idpgan.data.images import to_float
from idpgan.data.load import Split
from idpgan.device import sent
from idpgan.models.ema import Ema
from idpgan.models.optimizers import SGD
from idpgan.models.private_classifier import GroupNormCnn, PrivateClassifier
from idpgan.privacy.captured_gradients import Batch
from idpgan.privacy.dpsgd import Weights
from idpgan.privacy.tiles import Tiles, rows_at_once
from idpgan.training.config import MOST_STEPS, StepsConfig, TrainingConfig
from idpgan.training.engine import opacus_steps, validate_network
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
    clip_norm: float = Field(1.0, gt=0)
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

    method: DpSgdConfig = DpSgdConfig()
    training: DpSgdTraining = DpSgdTraining()


class DpSgdPlan(StepsPlan):
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


class DpSgd(TrainsClassifier):
    """The method as the loop sees it; see `TrainsClassifier`."""

    Config, Plan = DpSgdRun, DpSgdPlan

    SAVED = ("newest", "average", "optimizer", "noise")

    plan: DpSgdPlan

    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        self._average = Ema(self.newest, self.config.ema_decay)
        self.optimizer = SGD(self.newest.parameters(), self.config.learning_rate, momentum=self.config.momentum)
        self._opacus = opacus_steps(self.config, self.newest, self.optimizer)

    def _build(self) -> Any:
        network = super()._build()
        validate_network(network, self.config)  # no layer of it mixes records
        return network

    @property
    def product(self) -> PrivateClassifier:
        """The moving average of the weights."""
        return cast(PrivateClassifier, self._average.module)

    def step(self, step: int) -> Stats:
        """Clip, sum, add noise, divide by the public divisor, step; then average."""
        losses, norms = self._private_step()
        self._average.update(self.newest)
        return self.dpsgd.statistics(losses, norms)

    def _private_step(self) -> tuple[Tensor, Tensor]:
        """Move the weights by the noisy sum; return losses and norms of the records, (B,) each."""
        if self._opacus is not None:
            records, null = self._records(self.dpsgd.drawn(len(self._images), self.noise))
            batch = Batch(
                lambda network, images, labels: cross_entropy(network(images), labels, reduction="none"), records, null
            )
            return self._opacus.step(self.dpsgd, self.noise, batch)[0]
        weights, tiles = dict(self.newest.named_parameters()), self.tiles
        drawn = self.dpsgd.sample(len(self._images), self.noise, tiles)
        result = self.dpsgd.clipped_sum(self._loss, weights, map(self._records, drawn), tiles)
        self.dpsgd.noisy_step(self.optimizer, weights, result.sums, self.noise)
        return result.losses, result.norms

    def decide_tiles(self, saved: Tiles | None) -> Tiles | None:
        """See `Method`."""
        if self._opacus is not None:
            return None
        image = torch.zeros(1, *self._data.image_shape, device=self.device)
        label = torch.zeros(1, dtype=torch.int64, device=self.device)
        weights, num = dict(self.newest.named_parameters()), len(self._images)
        most = rows_at_once(self.config, self.device)
        return self.dpsgd.tiles(self._loss, weights, [image, label], num=num, most=most, saved=saved)

    def _loss(self, weights: Weights, image: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(self.newest, dict(weights), (image[None],)), label[None])

    def _records(self, index: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return images and labels of the records at positions ``index``, `EMPTY` for none, and which are null."""
        index = sent(index, self.device)
        batch = self._images.select(index.clamp(min=0)).zeroed_out(index < 0).to(self.device)
        return (to_float(batch.images), cast(Tensor, batch.labels)), batch.is_null
