r"""The price of collaborative and split learning: two mechanisms from the literature, and the noise of the second.

The functions charge nothing: they price settings. `FeatureNoise` makes what a phone sends of one image, after Wang,
Zhang, Bao, Zhu, Cao, Yu 2018, "Not just privacy: improving performance of private deep learning in mobile cloud"
(ARDEN).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from idpgan.checks import fit, whole
from idpgan.errors import InputError
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.mechanisms import DiscreteLaplace, Grid
from idpgan.privacy.noise import Noise

_SAFE = 1 + 2.0**-50  # covers what a few floating-point operations may round down


class SharingScales(NamedTuple):
    """Laplace scales of selective sharing: of the threshold, of each comparison, and of each uploaded value."""

    threshold: float
    comparison: float
    value: float


def _positive(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 < fit(value, float, name) < math.inf:
            raise InputError(f"{name} = {value} must be positive and finite.")


def sharing_scales(epsilon: float, uploads: int, bound: float) -> SharingScales:
    """Return the noise of Shokri and Shmatikov 2015, figure 12, for one participant and epoch.

    ``epsilon_1 = 8/9 epsilon`` chooses, ``epsilon_2 = 2/9 epsilon`` is for the values, ``s(x) = 2 c D / x``: threshold
    ``s(epsilon_1)``, comparisons ``2 s(epsilon_1)``, values ``s(epsilon_2)``.

    Args:
        epsilon: Per epoch; the paper states ``epsilon / uploads``, per uploaded parameter.
        uploads: c.
        bound: Every gradient is clipped to [-bound, bound], so that D = 2 bound.
    """
    _positive(epsilon=epsilon, bound=bound)
    whole(uploads, "uploads", 1)
    unit = 2 * uploads * 2 * bound
    return SharingScales(unit / (8 / 9 * epsilon), 2 * unit / (8 / 9 * epsilon), unit / (2 / 9 * epsilon))


def sharing_epsilon(scales: SharingScales, uploads: int, bound: float, epochs: int, redrawn: bool = True) -> float:
    """Return the pure epsilon of everything that one participant uploads; its whole data set is the unit.

    Each upload is a sparse vector of one positive (`idpgan.privacy.SparseVector`), then a Laplace release:
    ``D / threshold + 2 D / comparison + D / value`` with D = 2 bound. All uploads and epochs add up. Infinite unless
    the threshold is redrawn for each upload, as after one positive its noise has proven all that it can. ``bound`` is a
    constant: gradients clipped to a statistic of themselves have no sensitivity.

    Example:
        >>> round(sharing_epsilon(sharing_scales(1.0, 10, 0.001), 10, 0.001, 1), 9)
        1.0
    """
    _positive(bound=bound, **fit(scales, SharingScales, "scales")._asdict())
    whole(uploads, "uploads", 1)
    whole(epochs, "epochs", 1)
    if not redrawn:
        return math.inf
    moves = 2 * bound
    each = moves / scales.threshold + 2 * moves / scales.comparison + moves / scales.value
    return epochs * uploads * each * _SAFE


def split_network_epsilon(dimensions: int, bound: float, scale: float) -> float:
    """Return the pure epsilon of one image whose features leave the device with Laplace noise; replace-one.

    Wang, Zhang, Bao, Zhu, Cao, Yu 2018, "Not just privacy" (ARDEN): features of norm ``|f|_inf <= bound`` by clipping,
    noise Lap(scale) on each of d ``dimensions``. Features of two images differ by at most ``2 bound`` each, together by
    ``2 bound d``. The paper's bound is the median of the norms, which leaks if the images are private; here it is a
    constant.

    Example:
        >>> split_network_epsilon(100, 1.0, 50.0)
        4.0...
    """
    _positive(bound=bound, scale=scale)
    return 2 * bound * whole(dimensions, "dimensions", 1) / scale * _SAFE


def nullified_epsilon(epsilon: float, rate: float) -> float:
    """Return the pure epsilon of *one pixel* if a coin of chance ``rate`` sets it to 0 before the mechanism sees it.

    ``ln((1 - rate) e^epsilon + rate)``, as in ARDEN's theorem. Proof: let A be the density of an output given that the
    pixel was nullified, B and B' those for its two values, B > B'. The ratio ``(r A + (1-r) B) / (r A + (1-r) B')``
    falls in A, so it is largest at the least A, ``e^-epsilon B``; then it grows with B / B', at most e^epsilon, where
    A = B': ``r + (1-r) e^epsilon``. Each pixel has a coin of its own. For a whole image it buys next to nothing: all
    its d pixels are nullified with chance ``rate^d`` only.
    """
    _positive(epsilon=epsilon)
    if not 0 <= fit(rate, float, "rate") < 1:
        raise InputError(f"rate = {rate} must lie in [0, 1).")
    return math.log1p((1 - rate) * math.expm1(min(epsilon, 700.0))) * _SAFE


@dataclass(frozen=True)
class FeatureNoise:
    """Makes what a phone sends of one image: its features on a public grid, with discrete Laplace noise on each.

    Formal guarantee, unit image, replace-one: features lie in [-1, 1]^d whatever the image (`SplitCnn.features`), so
    another image moves each by at most 2 and all together by 2 d in L1, the rounding to the grid included (`Grid.l1`).
    One `DiscreteLaplace` of that sensitivity: pure epsilon. Which pixels were nullified before is drawn independently
    of the image, so the proof holds; the guarantee does not use it, as it saves an image almost nothing.

    Attributes:
        features: d.
        epsilon: Price of one image, > 0; the scale of the noise is the least in whole grid steps that keeps to it.
    """

    features: int
    epsilon: float
    grid: ClassVar[Grid] = Grid.fine(2.0, 1, norm=1, resolution=10_000)  # rounding costs 0.01 to 0.02 % of epsilon

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

        A feature that is NaN counts as 0: every image gets an answer.
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
