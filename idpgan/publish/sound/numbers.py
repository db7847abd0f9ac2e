r"""Numbers on a public grid with discrete noise, sized by declared constants: what every linear publisher releases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from idpgan.errors import InputError
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.discrete import MAX_SCALE
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.mechanisms import DiscreteLaplace, Grid, RoundedGaussian
from idpgan.privacy.noise import Noise
from idpgan.publish.plan import Options

Law = Literal["laplace", "gaussian"]


class LawOptions(Options):
    """Options of a publisher that adds noise to numbers.

    Attributes:
        law: Of the noise: discrete "laplace" (pure where delta is 0) or rounded "gaussian" (needs delta > 0).
    """

    law: Law = "laplace"


@dataclass(frozen=True)
class Sensitivity:
    """How far the numbers of two neighbors can be apart: constants of image size, unit and pixel range.

    Attributes:
        l1: Bound on the sum of the differences.
        l2: Bound on their Euclidean norm.
        most: Bound on the difference of any one number.
        numbers: How many numbers one unit can change.
    """

    l1: float
    l2: float
    most: float
    numbers: int


@dataclass(frozen=True)
class NoisyNumbers:
    r"""Numbers rounded to a public grid, plus discrete noise.

    Formal guarantee. Let the numbers f(X), f(X') of neighbors keep to a `Sensitivity`: d = ``numbers`` of them differ.
    Rounding moves each number by at most half a grid step, so each difference by at most one step: the rounded numbers
    differ by at most ``l1 / step + d`` steps in L1 (`Grid.l1`) and ``l2 / step + sqrt(d)`` in L2 (`Grid.l2`). Hence:

    * joint (Laplace): one release of L1 sensitivity ``Grid.l1(l1, d)``: pure epsilon = sensitivity / scale.
    * one by one (Laplace): d releases of one number, each of sensitivity ``Grid.l1(most, 1)``: their d-fold privacy
      loss distribution, since noise is independent and each pair is dominated by its largest move.
    * Gaussian: one release of L2 sensitivity ``Grid.l2(l2, d)``.

    The unit's numbers lie in one image, and every image of a batch is a record of its own with its own noise: a
    neighbor changes one image, all others have the same law, so the batch costs what one image costs (parallel
    composition by position, which ignores content).

    Nothing here depends on an image: sensitivity, grid and scale are known before one is read.

    Attributes:
        mechanism: The noise; its sensitivity is in grid steps.
        grid: The public grid.
        count: Releases to charge: 1 if joint, d one by one.
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
        """Noise parameter b or sigma, in the unit of the numbers."""
        return self.mechanism.scale * self.grid.step

    @property
    def variance(self) -> float:
        """Of the noise on each number."""
        return self.scale**2 * (2 if isinstance(self.mechanism, DiscreteLaplace) else 1)

    def __call__(self, numbers: Tensor, noise: Noise) -> Tensor:
        """Release finite numbers of any shape, float64."""
        return self.grid.value(self.mechanism(self.grid.round(numbers), noise))


def calibrate_numbers(sensitivity: Sensitivity, unit: Unit, law: Law, *, epsilon: float, delta: float) -> NoisyNumbers:
    """Return the release with the least noise that costs at most (epsilon, delta).

    Args:
        sensitivity: Of the numbers.
        unit: That it speaks of.
        law: Of the noise.
        epsilon: Positive and finite.
        delta: In [0, 1); 0 is pure privacy.

    Raises:
        InputError: If the budget is impossible: Gaussian noise without delta, or more noise than integers hold.
    """
    if law == "gaussian":
        if delta <= 0:
            raise InputError("Gaussian noise has no pure guarantee: set delta above 0, or law to 'laplace'.")
        return _gaussian(sensitivity, unit, epsilon, delta)
    candidates = [_joint(sensitivity, unit, epsilon, delta)]
    if delta > 0 and sensitivity.numbers > 1:
        candidates.append(_one_by_one(sensitivity, unit, epsilon, delta))
    return min(candidates, key=lambda release: release.scale)


def _joint(bounds: Sensitivity, unit: Unit, epsilon: float, delta: float) -> NoisyNumbers:
    """Return the release whose noise is sized by the L1 distance of the whole unit."""
    grid = Grid.fine(bounds.l1, bounds.numbers, norm=1)
    steps = grid.l1(bounds.l1, bounds.numbers)
    scale = math.ceil(steps / epsilon)
    while _laplace(steps, scale, unit).event.pure > epsilon:  # the quotient was rounded
        scale += 1
    if delta > 0:
        multiplier = calibrate(lambda m: [_scaled(steps, m, unit).event], epsilon, delta)
        scale = min(scale, math.ceil(multiplier * steps))
    return NoisyNumbers(_laplace(steps, scale, unit), grid)


def _one_by_one(bounds: Sensitivity, unit: Unit, epsilon: float, delta: float) -> NoisyNumbers:
    """Return the release whose noise is sized for one number, and composed over the numbers of a unit."""
    grid = Grid.fine(bounds.most, 1, norm=1)
    steps = grid.l1(bounds.most, 1)
    multiplier = calibrate(lambda m: [_scaled(steps, m, unit).event.repeated(bounds.numbers)], epsilon, delta)
    return NoisyNumbers(_scaled(steps, multiplier, unit), grid, bounds.numbers)


def _gaussian(bounds: Sensitivity, unit: Unit, epsilon: float, delta: float) -> NoisyNumbers:
    """Return the release with Gaussian noise sized by the L2 distance of the whole unit."""
    grid = Grid.fine(bounds.l2, bounds.numbers, norm=2)
    steps = grid.l2(bounds.l2, bounds.numbers)

    def scaled(multiplier: float) -> RoundedGaussian:
        return RoundedGaussian(steps, math.ceil(multiplier * steps), unit, Relation.REPLACE_ONE)

    return NoisyNumbers(scaled(calibrate(lambda m: [scaled(m).event], epsilon, delta)), grid)


def _laplace(steps: int, scale: int, unit: Unit) -> DiscreteLaplace:
    if scale > MAX_SCALE:
        raise InputError(
            f"the noise would need a scale of {scale} grid steps, and at most {MAX_SCALE} can be drawn "
            "exactly: raise epsilon or delta."
        )
    return DiscreteLaplace(steps, scale, unit, Relation.REPLACE_ONE)


def _scaled(steps: int, multiplier: float, unit: Unit) -> DiscreteLaplace:
    return _laplace(steps, math.ceil(multiplier * steps), unit)
