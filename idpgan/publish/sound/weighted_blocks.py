r"""``quadtree`` and ``face-parts``: sums over blocks, some of which get more of the budget than others.

Zhang, Fu and Meng (2020) name a tree partition of the face as what is to be done next, Liu et al. (2021) noise where
eyes, mouth and nose are. Both become public weights: every sum is multiplied by the weight of its level or place, all
get noise of one scale, and the image is estimated from them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import pydantic
import torch
from torch import Tensor

from idpgan.errors import InputError
from idpgan.privacy import Noise, Unit
from idpgan.publish.plan import Recipe, Shape
from idpgan.publish.sound import numbers
from idpgan.publish.sound.numbers import PIXEL_RANGE, ROUNDING, Query, Sensitivity
from idpgan.publish.sound.prior import face_prior

_DEEPEST = 5  # levels below the root: 1,365 blocks
_BLOCKS = (4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128)  # sides tried if none is given
_MOST = 700  # blocks of a side that is tried; estimates take their third power
_LIMIT = 2048  # blocks of a side that is asked for
# Top, bottom, left and right of eyes, nose and mouth, as shares of height and width: where they are in ORL, on drawn
# faces and where `idpgan prepare --align eyes` has put the eyes (`data.eyes`).
PARTS = ((0.28, 0.54, 0.14, 0.86), (0.40, 0.68, 0.36, 0.64), (0.60, 0.90, 0.26, 0.74))


class QuadtreeOptions(numbers.LawOptions):
    """Options of ``quadtree``.

    Attributes:
        depth: Times that blocks are cut into four; None = what has the least expected error under the model of faces.
    """

    depth: int | None = pydantic.Field(default=None, ge=0, le=_DEEPEST)


class FacePartsOptions(numbers.LawOptions):
    """Options of ``face-parts``.

    Attributes:
        block: Side of a block, px; None = what has the least expected error under the model of faces.
        inside: Weight of the blocks that touch `PARTS`, others have 1. At unit pixel a pixel there costs so much of
            epsilon, at other units the budget is divided so.
    """

    block: int | None = pydantic.Field(default=None, ge=1)
    inside: float = pydantic.Field(default=0.25, gt=0, le=1)


@dataclass(frozen=True, eq=False)
class WeightedSums:
    r"""Sums over blocks, each times a public weight, as one vector.

    Attributes:
        parts: Queries of `numbers.block_sums`, (p, m) and (q, n), and the weights of their answers, (p, q) > 0.
    """

    parts: Sequence[tuple[Query, Tensor]]

    @property
    def shape(self) -> Shape:
        """Of an image, (m, n)."""
        query = self.parts[0][0]
        return query.A.shape[1], query.B.shape[1]

    def __call__(self, images: Tensor) -> Tensor:
        """Return the numbers of images (N, m, n): (N, T) float64."""
        return torch.cat([(query(images) * weights.to(images.device)).flatten(1) for query, weights in self.parts], 1)

    def sensitivity(self, unit: Unit) -> Sensitivity:
        r"""Return the largest distance of neighbors, which is attained.

        Let ``a_b(U)`` be how many pixels of the unit U lie in block b. Each moves by at most R, so that the number of
        block b moves by at most ``w_b a_b(U) R``, and all do where all pixels of U get brighter by R. L1, L2 and the
        largest number are those of that move, for the worst U; for a pixel L1 is the largest sum of the weights of its
        blocks, one of each query. Widened by `ROUNDING`: the sums are computed in floating point.
        """
        numbers.touched_pixels(self.shape, unit)
        l1, squares, count = (torch.zeros(1, 1, dtype=torch.float64) for _ in range(3))
        most = 0.0
        for query, weights in self.parts:
            down = query.A if unit is Unit.PIXEL else query.A.sum(1, keepdim=True)  # (p, m), or (p, 1): all rows
            across = query.B.sum(1, keepdim=True) if unit is Unit.IMAGE else query.B  # (q, n), or (q, 1)
            l1 = l1 + down.mT @ weights @ across
            squares = squares + down.square().mT @ weights.square() @ across.square()
            count = count + (down > 0).double().mT @ torch.ones_like(weights) @ (across > 0).double()
            most = max(most, float((down.amax(1)[:, None] * weights * across.amax(1)).amax()))
        R = PIXEL_RANGE * ROUNDING
        return Sensitivity(float(l1.amax()) * R, float(squares.amax().sqrt()) * R, most * R, int(count.amax()))

    @functools.cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return eigenvalues and vectors of the numbers' covariance under the model, their mean, and the share of each.

        The share is what the eigenvector times its eigenvalue explains of all pixels' variance.
        """
        model = face_prior(self.shape)

        def between(rows: Tensor, columns: Tensor) -> Tensor:
            blocks = [
                [torch.kron(one.A @ rows @ other.A.mT, one.B @ columns @ other.B.mT) for other, _ in self.parts]
                for one, _ in self.parts
            ]
            scale = torch.cat([weights.flatten() for _, weights in self.parts])
            return torch.cat([torch.cat(line, 1) for line in blocks]) * scale[:, None] * scale

        values, vectors = torch.linalg.eigh(between(model.rows, model.columns))
        explained = between(model.rows @ model.rows, model.columns @ model.columns)
        return values.clamp(min=0), vectors, self(model.mean[None])[0], (vectors * (explained @ vectors)).sum(0)

    def error(self, variance: float) -> float:
        """Return the expected squared error of a pixel less that of knowing no number."""
        values, _, _, explained = self._spectrum
        return -float((explained / (values + variance)).sum())

    def estimate(self, noisy: Tensor, variance: float) -> Tensor:
        """Return the best linear estimate of the images, (N, m, n), of numbers (N, T) with noise of that variance."""
        values, vectors, mean, _ = (part.to(noisy.device) for part in self._spectrum)
        residual = ((noisy - mean) @ vectors / (values + variance)) @ vectors.mT
        sizes, model = [weights.numel() for _, weights in self.parts], face_prior(self.shape)
        back = noisy.new_zeros(1, *self.shape)
        for (query, weights), weighted in zip(self.parts, residual.split(sizes, 1), strict=True):
            A, B, w = (part.to(noisy.device) for part in (query.A, query.B, weights))
            back = back + A.mT @ (weighted.unflatten(1, w.shape) * w) @ B
        rows, columns, center = (part.to(noisy.device) for part in (model.rows, model.columns, model.mean))
        return center + rows @ back @ columns


