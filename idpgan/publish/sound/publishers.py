"""The sound publishers: noise on every pixel or on few numbers of an image, and the best estimate from the result.

Those by a model of faces are in `faces`, by sums of several sizes in `weighted_blocks`, windows in `sliding_windows`.
A plan only sizes the noise; `numbers.NoisyNumbers` adds it, drawn by `idpgan.privacy.discrete`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import pydantic

from idpgan.audit.entry import Entry, Request
from idpgan.audit.neighbors import PAIRS
from idpgan.audit.statistics import EXACT, Nearness, Statistic
from idpgan.lazy import torch
from idpgan.numerics.svd import batched_svd
from idpgan.privacy import DiscreteLaplace, Noise, Relation, Unit
from idpgan.publish.plan import LAWS, PURE, Publisher, Recipe, Shape
from idpgan.publish.sound import numbers
from idpgan.publish.sound.numbers import LawOptions, Query
from idpgan.publish.sound.prior import face_prior

if TYPE_CHECKING:
    from torch import Tensor

    from idpgan.audit.cases import AuditCase

_GREY = 0.5  # center of the pixel range, subtracted before the SVD
_MARGIN = 2.0
_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)  # sizes tried if none is given

# Every pixel ---------------------------------------------------------------------------------------------------


def plan_lap(shape: Shape, unit: Unit, epsilon: float, delta: float, options: LawOptions) -> Recipe:
    """Return the plan of ``lap``: noise on every pixel, without post-processing."""
    noisy = numbers.calibrate_pixels(shape, unit, options.law, epsilon=epsilon, delta=delta)
    return Recipe((noisy.event,), noisy)


def plan_shrink(shape: Shape, unit: Unit, epsilon: float, delta: float, options: LawOptions) -> Recipe:
    """Return the plan of ``lap-shrink``: ``lap``, then `shrink` at the known noise level, as post-processing."""
    noisy = numbers.calibrate_pixels(shape, unit, options.law, epsilon=epsilon, delta=delta)

    def release(images: Tensor, noise: Noise) -> Tensor:
        return _GREY + shrink(noisy(images, noise) - _GREY, math.sqrt(noisy.variance))

    return Recipe((noisy.event,), release)


def plan_wiener(shape: Shape, unit: Unit, epsilon: float, delta: float, options: LawOptions) -> Recipe:
    """Return the plan of ``lap-wiener``: ``lap``, then the estimate under the model of faces, as post-processing."""
    noisy = numbers.calibrate_pixels(shape, unit, options.law, epsilon=epsilon, delta=delta)
    prior = face_prior(shape)
    identities = [torch.eye(size, dtype=torch.float64) for size in shape]
    estimate = prior.estimate(identities[0], identities[1], noisy.variance)
    return Recipe((noisy.event,), lambda images, noise: estimate(noisy(images, noise)))


def shrink(matrices: Tensor, std: float) -> Tensor:
    r"""Shrink the singular values of noisy matrices, with the least squared error as m and n grow in proportion.

    Gavish and Donoho (2017), Optimal shrinkage of singular values, eq. 7: with n >= m, beta = m / n and singular
    values y in units of ``std sqrt(n)``, ``eta(y) = sqrt((y^2 - beta - 1)^2 - 4 beta) / y`` above ``1 + sqrt(beta)``
    and 0 below, so it also chooses the rank. The largest singular value of noise alone fluctuates around that edge, so
    the threshold is higher by ``_MARGIN n^(-2/3)`` of the edge, n^(-2/3) being the order of the fluctuation.

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


# Few numbers ---------------------------------------------------------------------------------------------------


class PixOptions(LawOptions):
    """Options of ``pix``.

    Attributes:
        block: Side of a block, px; None = what has the least expected error under the model of faces.
    """

    block: int | None = pydantic.Field(default=None, ge=1)


class FrequencyOptions(LawOptions):
    """Options of ``dct`` and ``fourier``.

    Attributes:
        frequencies: Lowest ones kept along each side (of ``fourier``, cosine and sine count as two); None = what has
            the least expected error under the model of faces.
    """

    frequencies: int | None = pydantic.Field(default=None, ge=1)


class WaveletOptions(LawOptions):
    """Options of ``wavelet``.

    Attributes:
        levels: Halvings of each side, 0 = its sum alone; None = what has the least expected error under the model of
            faces.
    """

    levels: int | None = pydantic.Field(default=None, ge=0)


def plan_pix(shape: Shape, unit: Unit, epsilon: float, delta: float, options: PixOptions) -> Recipe:
    r"""Return the plan of ``pix``: sums over blocks of pixels (Fan 2018, Image pixelization with differential privacy).

    Sums are means times the public area of the block, so noise on them equals the noise that Fan adds to means, except
    that blocks at the edge have their own area. A pixel lies in one block, so that block's sum moves by at most R for
    any block size, and the mean of b^2 pixels by R / b^2. Proof for every unit: `Query.sensitivity`; noise:
    `NoisyNumbers`.
    """
    sizes = [options.block] if options.block else [size for size in _SIZES if size <= max(shape)]
    return _plan(shape, unit, epsilon, delta, options.law, [numbers.block_sums(shape, size) for size in sizes])


