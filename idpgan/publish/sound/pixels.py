"""``lap``, ``lap-shrink`` and ``lap-wiener``: discrete noise on every pixel, and two ways to make the best of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from idpgan.numerics.svd import batched_svd
from idpgan.privacy.guarantee import Unit
from idpgan.privacy.noise import Noise
from idpgan.publish.plan import Plan, Shape
from idpgan.publish.sound.numbers import Law, LawOptions, NoisyNumbers, calibrate_numbers
from idpgan.publish.sound.prior import face_prior
from idpgan.publish.sound.queries import PIXEL_RANGE, pixel_sensitivity

_GREY = 0.5  # what a singular value of 0 stands for
_MARGIN = 2.0


class NoisyPixels(NoisyNumbers):
    """Every pixel, clamped to [0, 1] and released as `NoisyNumbers`; sensitivity: `queries.pixel_sensitivity`."""

    def __call__(self, images: Tensor, noise: Noise) -> Tensor:
        """Release finite images of any shape; float64, not clamped."""
        return super().__call__(images.clamp(0, PIXEL_RANGE), noise)


def calibrate_pixels(shape: Sequence[int], unit: Unit, law: Law, *, epsilon: float, delta: float) -> NoisyPixels:
    """Return the release of (m, n) images with the least noise that costs at most (epsilon, delta).

    Raises:
        InputError: If the budget is impossible; see `calibrate_numbers`.
    """
    found = calibrate_numbers(pixel_sensitivity(shape, unit), unit, law, epsilon=epsilon, delta=delta)
    return NoisyPixels(found.mechanism, found.grid, found.count)


def plan_lap(shape: Shape, unit: Unit, epsilon: float, delta: float, options: LawOptions) -> Plan:
    """Return the plan of ``lap``: every pixel with its noise, and nothing else."""
    release = calibrate_pixels(shape, unit, options.law, epsilon=epsilon, delta=delta)
    return Plan((release.event,), release)


def plan_shrink(shape: Shape, unit: Unit, epsilon: float, delta: float, options: LawOptions) -> Plan:
    """Return the plan of ``lap-shrink``: ``lap``, then `shrink` at the known noise level, as post-processing."""
    noisy = calibrate_pixels(shape, unit, options.law, epsilon=epsilon, delta=delta)

    def release(images: Tensor, noise: Noise) -> Tensor:
        return _GREY + shrink(noisy(images, noise) - _GREY, math.sqrt(noisy.variance))

    return Plan((noisy.event,), release)


def plan_wiener(shape: Shape, unit: Unit, epsilon: float, delta: float, options: LawOptions) -> Plan:
    """Return the plan of ``lap-wiener``: ``lap``, then the estimate under the model of faces, as post-processing."""
    noisy = calibrate_pixels(shape, unit, options.law, epsilon=epsilon, delta=delta)
    prior = face_prior(shape)
    identities = [torch.eye(size, dtype=torch.float64) for size in shape]
    estimate = prior.estimate(identities[0], identities[1], noisy.variance)
    return Plan((noisy.event,), lambda images, noise: estimate(noisy(images, noise)))


def shrink(matrices: Tensor, std: float) -> Tensor:
    r"""Shrink the singular values of noisy matrices, with the least squared error as m and n grow in proportion.

    Gavish and Donoho (2017), Optimal shrinkage of singular values, eq. 7: with n >= m, beta = m / n and singular
    values y in units of ``std sqrt(n)``, ``eta(y) = sqrt((y^2 - beta - 1)^2 - 4 beta) / y`` above ``1 + sqrt(beta)``
    and 0 below: it chooses the rank as well. The largest singular value of noise alone lies around that edge and not
    below it, so the threshold is ``_MARGIN n^(-2/3)`` of the edge higher, n^(-2/3) being the order of its fluctuation.

    Args:
        matrices: (N, m, n), of low rank plus noise.
        std: Of the noise on each entry, > 0.
    """
    U, values, Vh = batched_svd(matrices)
    short, long = sorted(matrices.shape[-2:])
    beta, unit = short / long, std * math.sqrt(long)
    edge, y = 1 + math.sqrt(beta), values / unit
    kept = y > edge * (1 + _MARGIN * long ** (-2 / 3))
    shrunk = ((y.square() - beta - 1).square() - 4 * beta).clamp(min=0).sqrt() / y.clamp(min=edge)
    return (U * (shrunk * kept * unit)[:, None]) @ Vh
