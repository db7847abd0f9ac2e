r"""dp-sgd: a small convolutional classifier by DP-SGD (Abadi et al. 2016, "Deep Learning with Differential Privacy").

A step reads the records that independent coins of chance q = B / N choose, and releases the noisy sum of their clipped
gradients divided by the public B: a step of `privacy.dpsgd.DPSGDPlan`, the Poisson-sampled Gaussian mechanism, unit
image, zero-out-one. Sensitivity: an image and its label are one record, and a record's gradient is a function of that
record and of the weights, as no layer mixes records (`validate_private_critic` tries it). The moving average of the
weights is post-processing.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from idpgan.classify.dp_sgd.config import DpSgdRun
from idpgan.classify.training import TrainsClassifier, step_statistics
from idpgan.data.images import to_float
from idpgan.data.load import Split
from idpgan.models.ema import Ema
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.models.validate import validate_private_critic
from idpgan.privacy import Ledger, Noise
from idpgan.privacy.dpsgd import Way, Weights
from idpgan.training.method import Stats


class DpSgd(TrainsClassifier):
    """The method as the loop sees it; see `TrainsClassifier`."""

    Config = DpSgdRun

    SAVED = ("newest", "average", "optimizer", "noise", "physical_batch", "way")

    def __init__(
        self, config: DpSgdRun, split: Split, *, ledger: Ledger, device: torch.device, noise: Noise | None = None
    ) -> None:
        super().__init__(config, split, ledger=ledger, device=device, noise=noise)
        self._average = Ema(self.newest, self.config.ema_decay)
        self.optimizer = torch.optim.SGD(
            self.newest.parameters(), self.config.learning_rate, momentum=self.config.momentum
        )
        self._physical_batch = self.config.max_physical_batch
        self._way: Way = "ghost"

    def _build(self) -> PrivateClassifier:
        """Build the network, and see that no layer of it mixes records."""
        network = super()._build()
        validate_private_critic(network)
        return network

    @property
    def product(self) -> PrivateClassifier:
        """See `Method`."""
        average: PrivateClassifier = self._average.module  # type: ignore[assignment]
        return average

    def step(self, step: int) -> Stats:
        """Clip, sum, add noise, divide by the public divisor, step; then average."""
        batch = self._images.select(self.plan.sample(len(self._images), self.noise)).to(self.device)
        weights = dict(self.newest.named_parameters())
        records = (to_float(batch.images), cast(Tensor, batch.labels))
        result = self.plan.clipped_sum(
            self._loss, weights, records, physical_batch=self._physical_batch, null=batch.null, way=self._way
        )
        self._physical_batch, self._way = result.physical_batch, result.way
        self.plan.noisy_step(self.optimizer, weights, result.sums, self.noise)
        self._average.update(self.newest)
        return step_statistics(result.losses, result.norms, self.plan.clip_norm)

    def _loss(self, weights: Weights, image: Tensor, label: Tensor) -> Tensor:
        """Return the cross-entropy of one record."""
        logits = functional_call(self.newest, dict(weights), (image[None],))
        return cross_entropy(logits, label[None])
