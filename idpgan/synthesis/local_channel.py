r"""The local channel: one image in, one noisy image out, with a guarantee for that image whoever holds the result.

An image x in [-1, 1]^n becomes k coefficients ``c = (x - m) B`` in a fixed public orthonormal basis B (k = n and B = I
for "pixels"), is bounded, rounded to a public grid, given exact discrete noise, and mapped back. Basis, center m and
bounds come from constants or from public images, never from private ones.

Formal guarantee, unit image, replace-one. In coefficients divided by their public bound, replacing the image moves

* "clamp": each of k numbers in [-1, 1] by at most 2, and each gets its own discrete Laplace noise: k releases. (The
  noise is proportional to the bound c_j, so that all k have one price and the cost is known before any image is read.)
* "l1": a vector of L1 norm <= 1 by at most 2 in L1: one discrete Laplace release, pure epsilon 2 / b.
* "l2": a vector of L2 norm <= 1 by at most 2 in L2: one rounded Gaussian release.

The rounding to the grid is inside the sensitivity.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal

import torch
from torch import Tensor

from idpgan.data.images import Images, to_float
from idpgan.errors import ConfigError
from idpgan.models.perturbed import ImageShape
from idpgan.numerics.dct import cosines
from idpgan.privacy import DiscreteLaplace, Event, Grid, Noise, RandomizedResponse, Relation, RoundedGaussian, Unit
from idpgan.privacy.accounting import calibrate

Projection = Literal["pixels", "dct", "public-pca"]
Bound = Literal["clamp", "l1", "l2"]
ADJACENCY = (Unit.IMAGE, Relation.REPLACE_ONE)
_CLIP_QUANTILE = 0.95  # of the norms of public images, where no clip norm is given
_FIT_IMAGES = 20_000  # public images at most that basis and bounds are computed from


@dataclasses.dataclass(frozen=True)
class ChannelPrivacy:
    """What the channel costs; known without an image.

    Attributes:
        num_coefficients: k.
        bound: "clamp", "l1" or "l2".
        epsilon: Target for image and label together.
        delta: Target; 0 is pure, which Gaussian noise cannot be.
        num_classes: Classes of the label, 0 if none is released.
        label_epsilon: Pure epsilon of the label's randomized response, part of `epsilon`; None releases none.
    """

    num_coefficients: int
    bound: Bound
    epsilon: float
    delta: float
    num_classes: int = 0
    label_epsilon: float | None = None

    @property
    def grid(self) -> Grid:
        """The public grid of coefficients divided by their bound: rounding costs 0.1 to 0.2 % of epsilon."""
        if self.bound == "clamp":
            return Grid.fine(2.0, 1, norm=1)
        return Grid.fine(2.0, self.num_coefficients, norm=1 if self.bound == "l1" else 2)

    def mechanism(self, noise_multiplier: float) -> DiscreteLaplace | RoundedGaussian:
        """Return the mechanism of one number ("clamp") or of the whole vector."""
        grid, dimensions = self.grid, 1 if self.bound == "clamp" else self.num_coefficients
        if self.bound == "l2":
            distance = grid.l2(2.0, dimensions)
            return RoundedGaussian(distance, math.ceil(noise_multiplier * distance), *ADJACENCY)
        steps = grid.l1(2.0, dimensions)
        return DiscreteLaplace(steps, math.ceil(noise_multiplier * steps), *ADJACENCY)

    def events(self, mechanism: DiscreteLaplace | RoundedGaussian) -> tuple[Event, ...]:
        """Return the price of one image and its label."""
        count = self.num_coefficients if self.bound == "clamp" else 1
        image = mechanism.event.repeated(count)
        return (image,) if self.response is None else (image, self.response.event)

    @property
    def response(self) -> RandomizedResponse | None:
        """The mechanism of the label."""
        if self.label_epsilon is None or self.num_classes == 0:
            return None
        return RandomizedResponse(self.num_classes, self.label_epsilon, *ADJACENCY)


@functools.lru_cache(maxsize=16)
def solve(privacy: ChannelPrivacy) -> DiscreteLaplace | RoundedGaussian:
    """Return the mechanism with the least noise that keeps image and label within the target.

    It takes some seconds for hundreds of coefficients. An `InputError` says that no noise does.
    """
    if privacy.label_epsilon is not None and privacy.label_epsilon >= privacy.epsilon:
        raise ConfigError(
            f"privacy.label_epsilon = {privacy.label_epsilon:g} leaves nothing of "
            f"privacy.epsilon = {privacy.epsilon:g} for the image. Lower the one or raise the other."
        )
    if privacy.bound == "l2" and privacy.delta == 0:
        raise ConfigError('method.bound = "l2" adds Gaussian noise, which is never pure: set privacy.delta above 0.')
    multiplier = calibrate(lambda m: privacy.events(privacy.mechanism(m)), privacy.epsilon, privacy.delta)
    return privacy.mechanism(multiplier)


@dataclasses.dataclass(frozen=True)
class Channel:
    """The channel itself; make it with `build_channel`.

    Attributes:
        privacy: Its price.
        mechanism: Its noise, in grid steps.
        image_shape: (C, H, W).
        basis: (n, k) float32 with orthonormal columns; None is the identity.
        center: (n,) float32.
        bounds: Public bound of each coefficient ("clamp"), or the clip norm k times, (k,) float32.
    """

    privacy: ChannelPrivacy
    mechanism: DiscreteLaplace | RoundedGaussian
    image_shape: ImageShape
    basis: Tensor | None
    center: Tensor
    bounds: Tensor

    @property
    def noise_scale(self) -> Tensor:
        """Laplace parameter b, or Gaussian standard deviation, of each coefficient, in the scale [-1, 1]: (k,)."""
        return self.bounds * (self.mechanism.scale * self.privacy.grid.step)

    @property
    def pixel_std(self) -> float:
        """Root mean square of the noise on a pixel after mapping back."""
        factor = 1.0 if self.privacy.bound == "l2" else 2.0  # a Laplace variable's variance is 2 b^2
        return math.sqrt(factor * self.noise_scale.double().square().sum().item() / len(self.center))

    def encode(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) to bounded coefficients (B, k), each divided by its bound; differentiable."""
        flat = images.clamp(-1, 1).flatten(1) - self.center
        scaled = (flat if self.basis is None else flat @ self.basis) / self.bounds
        if self.privacy.bound == "clamp":
            return scaled.clamp(-1, 1)
        norm = torch.linalg.vector_norm(scaled, ord=1 if self.privacy.bound == "l1" else 2, dim=1, keepdim=True)
        return scaled / norm.clamp(min=1)

    def decode(self, coefficients: Tensor) -> Tensor:
        """Map coefficients back to images (B, C, H, W), divided by the size of signal and noise: about unit size."""
        scaled = coefficients * self.bounds
        flat = (scaled if self.basis is None else scaled @ self.basis.T) + self.center
        return flat.view(-1, *self.image_shape) / math.sqrt(1 + self.pixel_std**2)

    def release(self, images: Tensor, noise: Noise) -> Tensor:
        """Perturb private images: noisy coefficients in grid steps, (B, k) on the CPU.

        The numbers have 32 bits where noise exceeds them with probability below e^-64 each, else 64. The drawn numbers
        never decide the width: a release that failed for them would have read private images without a charge.
        """
        steps = self.privacy.grid.round(self._inside(self.encode(images).double()).cpu())
        released = self.mechanism(steps, noise)
        if 64 * self.mechanism.scale + 1 / self.privacy.grid.step >= 1 << 31:
            return released
        if bool((released.abs() >= 1 << 31).any()):
            raise ValueError("a noisy coefficient leaves the range of 32 bits.")
        return released.int()

    def decode_steps(self, steps: Tensor) -> Tensor:
        """Map what `release` returned to images (B, C, H, W), float32."""
        return self.decode(steps.float() * self.privacy.grid.step)

    def perturb_public(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Send generated images through the same channel, differentiably; its noise need not be secret.

        The noise is continuous: it differs from the discrete one by a grid step, a thousandth of the bound.
        """
        encoded = self.encode(images)
        if self.privacy.bound == "l2":
            drawn = torch.randn(encoded.shape, generator=rng, device=images.device)
        else:
            uniform = torch.rand((2, *encoded.shape), generator=rng, device=images.device).clamp_(min=1e-30).log_()
            drawn = uniform[0] - uniform[1]
        return self.decode(encoded + drawn * (self.mechanism.scale * self.privacy.grid.step))

    def to(self, device: torch.device) -> Channel:
        """Return the channel on a device."""
        basis = None if self.basis is None else self.basis.to(device)
        return dataclasses.replace(self, basis=basis, center=self.center.to(device), bounds=self.bounds.to(device))

    def _inside(self, coefficients: Tensor) -> Tensor:
        """Bring float32 rounding back inside the bound, in float64, before the noise."""
        if self.privacy.bound == "clamp":
            return coefficients.clamp(-1, 1)
        norm = torch.linalg.vector_norm(coefficients, ord=1 if self.privacy.bound == "l1" else 2, dim=1, keepdim=True)
        return coefficients * (1 - 1e-12) / norm.clamp(min=1)


def count_coefficients(projection: Projection, requested: int | None, image_shape: ImageShape) -> int:
    """Return k; raise a `ConfigError` if the number is missing, not expected, or larger than the image."""
    pixels = math.prod(image_shape)
    if projection == "pixels":
        if requested is not None:
            raise ConfigError('method.coefficients is for a projection; with "pixels" leave it out.')
        return pixels
    if requested is None or requested > pixels:
        raise ConfigError(f"method.coefficients = {requested} must lie in 1 .. {pixels}, the numbers of an image.")
    return requested


def check_channel(privacy: ChannelPrivacy, projection: Projection, num_public: int, clip_norm: float | None) -> None:
    """Raise a `ConfigError` for what `build_channel` cannot build, by the number of public images alone.

    "public-pca" needs more public images than coefficients; "clamp" takes no clip norm.
    """
    num_public = min(num_public, _FIT_IMAGES)
    if projection == "public-pca" and num_public <= privacy.num_coefficients:
        raise ConfigError(
            f'method.projection = "public-pca" needs more than {privacy.num_coefficients} public images, there are '
            f"{num_public}. Set data.public_share or data.public_root, or lower method.coefficients."
        )
    if privacy.bound == "clamp" and clip_norm is not None:
        raise ConfigError('method.clip_norm is for method.bound = "l1" or "l2"; leave it out.')


def build_channel(
    privacy: ChannelPrivacy, projection: Projection, image_shape: ImageShape, public: Images, clip_norm: float | None
) -> Channel:
    """Build the channel from constants and public images.

    Args:
        privacy: Its price; the noise is solved for here.
        projection: "pixels", "dct" (lowest frequencies of every channel of the image) or "public-pca".
        image_shape: (C, H, W).
        public: Public images. With them the bounds are the largest public coefficient, or the 95 % quantile of public
            norms; without them the exact maximum over all images.
        clip_norm: Overrides the norm of "l1" and "l2".

    Raises:
        ConfigError: See `check_channel`.
    """
    check_channel(privacy, projection, len(public), clip_norm)
    flat = to_float(public.images[:_FIT_IMAGES]).flatten(1)  # (P, n)
    center = torch.zeros(math.prod(image_shape))
    basis: Tensor | None = None
    if projection == "dct":
        basis = dct_basis(image_shape, privacy.num_coefficients)
    elif projection == "public-pca":
        center = flat.mean(0)
        basis = torch.linalg.svd((flat - center).double(), full_matrices=False)[2][: privacy.num_coefficients].T.float()
    coefficients = flat - center if basis is None else (flat - center) @ basis
    if privacy.bound == "clamp" and basis is None:
        bounds = torch.ones(privacy.num_coefficients)
    elif privacy.bound == "clamp" and basis is not None:
        bounds = (basis.abs() * (1 + center.abs())[:, None]).sum(0)  # exact, of any image in [-1, 1]^n
        if len(public):
            bounds = torch.minimum(coefficients.abs().amax(0).clamp(min=1e-3), bounds)
    else:
        if clip_norm is None:
            order = 1 if privacy.bound == "l1" else 2
            norms = torch.linalg.vector_norm(coefficients, ord=order, dim=1)
            most = math.sqrt(len(center)) * (math.sqrt(privacy.num_coefficients) if order == 1 else 1.0)
            clip_norm = float(torch.quantile(norms, _CLIP_QUANTILE)) if len(public) else most
        bounds = torch.full((privacy.num_coefficients,), float(clip_norm))
    return Channel(privacy, solve(privacy), image_shape, basis, center, bounds)


def dct_basis(image_shape: ImageShape, count: int) -> Tensor:
    """Return the lowest frequencies of the orthonormal 2-D DCT-II of each image channel, (n, count) float32.

    Ordered by u + v, then u, then channel.
    """
    channels, height, width = image_shape
    low = sorted((u + v, u, c) for u in range(height) for v in range(width) for c in range(channels))[:count]
    basis = torch.zeros(channels, height * width, len(low), dtype=torch.float64)
    of_channel = torch.tensor([channel for *_, channel in low])
    functions = cosines(height, width, [(u, total - u) for total, u, _ in low])  # (H W, count)
    basis[of_channel, :, torch.arange(len(low))] = functions.T
    return basis.flatten(0, 1).float()