@functools.lru_cache(maxsize=16)
def quadtree(shape: Shape, depth: int) -> WeightedSums:
    """Return the sums over the blocks of all levels of a quadtree, of (m, n) pixels cut into four ``depth`` times.

    A level has ``2^(1/3)`` times the weight of the one above: the geometric budget of Cormode, Procopiuc, Srivastava,
    Shen and Yu, "Differentially private spatial decompositions" (ICDE 2012), lemma 3. A side of one pixel is not cut.
    """

    def lines(size: int, level: int) -> Tensor:
        part = numbers.dyadic_part(size, min(level, (size - 1).bit_length()))
        rows = torch.nn.functional.one_hot(part).double().T
        return rows[rows.any(1)]

    queries = [Query(lines(shape[0], level), lines(shape[1], level)) for level in range(depth + 1)]
    return WeightedSums(
        [
            (query, torch.full((len(query.A), len(query.B)), 2 ** (level / 3), dtype=torch.float64))
            for level, query in enumerate(queries)
        ]
    )


@functools.lru_cache(maxsize=32)
def face_parts(shape: Shape, block: int, inside: float) -> WeightedSums:
    """Return the sums over blocks of (m, n) pixels, those that touch `PARTS` with the weight ``inside``."""
    query = numbers.block_sums(shape, block)
    place = torch.zeros(1, *shape, dtype=torch.float64)
    for top, bottom, left, right in PARTS:
        rows = slice(math.floor(top * shape[0]), math.ceil(bottom * shape[0]))
        place[:, rows, math.floor(left * shape[1]) : math.ceil(right * shape[1])] = 1
    return WeightedSums([(query, torch.where(query(place)[0] > 0, inside, 1.0).double())])


def plan_quadtree(shape: Shape, unit: Unit, epsilon: float, delta: float, options: QuadtreeOptions) -> Recipe:
    """Return the plan of ``quadtree``; proof in `WeightedSums.sensitivity`, noise of `NoisyNumbers`.

    The tree is cut at public places, never where the image has much to show: a cut that follows the image costs budget.
    """
    deepest = min(_DEEPEST, (max(shape) - 1).bit_length())
    depths = range(deepest + 1) if options.depth is None else [options.depth]
    return _plan([quadtree(shape, depth) for depth in depths], unit, epsilon, delta, options.law)


def plan_face_parts(shape: Shape, unit: Unit, epsilon: float, delta: float, options: FacePartsOptions) -> Recipe:
    """Return the plan of ``face-parts``: less of the budget where eyes, nose and mouth are, so more noise.

    Proof in `WeightedSums.sensitivity`, noise of `NoisyNumbers`. The places are `PARTS`, constants: found in the
    private image they would be one more private number. Noise at these places *alone*, as Liu et al. propose, proves
    nothing of the rest.

    Raises:
        InputError: If there are too many blocks to estimate from.
    """

    def count(side: int) -> int:
        return math.ceil(shape[0] / side) * math.ceil(shape[1] / side)

    sides = [side for side in _BLOCKS if count(side) <= _MOST and side <= max(shape)] or [max(shape)]
    if options.block is not None:
        if count(options.block) > _LIMIT:
            raise InputError(
                f"block = {options.block} makes {count(options.block):,} blocks of {shape[0]} x {shape[1]} pixels, and "
                f"at most {_LIMIT:,} are estimated from: take larger ones."
            )
        sides = [options.block]
    return _plan([face_parts(shape, side, options.inside) for side in sides], unit, epsilon, delta, options.law)


def _plan(queries: Sequence[WeightedSums], unit: Unit, epsilon: float, delta: float, law: numbers.Law) -> Recipe:
    """Return the plan of the query with the least expected error."""
    bounds = [(query, query.sensitivity(unit)) for query in queries]
    query, bound = numbers.least_error(bounds, WeightedSums.error, unit, law, epsilon=epsilon, delta=delta)
    noisy = numbers.calibrate_numbers(bound, unit, law, epsilon=epsilon, delta=delta)

    def release(images: Tensor, noise: Noise) -> Tensor:
        return query.estimate(noisy(query(images.clamp(0, PIXEL_RANGE)), noise), noisy.variance)

    return Recipe((noisy.event,), release)


PUBLISHERS = {
    "quadtree": numbers.noisy_publisher("quadtree", plan_quadtree, QuadtreeOptions()),
    "face-parts": numbers.noisy_publisher("face-parts", plan_face_parts, FacePartsOptions()),
}
