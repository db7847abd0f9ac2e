"""``pix`` and ``dct``: noise on few numbers of an image, and the estimate of the image under the model of faces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pydantic
from torch import Tensor

from idpgan.privacy.guarantee import Unit
from idpgan.privacy.noise import Noise
from idpgan.publish.plan import Plan, Shape
from idpgan.publish.sound.numbers import Law, LawOptions, Sensitivity, calibrate_numbers
from idpgan.publish.sound.prior import face_prior
from idpgan.publish.sound.queries import PIXEL_RANGE, Query, block_sums, low_cosines

_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)  # tried where none is asked for
T = TypeVar("T")


class PixOptions(LawOptions):
    """Options of ``pix``.

    Attributes:
        block: Side of a block, px; None = what has the least expected error under the model of faces.
    """

    block: int | None = pydantic.Field(default=None, ge=1)


class DctOptions(LawOptions):
    """Options of ``dct``.

    Attributes:
        frequencies: Lowest ones kept along each side; None = what has the least expected error under the model of
            faces.
    """

    frequencies: int | None = pydantic.Field(default=None, ge=1)


def plan_pix(shape: Shape, unit: Unit, epsilon: float, delta: float, options: PixOptions) -> Plan:
    r"""Return the plan of ``pix``: sums over blocks of pixels (Fan 2018, Image pixelization with differential privacy).

    Sums are means times the public area of the block, so noise on them is what Fan adds to means, with blocks at the
    edge having their own area. A pixel lies in one block, so its sum moves by at most R whatever the block's size, and
    with it the mean of b^2 pixels by R / b^2. Proof for every unit: `Query.sensitivity`; noise: `NoisyNumbers`.
    """
    sizes = [options.block] if options.block else [size for size in _SIZES if size <= max(shape)]
    return _plan(shape, unit, epsilon, delta, options.law, [block_sums(shape, size) for size in sizes])


def plan_dct(shape: Shape, unit: Unit, epsilon: float, delta: float, options: DctOptions) -> Plan:
    """Return the plan of ``dct``: the lowest frequencies; proof in `Query.sensitivity`, noise of `NoisyNumbers`."""
    sizes = [options.frequencies] if options.frequencies else [size for size in _SIZES if size <= max(shape)]
    return _plan(shape, unit, epsilon, delta, options.law, [low_cosines(shape, size) for size in sizes])


def _plan(shape: Shape, unit: Unit, epsilon: float, delta: float, law: Law, queries: Sequence[Query]) -> Plan:
    """Return the plan of the query that lets the least error be expected."""
    prior = face_prior(shape)

    def error(query: Query, variance: float) -> float:
        return prior.estimate(query.A, query.B, variance).error

    bounds = [(query, query.sensitivity(unit)) for query in queries]
    query, sensitivity = least_error(bounds, error, unit, law, epsilon=epsilon, delta=delta)
    noisy = calibrate_numbers(sensitivity, unit, law, epsilon=epsilon, delta=delta)
    estimate = prior.estimate(query.A, query.B, noisy.variance)

    def release(images: Tensor, noise: Noise) -> Tensor:
        return estimate(noisy(query(images.clamp(0, PIXEL_RANGE)), noise))

    return Plan((noisy.event,), release)


def least_error(
    queries: Sequence[tuple[T, Sensitivity]],
    error: Callable[[T, float], float],
    unit: Unit,
    law: Law,
    *,
    epsilon: float,
    delta: float,
) -> tuple[T, Sensitivity]:
    """Return the query with the least expected error, by public numbers alone.

    The noise is taken as proportional to the sensitivity, in L1 (Laplace) or L2 (Gaussian): one calibration instead of
    one for each query. What is released is calibrated by itself.

    Args:
        queries: With their sensitivities.
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