def plan_dct(shape: Shape, unit: Unit, epsilon: float, delta: float, options: FrequencyOptions) -> Recipe:
    """Return the plan of ``dct``: the lowest frequencies; proof in `Query.sensitivity`, noise of `NoisyNumbers`."""
    return _plan(shape, unit, epsilon, delta, options.law, _low(numbers.low_cosines, shape, options))


def plan_fourier(shape: Shape, unit: Unit, epsilon: float, delta: float, options: FrequencyOptions) -> Recipe:
    """Return the plan of ``fourier``: the Fourier perturbation of Rastogi and Nath (2010) on an image.

    Proof as for ``dct``. They bound the L1 distance of k coefficients by sqrt(k) times that of the series in L2, and
    set what is left out to 0; here it is the exact one of a pixel, and what is left out is estimated.
    """
    return _plan(shape, unit, epsilon, delta, options.law, _low(numbers.low_waves, shape, options))


def _low(query: Callable[[Shape, int], Query], shape: Shape, options: FrequencyOptions) -> list[Query]:
    sizes = [options.frequencies] if options.frequencies else [size for size in _SIZES if size <= max(shape)]
    return [query(shape, size) for size in sizes]


def plan_wavelet(shape: Shape, unit: Unit, epsilon: float, delta: float, options: WaveletOptions) -> Recipe:
    """Return the plan of ``wavelet``: the Haar transform of `haar_wavelets`; proof and noise as for ``dct``."""
    finest = (max(shape) - 1).bit_length()
    levels = range(finest + 1) if options.levels is None else [options.levels]
    queries = [numbers.haar_wavelets(shape, level) for level in levels]
    return _plan(shape, unit, epsilon, delta, options.law, queries)


def _plan(shape: Shape, unit: Unit, epsilon: float, delta: float, law: numbers.Law, queries: Sequence[Query]) -> Recipe:
    """Return the plan of the query with the least expected error."""
    prior = face_prior(shape)

    def error(query: Query, variance: float) -> float:
        return prior.estimate(query.A, query.B, variance).error

    bounds = [(query, query.sensitivity(unit)) for query in queries]
    query, sensitivity = numbers.least_error(bounds, error, unit, law, epsilon=epsilon, delta=delta)
    noisy = numbers.calibrate_numbers(sensitivity, unit, law, epsilon=epsilon, delta=delta)
    estimate = prior.estimate(query.A, query.B, noisy.variance)

    def release(images: Tensor, noise: Noise) -> Tensor:
        return estimate(noisy(query(images.clamp(0, numbers.PIXEL_RANGE)), noise))

    return Recipe((noisy.event,), release)


# The table -----------------------------------------------------------------------------------------------------


def _lap_case(request: Request) -> AuditCase:
    """Return the case of ``lap`` on an image of ORL's size; law "laplace" is the continuous one of `audit.cases`."""
    from idpgan.audit.cases import CASES, IMAGE_SHAPE, AuditCase, guarantees

    if request.law == "laplace":
        return CASES["lap"].build(request)
    unit, delta = request.unit or Unit.PIXEL, request.delta or 0.0
    law = cast(numbers.Law, LAWS[request.law or "discrete-laplace"])
    lap = numbers.calibrate_pixels(IMAGE_SHAPE, unit, law, epsilon=request.epsilon, delta=delta)

    def exact(data: Tensor, neighbor: Tensor) -> Statistic:
        laplace = isinstance(lap.mechanism, DiscreteLaplace)
        statistic = Nearness(data, neighbor, order=1 if laplace else 2, unit=lap.scale if laplace else 2 * lap.scale**2)
        statistic.name = EXACT
        return statistic

    pair = PAIRS[request.pair or "extremes"](IMAGE_SHAPE, unit)
    claimed, proven = guarantees(request, lap.event)
    notes = ("pixels that do not differ are independent of everything and were not simulated",)
    return AuditCase("lap", pair, claimed, proven, lap, (exact,), entrywise=True, notes=notes, events=(lap.event,))


_LAP = Entry(
    _lap_case,
    numbers.UNITS,
    (Relation.REPLACE_ONE,),
    delta=1e-5,
    options={"pair": tuple(PAIRS), "law": (*LAWS, "laplace")},
    pure=PURE,
)


PUBLISHERS = {
    "lap": Publisher(LawOptions, plan_lap, _LAP),
    "lap-shrink": numbers.noisy_publisher("lap-shrink", plan_shrink, LawOptions()),
    "lap-wiener": numbers.noisy_publisher("lap-wiener", plan_wiener, LawOptions()),
    "dct": numbers.noisy_publisher("dct", plan_dct, FrequencyOptions()),
    "fourier": numbers.noisy_publisher("fourier", plan_fourier, FrequencyOptions()),
    "wavelet": numbers.noisy_publisher("wavelet", plan_wavelet, WaveletOptions()),
    "pix": numbers.noisy_publisher("pix", plan_pix, PixOptions()),
}
