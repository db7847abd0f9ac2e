r"""scattering-linear: linear softmax on fixed features of norm 1, by noisy gradient descent on all images.

Tramer and Boneh (2021), "Differentially private learning needs better features (or much more data)", with full batches
and a clip of the residual. A step releases

.. math:: \frac{1}{B} \Big( \sum_i \mathrm{clip}_C\big((p_i - y_i) f_i^T\big) + N(0, (\sigma C)^2 I) \Big)

with f_i the scattering features of image i, which depend on that image alone and have norm at most 1 *with* their
constant coordinate, p_i the probabilities that the newest weights give it, y_i its label, and B the public expected
number of images in a step.

Sensitivity, L2, zero-out-one: C. The term of a record is a function of that record and of the weights, its norm is
clipped to C (`DPSGDPlan.clipped_outer_sum`), and that of a null record is zero. (A free bias beside features of norm 1
would have gradients of norm sqrt(2) |p - y|: no proof breaks, as all weights are clipped together, but half of the
clip would go to the bias.)

The features are computed at the first step of a process, after its charge, and are never released: they are as private
as the images. Many lie in a file without a name, which ends with the process (`memory.zeros`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from idpgan.classify.classifier import ClassifierRun, StepsPlan, TrainsClassifier
from idpgan.data.images import to_float
from idpgan.data.load import Split
from idpgan.device import resolve_device
from idpgan.memory import LARGEST, check_room, let_go, zeros
from idpgan.models.private_classifier import LinearScattering, PrivateClassifier
from idpgan.progress import counted
from idpgan.training.config import MOST_STEPS, MethodConfig, TrainingConfig
from idpgan.training.method import Stats

_MOST_RATE = 1000.0
_LOGIT_NOISE = 2.0  # standard deviation that the noise of all steps may add up to in one logit
_FLOAT = 4  # bytes
_ROWS = 1000  # images at once


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
    """[training] of scattering-linear: few steps, each on all images up to a million.

    Attributes:
        steps: Steps of noisy gradient descent, each of which is charged.
    """

    steps: int = Field(80, ge=1, le=MOST_STEPS)
    batch_size: int = Field(1_000_000, ge=1, le=1_000_000)
    tick_steps: int = Field(20, ge=1, le=MOST_STEPS)


class ScatteringLinearRun(ClassifierRun):
    """A whole config file of scattering-linear."""

    method: ScatteringLinearConfig = ScatteringLinearConfig()
    training: ScatteringLinearTraining = ScatteringLinearTraining()


class ScatteringLinearPlan(StepsPlan):
    """The plan of a run of scattering-linear."""

    WAY_OUT = "Lower method.directions, resize the images, or take a classifier that keeps no features (dp-sgd)."

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """Return the linear classifier with weights of zero."""
        method = self.config.method
        return LinearScattering(image_shape, classes, scales=method.scales, directions=method.directions)

    def step_bytes(self, classifier: PrivateClassifier) -> int:
        """Count the features of all images, which are kept; many of them on the disk, where there is no GPU."""
        kept = self.shape.num_private * sum(weight.shape[1] for weight in classifier.parameters()) * _FLOAT
        if kept <= LARGEST or resolve_device(self.config.training.device).type != "cpu":
            return kept
        check_room(kept, 1, f"The features of {self.shape.num_private:,} images", self.WAY_OUT)
        return LARGEST

    @property
    def learning_rate(self) -> float:
        """The learning rate for N images.

        T steps of noise sigma C / N, which momentum m multiplies by 1 / (1 - m), add up to a standard deviation of
        ``rate sigma C sqrt(T) / ((1 - m) N)`` in a logit, as features have norm 1.
        """
        method, dpsgd = self.config.method, self.dpsgd
        if method.learning_rate is not None:
            return float(method.learning_rate)
        walk = dpsgd.noise_multiplier * dpsgd.clip_norm * math.sqrt(self.config.training.steps) / dpsgd.divisor
        return min(_MOST_RATE, _LOGIT_NOISE * (1 - method.momentum) / walk)


class ScatteringLinear(TrainsClassifier):
    """The method as the loop sees it; see `TrainsClassifier`.

    Args:
        shares: (N,) in [0, 1], each image's share of its person, for unit person; None = every image is a unit.
    """

    Config, Plan = ScatteringLinearRun, ScatteringLinearPlan

    newest: LinearScattering
    SAVED = ("newest", "product", "averaged", "optimizer", "noise")

    plan: ScatteringLinearPlan

    def _set_up(self, split: Split, shares: Tensor | None = None) -> None:
        super()._set_up(split)
        self._shares = None if shares is None else shares.to(self.device)
        self._product = copy.deepcopy(self.newest).eval().requires_grad_(False)
        self.optimizer = torch.optim.SGD(
            self.newest.parameters(), self.plan.learning_rate, momentum=self.config.momentum
        )
        self._averaged = 0
        self._known: Tensor | None = None  # features of all private images, once they were read

    @property
    def product(self) -> LinearScattering:
        """The average of the iterates."""
        return self._product

    def step(self, step: int) -> Stats:
        """Clip, sum, add noise, divide by the public divisor, step; then average."""
        features, weight = self._features(), self.newest.weight
        drawn = self.dpsgd.sample(len(self._images), self.noise)
        total = torch.zeros(weight.shape, dtype=torch.float64, device=self.device)
        losses, norms = [], []
        for index in drawn.split(_ROWS):
            whole = self.dpsgd.sample_rate == 1 and len(index)  # rows that lie together need no copy
            rows = features[int(index[0]) : int(index[-1]) + 1] if whole else features[index]
            every, null = cast(Tensor, self._images.labels), self._images.null
            labels = every[index.to(every.device)].to(self.device)
            null = None if null is None else null[index.to(every.device)].to(self.device)
            with torch.no_grad():
                logits = rows @ weight.T
            residuals = logits.softmax(1) - one_hot(labels, logits.shape[1])
            losses.append(cross_entropy(logits, labels, reduction="none"))
            shares = None if self._shares is None else self._shares[index.to(self.device)]
            norms.append(self.dpsgd.clipped_outer_sum(residuals, rows, null=null, weights=shares, total=total)[1])
            let_go(features)
        self.dpsgd.noisy_step(self.optimizer, {"weight": weight}, {"weight": total}, self.noise)
        self._average(step)
        return self.dpsgd.statistics(torch.cat(losses), torch.cat(norms)) if losses else {}

    def _features(self) -> Tensor:
        """Return the features of all private images (N, D), computed when they are first asked for.

        Rows that no step of this rank asks for stay empty.
        """
        if self._known is None:
            known = zeros((len(self._images), self.newest.num_features), torch.float32, self.device)
            needed = torch.arange(len(known))
            if self.dpsgd.sample_rate == 1:  # always the same share
                needed = needed[self.dpsgd.ranks.share(len(known))]
            for index in counted(needed.split(_ROWS), self.progress, "features", len(needed), len):
                pixels = self._images.select(index).to(self.device).images
                with torch.no_grad():
                    known[index[0] : index[-1] + 1] = self.newest.features(to_float(pixels))
            self._known = known
        return self._known

    def _average(self, step: int) -> None:
        """Add the newest weights to the average of the iterates: post-processing."""
        if step <= self.config.average_from * self._run.training.steps:
            self._product.load_state_dict(self.newest.state_dict())
            return
        self._averaged += 1
        with torch.no_grad():
            self._product.weight.lerp_(self.newest.weight, 1 / self._averaged)
