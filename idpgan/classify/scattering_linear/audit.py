"""The audit of scattering-linear: the features of canary j are the j-th axis, so that column j of the gradient is its.

Under weights of zero the residual of every canary is (-1/2, 1/2), a known direction, on which the column is projected;
the axes are so long that its gradient is far above the clip norm.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from idpgan.audit.gradient_canaries import SLOPE, STILL
from idpgan.classify.audit import WatchedClassifier, entry_of, ledger_of_nobody
from idpgan.classify.config import ClassifierPrivacy
from idpgan.classify.scattering_linear.config import (
    ScatteringLinearConfig,
    ScatteringLinearRun,
    ScatteringLinearTraining,
)
from idpgan.classify.scattering_linear.method import ScatteringLinear
from idpgan.data.load import Split
from idpgan.models.private_classifier import LinearScattering, PrivateClassifier
from idpgan.privacy import Noise
from idpgan.training.config import TrainingConfig

_STEPS, _CLIP_NORM = 80, 0.1  # of a plan that stands for all


class _Watched(WatchedClassifier, ScatteringLinear):
    def _build(self) -> PrivateClassifier:
        network = LinearScattering(self._data.image_shape, self._data.classes)
        network.num_features = len(self._images)
        network.weight = self.weight = nn.Parameter(torch.zeros(2, network.num_features, device=self.device))
        return network

    def _features(self) -> Tensor:
        return SLOPE * self.plan.clip_norm * torch.eye(len(self._images), device=self.device)

    def seen(self) -> Tensor:
        return (self.gradient[1].double() - self.gradient[0].double()) / math.sqrt(2)


def make(
    split: Split, clip_norm: float, privacy: ClassifierPrivacy, training: TrainingConfig, noise: Noise
) -> WatchedClassifier:
    """Build the method for canaries; see `idpgan.classify.audit.Make`."""
    section = ScatteringLinearConfig(clip_norm=clip_norm, learning_rate=STILL, momentum=0.0)
    config = ScatteringLinearRun(
        method=section, privacy=privacy, training=ScatteringLinearTraining(**training.model_dump())
    )
    return _Watched(config, split, ledger=ledger_of_nobody(), device=torch.device(noise.device), noise=noise)


AUDIT = entry_of("scattering-linear", make, 1.0, _STEPS, _CLIP_NORM)
