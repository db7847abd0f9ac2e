r"""``lap``: discrete noise on every pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from idpgan.errors import InputError
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.discrete import MAX_LAPLACE_SCALE
from idpgan.privacy.event import Event
from idpgan.privacy.grid import Grid
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.mechanisms import DiscreteLaplace, RoundedGaussian
from idpgan.privacy.noise import Noise
from idpgan.publish.plan import Options, Plan, Shape

Law = Literal["laplace", "gaussian"]
PIXEL_RANGE = 1.0  # R: images are clamped to [0, 1] before noise


class LapOptions(Options):
    """Options of ``lap``.

    Attributes:
        law: Of the noise: discrete "laplace" (pure where delta is 0) or discrete "gaussian" (needs delta > 0).
    """

    law: Law = "laplace"


@dataclass(frozen=True)
class PixelRelease:
    r"""Every pixel, clamped to [0, 1], rounded to a public grid, plus discrete noise.

    Formal guarantee. Let neighbors be two images that differ in one unit: one pixel (d = 1 numbers), one column
    (d = m), or the whole image (d = m n); replace-one. Clamping acts pixel by pixel, so after it the d numbers differ
    by at most R = 1 each: by d R in L1 and sqrt(d) R in L2. Rounding moves each number by at most half a grid step, so
    the difference moves by at most one step per number: at most ``d R / step + d`` steps in L1 (`Grid.l1`) and
    ``sqrt(d) R / step + sqrt(d)`` in L2 (`Grid.l2`). All other numbers are equal. Hence, in whole steps:

    * joint (Laplace): one release of L1 sensitivity ``Grid.l1(d R, d)``: pure epsilon = sensitivity / scale.
    * by pixel (Laplace): d releases of one number, each of sensitivity ``Grid.l1(R, 1)``: their d-fold privacy loss
      distribution, since noise is independent and each pair is dominated by its largest move.
    * Gaussian: one release of L2 sensitivity ``Grid.l2(sqrt(d) R, d)``: zCDP.

    The unit's numbers lie in one image, and every image of a batch is a record of its own with its own noise: a
    neighbor changes one image, all others have the same law, so the batch costs what one image costs (parallel
    composition by position, which ignores content).

    Nothing here depends on an image: m, n, d, the grid and the scale are known before one is read.

    Attributes:
        mechanism: The noise; its sensitivity is in grid steps.
        grid: The public grid.
        count: Releases to charge: 1 if joint, d by pixel.
    """

    mechanism: DiscreteLaplace | RoundedGaussian
    grid: Grid
    count: int = 1

    @property
    def event(self) -> Event:
        """What the release of any number of images costs."""
        return self.mechanism.event.repeated(self.count)

    @property
    def scale(self) -> float:
        """Noise parameter b or sigma on the pixel scale [0, 1]."""
        return self.mechanism.scale * self.grid.step

    def __call__(self, images: Tensor, noise: Noise) -> Tensor:
        """Release finite images of any shape; float64, not clamped."""
        return self.grid.value(self.mechanism(self.grid.round(images.clamp(0, PIXEL_RANGE)), noise))


def touched_pixels(shape: Sequence[int], unit: Unit) -> int:
    """Return how many numbers of an (m, n) image one unit holds: 1, m or m n.

    Raises:
        InputError: For another unit.
    """
    rows, columns = shape
    sizes = {Unit.PIXEL: 1, Unit.COLUMN: rows, Unit.IMAGE: rows * columns}
    if unit not in sizes:
        raise InputError(f"unit = {unit} is no part of an image; known: {', '.join(sizes)}.")
    return sizes[unit]


def calibrate_pixels(shape: Sequence[int], unit: Unit, law: Law, *, epsilon: float, delta: float) -> PixelRelease:
    """Return the release of (m, n) images with the least noise that costs at most (epsilon, delta).

    Args:
        shape: (m, n).
        unit: Pixel, column or image.
        law: Of the noise.
        epsilon: Positive and finite.
        delta: In [0, 1); 0 is pure privacy.

    Raises:
        InputError: If the budget is impossible: Gaussian noise without delta, or more noise than integers hold.
    """
    pixels = touched_pixels(shape, unit)
    if law == "gaussian":
        if delta <= 0:
            raise InputError("Gaussian noise has no pure guarantee: set delta above 0, or law to 'laplace'.")
        return _gaussian(pixels, unit, epsilon, delta)
    candidates = [_joint(pixels, unit, epsilon, delta)]
    if delta > 0 and pixels > 1:
        candidates.append(_by_pixel(pixels, unit, epsilon, delta))
    return min(candidates, key=lambda release: release.scale)


def _joint(pixels: int, unit: Unit, epsilon: float, delta: float) -> PixelRelease:
    """Return the release whose noise is sized by the L1 distance of the whole unit."""
    grid = Grid.fine(pixels * PIXEL_RANGE, pixels, norm=1)
    sensitivity = grid.l1(pixels * PIXEL_RANGE, pixels)
    scale = math.ceil(sensitivity / epsilon)
    while _laplace(sensitivity, scale, unit).event.pure > epsilon:  # the quotient was rounded
        scale += 1
    if delta > 0:
        multiplier = calibrate(lambda m: [_scaled(sensitivity, m, unit).event], epsilon, delta)
        scale = min(scale, math.ceil(multiplier * sensitivity))
    return PixelRelease(_laplace(sensitivity, scale, unit), grid)


def _by_pixel(pixels: int, unit: Unit, epsilon: float, delta: float) -> PixelRelease:
    """Return the release whose noise is sized pixel by pixel, and composed over the pixels of a unit."""
    grid = Grid.fine(PIXEL_RANGE, 1, norm=1)
    sensitivity = grid.l1(PIXEL_RANGE, 1)
    multiplier = calibrate(lambda m: [_scaled(sensitivity, m, unit).event.repeated(pixels)], epsilon, delta)
    return PixelRelease(_scaled(sensitivity, multiplier, unit), grid, pixels)


def _gaussian(pixels: int, unit: Unit, epsilon: float, delta: float) -> PixelRelease:
    """Return the release with Gaussian noise sized by the L2 distance of the whole unit."""
    norm = math.sqrt(pixels) * PIXEL_RANGE
    grid = Grid.fine(norm, pixels, norm=2)
    sensitivity = grid.l2(norm, pixels)

    def scaled(multiplier: float) -> RoundedGaussian:
        return RoundedGaussian(sensitivity, math.ceil(multiplier * sensitivity), unit, Relation.REPLACE_ONE)

    return PixelRelease(scaled(calibrate(lambda m: [scaled(m).event], epsilon, delta)), grid)


def _laplace(sensitivity: int, scale: int, unit: Unit) -> DiscreteLaplace:
    if scale > MAX_LAPLACE_SCALE:
        raise InputError(
            f"the noise would need a scale of {scale} grid steps, and at most {MAX_LAPLACE_SCALE} can be drawn "
            "exactly: raise epsilon or delta."
        )
    return DiscreteLaplace(sensitivity, scale, unit, Relation.REPLACE_ONE)


def _scaled(sensitivity: int, multiplier: float, unit: Unit) -> DiscreteLaplace:
    return _laplace(sensitivity, math.ceil(multiplier * sensitivity), unit)


def plan(shape: Shape, unit: Unit, epsilon: float, delta: float, options: LapOptions) -> Plan:
    """Return the plan of ``lap``: every pixel with its noise, and nothing else."""
    release = calibrate_pixels(shape, unit, options.law, epsilon=epsilon, delta=delta)
    return Plan((release.event,), release)
