"""The audit of dp-sgd: the network of canaries, one weight each, takes the place of the classifier."""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.audit.gradient_canaries import SLOPE, STILL, CanaryNetwork
from idpgan.classify.audit import CLASSES, WatchedClassifier, entry_of, ledger_of_nobody
from idpgan.classify.config import ClassifierPrivacy
from idpgan.classify.dp_sgd.config import DpSgdConfig, DpSgdRun, DpSgdTraining
from idpgan.classify.dp_sgd.method import DpSgd
from idpgan.data.load import Split
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.privacy import Noise
from idpgan.training.config import TrainingConfig

_SAMPLE_RATE, _STEPS, _CLIP_NORM = 0.3, 50, 1.0  # of a plan that stands for all: nearly Gaussian


class _CanaryClassifier(PrivateClassifier):
    """Says how much an image looks like the first class by the weight of the canary that it shows."""

    network = "canaries"

    def __init__(self, image_shape: tuple[int, int, int], canaries: int, slope: float) -> None:
        super().__init__(image_shape, CLASSES)
        self.canaries = CanaryNetwork(canaries, slope)

    def forward(self, images: Tensor) -> Tensor:
        score = self.canaries(images)
        return torch.stack([score, torch.zeros_like(score)], 1)


class _Watched(WatchedClassifier, DpSgd):
    def _build(self) -> PrivateClassifier:
        network = _CanaryClassifier(self._data.image_shape, len(self._images), 2 * SLOPE * self._run.clip_norm).to(
            self.device
        )
        self.weight = network.canaries.weight
        return network

    def seen(self) -> Tensor:
        return -self.gradient.double()  # the loss falls where the score rises


def _make(
    split: Split, clip_norm: float, privacy: ClassifierPrivacy, training: TrainingConfig, noise: Noise
) -> _Watched:
    section = DpSgdConfig(clip_norm=clip_norm, learning_rate=STILL, momentum=0.0, ema_decay=0.0, max_physical_batch=512)
    config = DpSgdRun(method=section, privacy=privacy, training=DpSgdTraining(**training.model_dump()))
    return _Watched(config, split, ledger=ledger_of_nobody(), device=torch.device(noise.device), noise=noise)


AUDIT = entry_of("dp-sgd", _make, _SAMPLE_RATE, _STEPS, _CLIP_NORM)
