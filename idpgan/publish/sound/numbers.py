r"""Numbers of an image with constant sensitivity, and discrete noise on them: the release of linear publishers.

The numbers are pixels, or linear queries ``A X B^T`` of an image X (m, n): block sums, low frequencies, wavelets. The
noise lies on a public grid and is drawn by `idpgan.privacy.discrete`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from idpgan.audit.statistics import Linear, Nearness
from idpgan.errors import InputError
from idpgan.lazy import torch
from idpgan.numerics.dct import cosines
from idpgan.privacy import DiscreteLaplace, Event, Grid, Noise, Relation, RoundedGaussian, Unit, calibrate
from idpgan.privacy.discrete import MAX_SCALE
from idpgan.publish.plan import Options, Planner, Publisher, publisher_entry

if TYPE_CHECKING:
    from torch import Tensor

Law = Literal["laplace", "gaussian"]
T = TypeVar("T")
PIXEL_RANGE = 1.0  # R: images are clamped to [0, 1] before anything else
UNITS = (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE)
ROUNDING = 1 + 2.0**-20  # exceeds the relative error of float64 sums of up to 2^20 pixels by far


class LawOptions(Options):
    """Options of a publisher that adds noise to numbers.

    Attributes:
        law: Of the noise: discrete "laplace" (pure where delta is 0) or rounded "gaussian" (needs delta > 0).
    """

    law: Law = "laplace"


@dataclass(frozen=True)
class Sensitivity:
    """Largest distance between the numbers of two neighbors: constants of image size, unit and pixel range.

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


def touched_pixels(shape: Sequence[int], unit: Unit) -> int:
    """Return how many pixels of an (m, n) image one unit holds: 1, m or m n.

    Raises:
        InputError: If the unit is another one.
    """
    rows, columns = shape
    sizes = {Unit.PIXEL: 1, Unit.COLUMN: rows, Unit.IMAGE: rows * columns}
    if unit not in sizes:
        raise InputError(f"unit = {unit} is not part of an image; known: {', '.join(sizes)}.")
    return sizes[unit]


def pixel_sensitivity(shape: Sequence[int], unit: Unit) -> Sensitivity:
    r"""Return the sensitivity of the raw pixels.

    Clamping acts pixel by pixel, so the d pixels of a unit differ by at most R = 1 each afterwards: by d R in L1 and
    sqrt(d) R in L2.
    """
    d = touched_pixels(shape, unit)
    return Sensitivity(d * PIXEL_RANGE, math.sqrt(d) * PIXEL_RANGE, PIXEL_RANGE, d)


@dataclass(frozen=True, eq=False)
class Query:
    r"""``A X B^T`` with public matrices.

    Attributes:
        A: (p, m) float64, acts on columns.
        B: (q, n) float64, acts on rows.
    """

    A: Tensor
    B: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        """Return the answers for images (N, m, n): (N, p, q) float64."""
        return self.A.to(images.device) @ images.double() @ self.B.to(images.device).mT

    def sensitivity(self, unit: Unit) -> Sensitivity:
        r"""Return the largest distance of neighbors.

        Let D = X - X', entries in [-R, R], zero outside of the unit; a_i and b_j are the columns of A and B, ||.|| is
        the largest singular value, r(A) the vector of the sums of |A| along its rows.

        * Pixel (i, j): ``A D B^T = D_ij a_i b_j^T``. Every norm of an outer product used here is the product of the
          norms, and the bound is the largest product, which is attained.
        * Column j: ``(A d) b_j^T`` with |d_i| <= R. Entry by entry ``|A d| <= R r(A)``, which bounds every norm; and
          ``|A d|_2 <= ||A|| sqrt(m) R``, hence ``|A d|_1 <= sqrt(p) ||A|| sqrt(m) R``. The smaller is taken.
        * Image: entry by entry ``|A D B^T| <= R r(A) r(B)^T``; and ``|A D B^T|_2 <= ||A|| ||B|| sqrt(m n) R``, hence
          sqrt(p q) times that in L1. The smaller is taken.

        A number moves only if its row of A and its row of B meet the unit, which bounds how many move. Everything is
        widened by `ROUNDING`: the answers are computed in floating point.
        """
        (p, m), (q, n) = self.A.shape, self.B.shape
        touched_pixels((m, n), unit)
        A, B = self.A.abs(), self.B.abs()
        if unit is Unit.PIXEL:
            wide, high = _norms(A), _norms(B)
            l1, l2 = wide.l1 * high.l1, wide.l2 * high.l2
        elif unit is Unit.COLUMN:
            wide, high = _norms(A, whole=True), _norms(B)
            spectral = float(torch.linalg.matrix_norm(self.A, 2)) * math.sqrt(m)
            l1 = min(wide.l1, math.sqrt(p) * spectral) * high.l1
            l2 = min(wide.l2, spectral) * high.l2
        else:
            wide, high = _norms(A, whole=True), _norms(B, whole=True)
            spectral = math.prod(float(torch.linalg.matrix_norm(M, 2)) for M in (self.A, self.B)) * math.sqrt(m * n)
            l1 = min(wide.l1 * high.l1, math.sqrt(p * q) * spectral)
            l2 = min(wide.l2 * high.l2, spectral)
        R = PIXEL_RANGE * ROUNDING
        return Sensitivity(l1 * R, l2 * R, wide.most * high.most * R, wide.numbers * high.numbers)


