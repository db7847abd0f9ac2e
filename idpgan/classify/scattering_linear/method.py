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

The features are computed at the first step of a process, after its charge, stay in memory and are never released or
written: they belong to the private images.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from idpgan.classify.scattering_linear.config import ScatteringLinearRun
from idpgan.classify.training import TrainsClassifier, step_statistics
from idpgan.data.images import to_float
from idpgan.data.load import Split
from idpgan.models.private_classifier import LinearScattering
from idpgan.privacy import Ledger, Noise
from idpgan.training.method import Stats

_ROWS = 1000  # images at once


class ScatteringLinear(TrainsClassifier):
    """The method as the loop sees it; see `TrainsClassifier`.

    Args:
        shares: (N,) in [0, 1], each image's share of its person, for unit person; None = every image is a unit.
    """

    Config = ScatteringLinearRun

    newest: LinearScattering
    SAVED = ("newest", "product", "averaged", "optimizer", "noise")

    def __init__(
        self,
        config: ScatteringLinearRun,
        split: Split,
        *,
        ledger: Ledger,
        device: torch.device,
        noise: Noise | None = None,
        shares: Tensor | None = None,
    ) -> None:
        super().__init__(config, split, ledger=ledger, device=device, noise=noise)
        self._shares = None if shares is None else shares.to(device)
        self.training = config.training
        self._product = copy.deepcopy(self.newest).eval().requires_grad_(False)
        self.optimizer = torch.optim.SGD(
            self.newest.parameters(), config.learning_rate(split.num_private), momentum=self.config.momentum
        )
        self._averaged = 0
        self._known: Tensor | None = None  # features of all private images, once they were read

    @property
    def product(self) -> LinearScattering:
        """See `Method`."""
        return self._product

    def step(self, step: int) -> Stats:
        """Clip, sum, add noise, divide by the public divisor, step; then average."""
        features = self._features()
        drawn = self.plan.sample(len(self._images), self.noise)
        weight = self.newest.weight
        total = torch.zeros(weight.shape, dtype=torch.float64, device=self.device)
        losses, norms = [], []
        for index in drawn.split(_ROWS):
            whole = self.plan.sample_rate == 1 and len(index)  # rows that lie together need no copy
            rows = features[int(index[0]) : int(index[-1]) + 1] if whole else features[index]
            labels, null = self._labels_of(index)
            with torch.no_grad():
                logits = rows @ weight.T
            residuals = logits.softmax(1) - one_hot(labels, logits.shape[1])
            losses.append(cross_entropy(logits, labels, reduction="none"))
            shares = None if self._shares is None else self._shares[index.to(self.device)]
            norms.append(self.plan.clipped_outer_sum(residuals, rows, null=null, weights=shares, total=total)[1])
        self.plan.noisy_step(self.optimizer, {"weight": weight}, {"weight": total}, self.noise)
        self._average(step)
        return step_statistics(torch.cat(losses), torch.cat(norms), self.plan.clip_norm) if losses else {}

    def _features(self) -> Tensor:
        """Return the features of all private images (N, D), computed when they are first asked for.

        Rows that no step of this rank asks for stay empty.
        """
        if self._known is None:
            known = torch.empty(len(self._images), self.newest.num_features, device=self.device)
            needed = torch.arange(len(known))
            if self.plan.sample_rate == 1:  # always the same share
                needed = needed[self.plan.ranks.share(len(known))]
            for index in needed.split(_ROWS):
                pixels = self._images.select(index).to(self.device).images
                with torch.no_grad():
                    known[index[0] : index[-1] + 1] = self._features_of(pixels)
            self._known = known
        return self._known

    def _features_of(self, pixels: Tensor) -> Tensor:
        return self.newest.features(to_float(pixels))

    def _labels_of(self, index: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return labels of private images, and which of them are null records."""
        labels, null = cast(Tensor, self._images.labels), self._images.null
        at = index.to(labels.device)
        return labels[at].to(self.device), None if null is None else null[at].to(self.device)

    def _average(self, step: int) -> None:
        """Add the newest weights to the average of the iterates: post-processing."""
        if step <= self.config.average_from * self.training.steps:
            self._product.load_state_dict(self.newest.state_dict())
            return
        self._averaged += 1
        with torch.no_grad():
            self._product.weight.lerp_(self.newest.weight, 1 / self._averaged)
