"""The noise between the two parts of a network: what leaves a phone of one image.

After Wang, Zhang, Bao, Zhu, Cao, Yu 2018, "Not just privacy: improving performance of private deep learning in mobile
cloud" (ARDEN).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from idpgan.privacy.collaborative import nullified_epsilon
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.mechanisms import DiscreteLaplace, Grid
from idpgan.privacy.noise import Noise


@dataclass(frozen=True)
class FeatureNoise:
    """What leaves the phone of one image: its features on a public grid, with discrete Laplace noise on each.

    Formal guarantee, unit image, replace-one: features lie in [-1, 1]^d whatever the image (`SplitCnn.features`), so
    another image moves each by at most 2 and all together by 2 d in L1, the rounding to the grid included
    (`Grid.l1`). One `DiscreteLaplace` of that sensitivity: pure epsilon. Which pixels were nullified before is drawn
    whatever the image is, so it changes nothing; it is not counted on, as for an image it buys next to nothing.

    Attributes:
        features: d.
        epsilon: Of one image, > 0; the scale of the noise is the least in whole grid steps that keeps to it.
    """

    features: int
    epsilon: float

    @property
    def grid(self) -> Grid:
        """The public grid of a feature: rounding costs 0.01 to 0.02 % of epsilon."""
        return Grid.fine(2.0, 1, norm=1, resolution=10_000)

    @functools.cached_property
    def mechanism(self) -> DiscreteLaplace:
        """The noise, in grid steps."""
        distance = self.grid.l1(2.0 * self.features, self.features)
        return DiscreteLaplace(distance, math.ceil(distance / self.epsilon), Unit.IMAGE, Relation.REPLACE_ONE)

    @property
    def scale(self) -> float:
        """b: the Laplace scale of a feature, in units of its bound B."""
        return self.mechanism.scale * self.grid.step

    def claimed(self, nullification: float) -> float:
        """Return what the paper states: the price of *one* feature, 2 B / b, after a share of pixels was nullified."""
        return nullified_epsilon(2 / self.scale, nullification)

    def release(self, features: Tensor, noise: Noise) -> Tensor:
        """Perturb features (N, d) in [-1, 1] with secret noise: whole grid steps, int64 (N, d) on the CPU.

        A feature that is not a number counts as 0: an answer is given whatever the image is.
        """
        inside = features.double().nan_to_num(0.0).clamp(-1, 1).cpu()
        return self.mechanism(self.grid.round(inside), noise)

    def perturb_public(self, features: Tensor, rng: torch.Generator) -> Tensor:
        """Perturb features of public images with noise of the same scale that need not be secret, continuous."""
        uniform = torch.rand((2, *features.shape), generator=rng).clamp_(min=1e-30).log_().to(features.device)
        return features + (uniform[0] - uniform[1]) * self.scale

    def values(self, steps: Tensor) -> Tensor:
        """Map what `release` returned to features, float32."""
        return self.grid.value(steps).float()
