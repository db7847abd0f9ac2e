"""Publishers by a public model of faces: ``eigenfaces`` and ``codebook``.

``eigenfaces`` adds noise to coefficients in a basis of other people's faces; ``codebook`` releases the nearest of K
synthetic faces, or sometimes one of the others at random.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import pydantic
import torch
from torch import Tensor

from idpgan.audit.statistics import Nearness, Outcomes
from idpgan.errors import InputError
from idpgan.privacy import Noise, RandomizedResponse, Relation, Unit
from idpgan.publish.plan import Options, Publisher, Recipe, Shape, publisher_entry
from idpgan.publish.sound import numbers
from idpgan.publish.sound.numbers import PIXEL_RANGE, ROUNDING, Sensitivity
from idpgan.publish.sound.prior import DIRECTIONS, face_directions, face_prior
from idpgan.release.mark import DigitalSource

_LEAST_STD = 1e-6  # share of the largest; directions below are not independent
_DIRECTIONS = 6  # directions of codewords; of 5 to 12, 6 recognized drawn people best at epsilon 10
_MOST = 4096
_LARGEST_EPSILON = 30.0  # largest epsilon of one randomized response: above, it hides nothing


class EigenfacesOptions(numbers.LawOptions):
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
        numbers.touched_pixels(self.mean.shape, unit)
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

    def estimate(self, noisy: Tensor, variance: float) -> Tensor:
        """Map noisy coefficients (N, k) to images (N, m, n)."""
        factors = (self.gain(variance) / self.weights).to(noisy.device)
        return self.mean.to(noisy.device) + torch.einsum("nk,kij->nij", noisy * factors, self.basis.to(noisy))


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
    query, sensitivity = numbers.least_error(
        bounds, Coefficients.error, unit, options.law, epsilon=epsilon, delta=delta
    )
    noisy = numbers.calibrate_numbers(sensitivity, unit, options.law, epsilon=epsilon, delta=delta)
    clip = query.sensitivity(unit)[1]

    def release(images: Tensor, noise: Noise) -> Tensor:
        return query.estimate(noisy(query(images, clip), noise), noisy.variance)

    return Recipe((noisy.event,), release)


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

    def faces(self, chosen: Tensor) -> Tensor:
        """Return the codewords of these numbers (N,): (N, m, n) float64."""
        multiples, directions = self.multiples.to(chosen.device), self.directions.to(chosen.device)
        return self.mean.to(chosen.device) + torch.einsum("nd,dij->nij", multiples[chosen], directions)


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


PUBLISHERS = {
    "eigenfaces": numbers.noisy_publisher("eigenfaces", plan_eigenfaces, EigenfacesOptions()),
    "codebook": Publisher(
        CodebookOptions,
        plan_codebook,
        publisher_entry("codebook", plan_codebook, CodebookOptions(), Outcomes, Nearness, units=(Unit.IMAGE,)),
        DigitalSource.FORMULA,  # no pixel is a photo's: the photo only decides which drawn face is given away
    ),
}
