"""``eigenfaces``: noise on coefficients in a basis of other people's faces."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import pydantic
import torch
from torch import Tensor

from idpgan.privacy.guarantee import Unit
from idpgan.privacy.noise import Noise
from idpgan.publish.plan import Recipe, Shape
from idpgan.publish.sound.numbers import (
    PIXEL_RANGE,
    ROUNDING,
    LawOptions,
    Sensitivity,
    calibrate_numbers,
    least_error,
    touched_pixels,
)
from idpgan.publish.sound.prior import DIRECTIONS, face_directions, face_prior

_LEAST_STD = 1e-6  # share of the largest; directions below are not independent


class EigenfacesOptions(LawOptions):
    """Options of ``eigenfaces``.

    Attributes:
        components: Coefficients released, or as many as there are; None = what has the least expected error under the
            model of faces.
    """

    components: int | None = pydantic.Field(default=None, ge=1, le=DIRECTIONS)


@dataclass(frozen=True, eq=False)
class Coefficients:
    r"""``w_i u_i . (X - mean)`` for public orthonormal directions u_i, clipped to a public L1 norm.

    The weights ``w_i = std_i^(-1/3)`` distribute the noise so that its sum of squares is least for a given expected L1
    norm. The vector v of weighted coefficients is clipped to ``v min(1, C / |v|_1)`` where that lowers the sensitivity.

    Attributes:
        mean: (m, n).
        basis: (k, m, n), orthonormal.
        std: (k,) standard deviations of the coefficients of faces under the model.
    """

    mean: Tensor
    basis: Tensor
    std: Tensor

    @functools.cached_property
    def weights(self) -> Tensor:
        """The w_i, (k,)."""
        return self.std.pow(-1 / 3)

    @property
    def clip(self) -> float:
        """C: 5/4 of the expected L1 norm of a face, which is sqrt(2 / pi) sum w_i std_i."""
        return float((self.weights * self.std).sum())

    def sensitivity(self, unit: Unit) -> tuple[Sensitivity, float]:
        r"""Return the distance of neighbors, and the L1 norm to clip to (infinite: no clipping).

        Let D = X - X', |D_p| <= R, zero outside of the unit P. Without clipping coefficient i moves by
        ``|sum_{p in P} w_i u_ip D_p| <= R t_i(P)`` with ``t_i(P) = w_i sum_{p in P} |u_ip|``; all norms of the move are
        bounded by those of t(P), and the maximum over all units P of the image is taken (exact for a pixel). With
        clipping both vectors lie in the L1 ball of radius C, hence in the L2 ball and the cube: every norm of their
        difference is at most 2 C, whatever changed. (Clipping can also *lengthen* a small move, so the two bounds are
        not combined: one of them holds for the vectors that are released.) Widened by `ROUNDING`.
        """
        touched_pixels(self.mean.shape, unit)
        moves = self.basis.abs() * self.weights[:, None, None]  # (k, m, n)
        if unit is Unit.COLUMN:
            moves = moves.sum(1, keepdim=True)
        elif unit is Unit.IMAGE:
            moves = moves.sum((1, 2), keepdim=True)
        R, k = PIXEL_RANGE * ROUNDING, len(self.std)
        l1, most = float(moves.sum(0).amax()) * R, float(moves.amax()) * R
        l2 = float(moves.square().sum(0).amax().sqrt()) * R
        clipped = 2 * self.clip * ROUNDING
        if clipped < l1:
            return Sensitivity(clipped, clipped, clipped, k), self.clip
        return Sensitivity(l1, l2, most, k), math.inf

    def __call__(self, images: Tensor, clip: float) -> Tensor:
        """Return the clipped weighted coefficients of images (N, m, n): (N, k) float64."""
        centered = images.clamp(0, PIXEL_RANGE).double() - self.mean.to(images.device)
        weighted = centered.flatten(1) @ self.basis.to(images.device).flatten(1).mT * self.weights.to(images.device)
        if math.isinf(clip):
            return weighted
        return weighted * (clip / weighted.abs().sum(1, keepdim=True).clamp(min=clip))

    def gain(self, variance: float) -> Tensor:
        """Return the share of each noisy coefficient that is kept, the posterior mean for Gaussian noise, (k,)."""
        signal = (self.std * self.weights).square()
        return signal / (signal + variance)

    def error(self, variance: float) -> float:
        """Return the expected squared error minus that of releasing no coefficient."""
        return -float((self.std.square() * self.gain(variance)).sum())

    def estimate(self, numbers: Tensor, variance: float) -> Tensor:
        """Map noisy coefficients (N, k) to images (N, m, n)."""
        factors = (self.gain(variance) / self.weights).to(numbers.device)
        return self.mean.to(numbers.device) + torch.einsum("nk,kij->nij", numbers * factors, self.basis.to(numbers))


@functools.lru_cache(maxsize=64)
def face_coefficients(shape: Shape, components: int) -> Coefficients:
    """Return the strongest directions of faces of (m, n) pixels: ``components`` of them, or all if there are fewer."""
    _, std, directions = torch.linalg.svd(face_directions(shape).flatten(1), full_matrices=False)
    kept = min(components, int((std > _LEAST_STD * std[0]).sum()))
    return Coefficients(face_prior(shape).mean, directions[:kept].reshape(kept, *shape), std[:kept])


def plan_eigenfaces(shape: Shape, unit: Unit, epsilon: float, delta: float, options: EigenfacesOptions) -> Recipe:
    """Return the plan of ``eigenfaces``; proof in `Coefficients.sensitivity`, noise of `NoisyNumbers`."""
    counts = [options.components] if options.components else range(1, DIRECTIONS + 1)

    queries = [face_coefficients(shape, count) for count in counts]
    bounds = [(query, query.sensitivity(unit)[0]) for query in queries]
    query, sensitivity = least_error(bounds, Coefficients.error, unit, options.law, epsilon=epsilon, delta=delta)
    noisy = calibrate_numbers(sensitivity, unit, options.law, epsilon=epsilon, delta=delta)
    clip = query.sensitivity(unit)[1]

    def release(images: Tensor, noise: Noise) -> Tensor:
        return query.estimate(noisy(query(images, clip), noise), noisy.variance)

    return Recipe((noisy.event,), release)