def _norms(absolute: Tensor, *, whole: bool = False) -> Sensitivity:
    """Return the largest norms of the columns of |A|, or of its row sums, and the number of nonzero entries."""
    columns = absolute.sum(1, keepdim=True) if whole else absolute
    return Sensitivity(
        float(columns.sum(0).amax()),
        float(columns.square().sum(0).amax().sqrt()),
        float(columns.amax()),
        int((columns > 0).sum(0).amax()),
    )


def block_sums(shape: Sequence[int], side: int) -> Query:
    """Return the sums over blocks of ``side`` x ``side`` pixels; those at the lower and right edge may be smaller."""

    def lines(size: int) -> Tensor:
        return torch.nn.functional.one_hot(torch.arange(size) // side).double().T

    return Query(lines(shape[0]), lines(shape[1]))


def low_cosines(shape: Sequence[int], count: int) -> Query:
    """Return the ``count`` x ``count`` lowest frequencies of the orthonormal 2-D DCT, or all that the image has."""

    def lines(size: int) -> Tensor:
        return cosines(size, 1, [(u, 0) for u in range(min(count, size))]).T

    return Query(lines(shape[0]), lines(shape[1]))


def low_waves(shape: Sequence[int], count: int) -> Query:
    """Return ``count`` x ``count`` products of the lowest lines of the orthonormal Fourier basis, in real numbers.

    The lines of a side are the constant, then cosine and sine of each frequency: the coordinates of the discrete
    Fourier transform, of which Rastogi and Nath (2010) keep the first k.
    """

    def lines(size: int) -> Tensor:
        index, place = torch.arange(min(count, size)), torch.arange(size, dtype=torch.float64)
        quarter = ((index % 2 == 0) & (index > 0)).double() / 4  # of a turn: a cosine becomes a sine
        waves = torch.cos(2 * math.pi * (((index + 1) // 2)[:, None] * place / size - quarter[:, None]))
        return waves / waves.norm(dim=1, keepdim=True)

    return Query(lines(shape[0]), lines(shape[1]))


def haar_wavelets(shape: Sequence[int], levels: int) -> Query:
    r"""Return products of the lines of the Haar transform, from the coarsest of so many levels of each side.

    The lines of a side are the sum and, of each dyadic part of it, the sum of its first half less that of its second.
    So every pixel has weight 1 or -1: with one noise scale for all, these are the weights by which Privelet (Xiao, Wang
    and Gehrke 2011) divides the noise on differences of means, and a pixel moves ``(1 + log2 m)(1 + log2
    n)`` numbers by R. Where they fill a side up to a power of 2, a part of odd length is halved as evenly as it can be.
    """

    def lines(size: int) -> Tensor:
        rows = [torch.ones(1, size, dtype=torch.float64)]
        for level in range(1, min(levels, (size - 1).bit_length()) + 1):
            half = dyadic_part(size, level)
            parts = torch.nn.functional.one_hot(half // 2, 1 << (level - 1)).double().T * (1 - 2 * (half % 2))
            rows.append(parts[(parts > 0).any(1) & (parts < 0).any(1)])  # a single pixel has no halves
        return torch.cat(rows)

    return Query(lines(shape[0]), lines(shape[1]))


def dyadic_part(size: int, level: int) -> Tensor:
    """Return in which of the 2^level most even parts of a side each of its places lies, int64 (size,); parts nest."""
    return (((torch.arange(size) + 1) << level) - 1) // size


# Noise ---------------------------------------------------------------------------------------------------------


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
        """The charge for the release of any number of images."""
        return self.mechanism.event.repeated(self.count)

    @property
    def scale(self) -> float:
        """Noise parameter b or sigma, in the unit of the numbers."""
        return self.mechanism.scale * self.grid.step

    @property
    def variance(self) -> float:
        """Variance of the noise on each number."""
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
        grid = Grid.fine(sensitivity.l2, sensitivity.numbers, norm=2)
        distance = grid.l2(sensitivity.l2, sensitivity.numbers)

        def scaled(multiplier: float) -> RoundedGaussian:
            return RoundedGaussian(distance, math.ceil(multiplier * distance), unit, Relation.REPLACE_ONE)

        return NoisyNumbers(scaled(calibrate(lambda m: [scaled(m).event], epsilon, delta)), grid)
    joint = _joint(sensitivity, unit, epsilon, delta)
    if delta == 0 or sensitivity.numbers == 1:
        return joint
    # One by one: noise is sized for one number, and the releases compose over the numbers of a unit.
    grid, num = Grid.fine(sensitivity.most, 1, norm=1), sensitivity.numbers
    steps = grid.l1(sensitivity.most, 1)
    multiplier = calibrate(lambda m: [_laplace(steps, m * steps, unit).event.repeated(num)], epsilon, delta)
    return min(joint, NoisyNumbers(_laplace(steps, multiplier * steps, unit), grid, num), key=lambda made: made.scale)


def _joint(bounds: Sensitivity, unit: Unit, epsilon: float, delta: float) -> NoisyNumbers:
    """Return the release whose noise is sized by the L1 distance of the whole unit."""
    grid = Grid.fine(bounds.l1, bounds.numbers, norm=1)
    steps = grid.l1(bounds.l1, bounds.numbers)
    scale = math.ceil(steps / epsilon)
    while _laplace(steps, scale, unit).event.pure > epsilon:  # corrects a rounded quotient
        scale += 1
    if delta > 0:
        multiplier = calibrate(lambda m: [_laplace(steps, m * steps, unit).event], epsilon, delta)
        scale = min(scale, math.ceil(multiplier * steps))
    return NoisyNumbers(_laplace(steps, scale, unit), grid)


def _laplace(steps: int, least: float, unit: Unit) -> DiscreteLaplace:
    """Return noise of a scale of at least ``least`` grid steps."""
    scale = math.ceil(least)
    if scale > MAX_SCALE:
        raise InputError(
            f"the noise would need a scale of {scale} grid steps, and at most {MAX_SCALE} can be drawn "
            "exactly: raise epsilon or delta."
        )
    return DiscreteLaplace(steps, scale, unit, Relation.REPLACE_ONE)


class NoisyPixels(NoisyNumbers):
    """Every pixel, clamped to [0, 1] and released as `NoisyNumbers`; sensitivity: `pixel_sensitivity`."""

    def __call__(self, images: Tensor, noise: Noise) -> Tensor:
        """Release finite images of any shape; float64, not clamped."""
        return super().__call__(images.clamp(0, PIXEL_RANGE), noise)


def calibrate_pixels(shape: Sequence[int], unit: Unit, law: Law, *, epsilon: float, delta: float) -> NoisyPixels:
    """Return the release of (m, n) images with the least noise that costs at most (epsilon, delta).

    Raises:
        InputError: If the budget is impossible; see `calibrate_numbers`.
    """
    calibrated = calibrate_numbers(pixel_sensitivity(shape, unit), unit, law, epsilon=epsilon, delta=delta)
    return NoisyPixels(calibrated.mechanism, calibrated.grid, calibrated.count)


def least_error(
    queries: Sequence[tuple[T, Sensitivity]],
    error: Callable[[T, float], float],
    unit: Unit,
    law: Law,
    *,
    epsilon: float,
    delta: float,
) -> tuple[T, Sensitivity]:
    """Return the query with the least expected error, from public numbers alone.

    The noise is taken as proportional to the sensitivity, in L1 (Laplace) or L2 (Gaussian): this takes one calibration
    instead of one for each query. The release itself is calibrated separately.

    Args:
        queries: Queries with their sensitivities.
        error: Maps a query and the variance of the noise on each number to the expected error.
        unit: That the sensitivities speak of.
        law: Of the noise.
        epsilon: Of the release.
        delta: Of the release.
    """
    if len(queries) == 1:
        return queries[0]
    one = calibrate_numbers(Sensitivity(1.0, 1.0, 1.0, 1), unit, law, epsilon=epsilon, delta=delta).variance

    def expected(candidate: tuple[T, Sensitivity]) -> float:
        query, bounds = candidate
        return error(query, one * (bounds.l2 if law == "gaussian" else bounds.l1) ** 2)

    return min(queries, key=expected)


def noisy_publisher(name: str, planner: Planner, options: LawOptions) -> Publisher:
    """Return a publisher of noisy numbers by its planner and default options, audited at every unit of an image."""
    return Publisher(type(options), planner, publisher_entry(name, planner, options, Linear, Nearness, units=UNITS))
