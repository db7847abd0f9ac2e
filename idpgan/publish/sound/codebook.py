"""``codebook``: release the nearest of K synthetic faces, or sometimes one of the others at random."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import pydantic
import torch
from torch import Tensor

from idpgan.errors import InputError
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.mechanisms import RandomizedResponse
from idpgan.publish.plan import Options, Recipe, Shape
from idpgan.publish.sound.numbers import PIXEL_RANGE
from idpgan.publish.sound.prior import face_directions, face_prior

_DIRECTIONS = 6  # directions of codewords; of 5 to 12, 6 recognized drawn people best at epsilon 10
_MOST = 4096
_LARGEST_EPSILON = 30.0  # largest epsilon of one randomized response: above, it hides nothing


class CodebookOptions(Options):
    """Options of ``codebook``.

    Attributes:
        codewords: K; None = e^epsilon / 10, in 2 .. 4096, with which at most one answer in eleven is a lie wherever
            epsilon is at least 3.
    """

    codewords: int | None = pydantic.Field(default=None, ge=2, le=1 << 16)


@dataclass(frozen=True, eq=False)
class Codebook:
    r"""K faces drawn from the public model: the mean plus normal multiples of its strongest directions.

    The multiples are the first K points of Sobol's sequence, sent through the inverse normal distribution: they cover
    the model evenly, and are the same everywhere.

    Attributes:
        mean: (m, n).
        directions: (d, m, n).
        multiples: (K, d).
    """

    mean: Tensor
    directions: Tensor
    multiples: Tensor

    @functools.cached_property
    def _basis(self) -> Tensor:
        """Orthonormal basis of the differences of codewords, (m n, r)."""
        return torch.linalg.qr(self.directions.flatten(1).mT).Q

    def nearest(self, images: Tensor) -> Tensor:
        """Return the number of the codeword nearest to each image (N, m, n) by squared error: int64 (N,)."""
        basis = self._basis.to(images.device)
        codes = (self.multiples @ self.directions.flatten(1)).to(images.device) @ basis
        centered = images.clamp(0, PIXEL_RANGE).double() - self.mean.to(images.device)
        return torch.cdist(centered.flatten(1) @ basis, codes).argmin(1)

    def faces(self, numbers: Tensor) -> Tensor:
        """Return the codewords of these numbers (N,): (N, m, n) float64."""
        multiples, directions = self.multiples.to(numbers.device), self.directions.to(numbers.device)
        return self.mean.to(numbers.device) + torch.einsum("nd,dij->nij", multiples[numbers], directions)


@functools.lru_cache(maxsize=8)
def face_codebook(shape: Shape, codewords: int) -> Codebook:
    """Return the codebook of faces of (m, n) pixels."""
    points = torch.quasirandom.SobolEngine(_DIRECTIONS).draw(codewords + 1, dtype=torch.float64)[1:]  # not (0, ..., 0)
    return Codebook(face_prior(shape).mean, face_directions(shape)[:_DIRECTIONS], torch.special.ndtri(points))


def plan_codebook(shape: Shape, unit: Unit, epsilon: float, delta: float, options: CodebookOptions) -> Recipe:
    r"""Return the plan of ``codebook``.

    Proof. The codebook is public: it depends on m, n and K alone. Of an image only the number of its nearest codeword
    is used, a function of that image alone, and it goes through k-ary randomized response (`RandomizedResponse`), which
    is pure epsilon for *any* two numbers, hence for any two images, unit image and replace-one. The face of the number
    that comes out is post-processing. Every image is a separate record, so the batch costs as much as one image.

    Raises:
        InputError: If delta is not 0: a positive delta would not improve the release.
    """
    if delta > 0:
        raise InputError(f"delta = {delta}: randomized response is pure; leave delta out.")
    epsilon = min(epsilon, _LARGEST_EPSILON)
    usual = round(min(max(math.exp(min(epsilon, 20.0)) / 10, 2), _MOST))
    book = face_codebook(shape, options.codewords or usual)
    response = RandomizedResponse(len(book.multiples), epsilon, unit, Relation.REPLACE_ONE)
    return Recipe((response.event,), lambda images, noise: book.faces(response(book.nearest(images), noise)))
