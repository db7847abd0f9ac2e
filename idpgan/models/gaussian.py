"""Generators from a normal distribution of low DCT coefficients for each class: in closed form, or refined further.

In a refined generator, the normal distribution holds the moments of the private images and stays fixed: its mean and
factor are not trained. A few convolutions start with zero output and add what a normal distribution of low frequencies
cannot represent, edges above all.

Light: the contrasts of an image, taken out of its coefficients and kept beside them as numbers of their own.

The same thing in half the light has half of every coefficient but the brightness, and photographs differ in how much
detail and color they have. A normal distribution cannot say that: it takes the lights of a class for differences of
its shapes. At one contrast, beside its logarithm, the coefficients are close to normal (Wainwright and Simoncelli,
"Scale mixtures of Gaussians and the statistics of natural images", 1999). A drawn image gets its contrasts back.

Detail is what lies above the low coefficients. A normal distribution of low frequencies draws images without an edge,
and a network that learned from them meets edges in photographs for the first time. It costs too much noise to be
released, but photographs have it in common: so it is that of a picture of dead leaves (`idpgan.data.drawn`), as
strong as the fine detail that was drawn. No private image is read for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from idpgan.data import drawn
from idpgan.data.images import to_float
from idpgan.models.config import ModelConfig
from idpgan.models.generator import Generator
from idpgan.models.initialize import seeded_init
from idpgan.models.registration import bent_back
from idpgan.models.simulators import uniform_of
from idpgan.numerics.dct import cosines

_COARSE = 4  # one of so many coefficients of the brightness is coarse
_MOST = math.log(16)  # of the logarithm of a contrast, and of its negative
VARIANCE = 0.25  # of the logarithm in photographs
_SEED = 7_103  # a constant of the package: the same pictures in every generator
_NUMBERS = 3 << 20  # of all pictures together
_FEWEST, _MOST_PICTURES = 16, 1024  # of 32 x 32 in color: the most
_MOST_GAIN = 3.0
FLIPS = 4


class Light:
    """Contrasts of coefficients: of coarse and of fine brightness, and of color differences where there are colors.

    A contrast is the root of the mean square of its coefficients in units of what photographs have of each, within
    1/16 and 16: a bounded function of the image alone. The first coefficient, the mean brightness, is in none.

    Args:
        std: Standard deviations of the coefficients in photographs, (q,) float64.
        counts: Coefficients of the brightness, and of each color difference.
    """

    def __init__(self, std: Tensor, counts: Sequence[int]) -> None:
        sizes = torch.tensor([1, *band_sizes(counts)])
        of = torch.eye(len(sizes), dtype=torch.float64).repeat_interleave(sizes, 0)[:, 1:]
        self._std, self._of = std, of  # (q, bands), 1 where a coefficient is in a band
        self._at = int(counts[0] > _COARSE)  # the band of fine brightness: the first where nothing is coarse

    def taken_out(self, coefficients: Tensor) -> Tensor:
        """Return coefficients (B, q) at contrast 1, and the logarithms of the contrasts, (B, q + bands)."""
        std, of = self._std.to(coefficients), self._of.to(coefficients)
        power = (coefficients / std).square() @ (of / of.sum(0))
        logs = (power.clamp(min=1e-30).log() / 2).clamp(-_MOST, _MOST)
        return torch.cat([coefficients / (logs @ of.T).exp(), logs], 1)

    def fine(self, coefficients: Tensor) -> Tensor:
        """Return the logarithm of the contrast of fine brightness of coefficients (B, q), (B,)."""
        return self.taken_out(coefficients)[:, len(self._std) + self._at]

    def given_back(self, numbers: Tensor) -> Tensor:
        """Return the coefficients (B, q) that `taken_out` gave such numbers (B, q + bands)."""
        of = self._of.to(numbers)
        coefficients, logs = numbers.split(list(of.shape), 1)
        return coefficients * (logs.clamp(-_MOST, _MOST) @ of.T).exp()


def band_sizes(counts: Sequence[int]) -> list[int]:
    """Return how many coefficients each contrast is of; no band is empty."""
    coarse = max(counts[0] // _COARSE, 1)
    return [size for size in (coarse - 1, counts[0] - coarse, sum(counts[1:])) if size]


class Detail:
    """Pictures of dead leaves without their low coefficients.

    Args:
        image_shape: (C, H, W).
        basis: Orthonormal functions of the low coefficients, (C H W, q).
        light: Contrasts of these coefficients.
    """

    def __init__(self, image_shape: tuple[int, int, int], basis: Tensor, light: Light) -> None:
        channels, height, width = image_shape
        num = min(max(_NUMBERS // len(basis), _FEWEST), _MOST_PICTURES)
        pictures = to_float(drawn.draw_leaves(num, (height, width), channels, seed=_SEED))
        low = pictures.flatten(1).double() @ basis
        self._high = pictures - (low @ basis.T).view(pictures.shape).float()
        self._light, self._fine = light, light.fine(low)

    def added(self, images: Tensor, coefficients: Tensor, place: Tensor) -> Tensor:
        """Return images (B, C, H, W) with detail of their own contrast.

        Args:
            coefficients: Their low ones, (B, q).
            place: Uniform numbers in (0, 1) that choose picture and flip, (B,).
        """
        chosen = (place.double() * FLIPS * len(self._high)).long().clamp(0, FLIPS * len(self._high) - 1).cpu()
        picture, flip = chosen // FLIPS, chosen % FLIPS
        high = self._high[picture]
        high = torch.where((flip % 2 == 1)[:, None, None, None], high.flip(3), high)
        high = torch.where((flip > 1)[:, None, None, None], high.flip(2), high)
        fine = self._light.fine(coefficients) - self._fine[picture].to(coefficients)
        return images + fine.exp().clamp(max=_MOST_GAIN)[:, None, None, None] * high.to(images)


_BRIGHTNESS_SHARE = 2 / 3  # of the functions of a color image; the rest is for color differences, which are smooth
_CHROMA_VARIANCE = 0.1  # of color differences, relative to the brightness
_DILATIONS = (1, 2, 4)  # of the hidden convolutions: with the last one they see 17 x 17 pixels
_PLACES = ((0, 1), (1, 0), (1, 1), (0, 2), (2, 0))  # cosines that tell a convolution where it is
CONTRAST = 0.35  # standard deviation of the pixels of a photograph on [-1, 1]
_LINEAR = 0.8  # absolute value up to which a pixel is unchanged


class Spectrum(NamedTuple):
    """A cosine basis and the variance of photographs along it, fixed before any photograph is read.

    Attributes:
        basis: Orthonormal functions of the pixels, (C H W, q) float64: low DCT frequencies of the brightness, then of
            two color differences where there are colors.
        variance: Of each coefficient, (q,); over all coefficients of an image variances add up to 1.
    """

    basis: Tensor
    variance: Tensor


def count_coefficients(image_shape: Sequence[int], latent_dim: int) -> int:
    """Return q, the coefficients of an image: `ModelConfig.latent_dim`, or fewer for fewer pixels."""
    channels, height, width = image_shape
    return sum(_counts(channels, height * width, latent_dim))


def count_numbers(image_shape: Sequence[int], latent_dim: int, shape: int = 0, *, light: bool = False) -> int:
    """Return how many numbers of an image a law has: coefficients, their contrasts with light, and a displacement."""
    channels, height, width = image_shape
    counts = _counts(channels, height * width, latent_dim)
    return sum(counts) + (len(band_sizes(counts)) if light else 0) + 2 * shape


def odd_coefficients(image_shape: Sequence[int], latent_dim: int) -> Tensor:
    """Return which coefficients change their sign in the mirror image, left for right, (q,) bool; the others stay."""
    channels, height, width = image_shape
    ordered = _frequencies(height, width)
    counts = _counts(channels, height * width, latent_dim)
    return torch.tensor([v % 2 == 1 for count in counts for _, v in ordered[:count]], dtype=torch.bool)


def low_spectrum(image_shape: Sequence[int], latent_dim: int) -> Spectrum:
    """Return the functions of lowest frequency, and how variance falls with frequency.

    The variance of frequency (u, v) is proportional to ``1 / (1 + u^2 + v^2)``: photographs have a power spectrum of
    ``1 / f^2`` (Field, Relations between the statistics of natural images and the response properties of cortical
    cells, 1987), and 1 keeps the mean brightness finite.

    For a color image, two thirds of the ``latent_dim`` functions describe the brightness.
    """
    channels, height, width = (int(side) for side in image_shape)
    ordered = _frequencies(height, width)
    falling = torch.tensor([1 / (1 + u * u + v * v) for u, v in ordered], dtype=torch.float64)
    counts = _counts(channels, height * width, latent_dim)
    functions = cosines(height, width, ordered[: max(counts)])
    # Orthonormal rows: brightness, and red-blue and green-magenta differences where there are colors.
    axes = torch.tensor([[1, 1, 1], [1, 0, -1], [-1, 2, -1]], dtype=torch.float64)
    axes = axes / axes.norm(dim=1, keepdim=True) if channels == 3 else torch.ones(1, 1, dtype=torch.float64)
    parts, variances = [], []
    for number, (axis, count) in enumerate(zip(axes, counts, strict=True)):
        parts.append((axis[:, None, None] * functions[:, :count]).flatten(0, 1))
        variances.append(falling[:count] * (_CHROMA_VARIANCE if number else 1.0))
    whole = falling.sum() * (1 + _CHROMA_VARIANCE * (channels - 1))
    return Spectrum(torch.cat(parts, dim=1), torch.cat(variances) / whole)


def _frequencies(height: int, width: int) -> list[tuple[int, int]]:
    """Return all pairs (u, v), vertical and horizontal, the lowest first."""
    ordered = sorted((u * u + v * v, u, v) for u in range(height) for v in range(width))
    return [(u, v) for _, u, v in ordered]


def _counts(channels: int, pixels: int, latent_dim: int) -> list[int]:
    if channels == 1:
        return [min(latent_dim, pixels)]
    first = math.ceil(latent_dim * _BRIGHTNESS_SHARE)
    second = (latent_dim - first + 1) // 2
    return [min(count, pixels) for count in (first, second, latent_dim - first - second)]


class GaussianGenerator(Generator):
    """Draw coefficients ``mean + factor z`` of the image's class, transform them back, clamp to [-1, 1].

    Args:
        config: The [model] section: ``latent_dim`` coefficients, and `ModelConfig.drawn`.
        image_shape: (C, H, W) in px of any size, C in {1, 3}.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Not used: before `set_moments` the images are grey.

    Attributes:
        mean: (max(num_classes, 1), q), of q coefficients of the image, and of the displacement where there is one.
        factor: F of the covariance F F^T, (max(num_classes, 1), q, q); missing ranks are columns of zeros.
    """

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        size = count_numbers(image_shape, config.latent_dim, config.drawn.shape, light=config.drawn.light)
        super().__init__(config, image_shape, num_classes, latent_dim=size + config.drawn.detail)
        rows = max(self.num_classes, 1)
        if config.drawn.detail:
            self.choosing = (size,)
        self.mean = nn.Parameter(torch.zeros(rows, size))
        self.factor = nn.Parameter(torch.zeros(rows, size, size))

    def set_moments(self, mean: Tensor, factor: Tensor) -> None:
        """Set means (rows, q) and factors (rows, q, r), r <= q."""
        with torch.no_grad():
            self.mean.copy_(mean)
            self.factor.zero_()
            self.factor[:, :, : factor.shape[2]] = factor

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Draw images of coefficients ``z``, clamped."""
        return self.unclamped(z, labels).clamp(-1.0, 1.0)

    def unclamped(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Draw images of coefficients ``z``, (B, q) standard normal; they are not within [-1, 1] yet.

        With detail one number more chooses its picture.
        """
        size = self.mean.shape[1]
        z, place = z[:, :size], uniform_of(z[:, size:])
        rows = torch.zeros(len(z), dtype=torch.int64, device=z.device) if labels is None else labels
        of_all = torch.einsum("kqr,br->bkq", self.factor, z)
        drawn = self.mean[rows] + of_all[torch.arange(len(z), device=z.device), rows]
        basis = basis_of(self.image_shape, self.config.latent_dim).to(drawn)
        numbers = drawn.shape[1] - 2 * self.config.drawn.shape
        texture, shapes = drawn.split([numbers, 2 * self.config.drawn.shape], dim=1)
        if self.config.drawn.light:
            texture = light_of(self.image_shape, self.config.latent_dim).given_back(texture)
        images = (texture @ basis.T).view(-1, *self.image_shape)
        if self.config.drawn.detail:
            images = detail_of(self.image_shape, self.config.latent_dim).added(images, texture, place[:, 0])
        return bent_back(images, shapes) if self.config.drawn.shape else images


@functools.lru_cache(maxsize=2)  # every batch needs it
def basis_of(image_shape: tuple[int, int, int], latent_dim: int) -> Tensor:
    """Return the functions of `low_spectrum`; the caller does not change them."""
    with torch.device("cpu"):  # also where a generator is built without weights: what is kept has numbers
        return low_spectrum(image_shape, latent_dim).basis


@functools.lru_cache(maxsize=2)
def light_of(image_shape: tuple[int, int, int], latent_dim: int) -> Light:
    """Return the contrasts of the coefficients of `low_spectrum`, in units of photographs of the usual contrast."""
    channels, height, width = image_shape
    with torch.device("cpu"):
        variance = low_spectrum(image_shape, latent_dim).variance * math.prod(image_shape) * CONTRAST**2
        return Light(variance.sqrt(), _counts(channels, height * width, latent_dim))


@functools.lru_cache(maxsize=2)
def detail_of(image_shape: tuple[int, int, int], latent_dim: int) -> Detail:
    """Return what dead leaves have above the coefficients of `low_spectrum`."""
    with torch.device("cpu"):
        return Detail(image_shape, basis_of(image_shape, latent_dim), light_of(image_shape, latent_dim))


class RefinedGenerator(GaussianGenerator):
    """Draw images as a `GaussianGenerator`, add the output of a small convolutional network, and clamp smoothly.

    The network sees the drawn image, a plane of noise of half its size, and five cosines of the place. Its last layer
    is zero at first, so that images are those of the normal distribution until it is trained. The network does not see
    the class: else it would mark it by a faint texture, which a classifier of the images learns instead of the class.

    Args:
        config: The [model] section: ``latent_dim`` coefficients, ``width`` feature maps.
        image_shape: (C, H, W) in px of any size, C in {1, 3}.
        num_classes: Classes of the data; ignored unless ``config.conditional``.
        seed: Of the weights.

    Attributes:
        mean: (max(num_classes, 1), q), not trained.
        factor: (max(num_classes, 1), q, q), not trained.
    """

    def __init__(self, config: ModelConfig, image_shape: Sequence[int], num_classes: int, *, seed: int = 0) -> None:
        super().__init__(config, image_shape, num_classes, seed=seed)
        self.mean.requires_grad_(False)
        self.factor.requires_grad_(False)
        channels, height, width = self.image_shape
        self._coefficients, self._noise_shape = self.latent_dim, (-(-height // 2), -(-width // 2))
        self.latent_dim += self._noise_shape[0] * self._noise_shape[1]
        maps = [channels + 1 + len(_PLACES), *[config.width] * len(_DILATIONS)]
        with seeded_init(seed):
            self.hidden = nn.ModuleList(
                nn.Conv2d(before, after, 3, padding=dilation, dilation=dilation)
                for before, after, dilation in zip(maps[:-1], maps[1:], _DILATIONS, strict=True)
            )
        self.last = nn.Conv2d(config.width, channels, 3, padding=1)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def images(self, z: Tensor, labels: Tensor | None) -> Tensor:
        """Draw images of the coefficients, the first numbers of ``z``, and refine them with the others as noise."""
        coefficients, noise = z.split([self._coefficients, z.shape[1] - self._coefficients], dim=1)
        drawn = self.unclamped(coefficients, labels)
        num, (height, width) = len(z), self.image_shape[1:]
        plane = noise.view(num, 1, *self._noise_shape).repeat_interleave(2, 2).repeat_interleave(2, 3)
        places = cosines(height, width, _PLACES).T.to(drawn).view(1, -1, height, width) * (height * width) ** 0.5
        hidden = torch.cat([softly_clamped(drawn), plane[:, :, :height, :width], places.expand(num, -1, -1, -1)], dim=1)
        for layer in self.hidden:
            hidden = functional.gelu(layer(hidden))
        return softly_clamped(drawn + self.last(hidden))


def softly_clamped(images: Tensor) -> Tensor:
    """Squash pixels into [-1, 1]: values within 0.8 stay, the rest approach the end of the range smoothly.

    A hard clamp has zero gradient beyond the range, so a pixel there would never return.
    """
    inner = images.clamp(-_LINEAR, _LINEAR)
    return inner + (1 - _LINEAR) * torch.tanh((images - inner) / (1 - _LINEAR))
