r"""Wavelet scattering of images: fixed features without any data, for private classifiers and for feature sums.

Order 2, Morlet wavelets in L directions at J scales (Bruna and Mallat 2013, "Invariant scattering convolution
networks"): ``S0 = x * phi``, ``S1 = |x * psi_a| * phi``, ``S2 = ||x * psi_a| * psi_b| * phi`` with scale(b) > scale(a),
each sampled every 2^J pixels. That is ``1 + J L + L^2 J (J - 1) / 2`` maps of ``(H / 2^J, W / 2^J)`` per channel.
Products are taken in the Fourier domain, and every product is sampled as coarsely as its scale allows.

Classifiers and mean-embedding matches take `normalized`, a function of each image alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from idpgan.errors import InputError

_SIGMA = 0.8  # width of the finest envelope, in pixels
_FREQUENCY = 0.75 * math.pi  # of the finest wavelet
_WRAPS = 2  # copies of an envelope on each side, for a periodic filter
_CHUNK_NUMBERS = {"cpu": 1 << 19, "cuda": 1 << 25}  # complex numbers at once: 4 MiB stay in a CPU's cache
_LEAST_NORM = 1e-6


def scales_of(height: int, width: int) -> int:
    """Return J by size: maps keep between 6 and 13 rows. 2 up to 39 pixels, 3 up to 79, then 4."""
    side = min(height, width)
    return 2 if side < 40 else 3 if side < 80 else 4


def scattering_shape(image_shape: tuple[int, int, int], scales: int, directions: int) -> tuple[int, int, int]:
    """Return the shape (C * maps, rows, columns) of what `Scattering` makes of an image, without making its filters.

    Raises:
        InputError: If the image is too small for J.
    """
    channels, height, width = image_shape
    if scales < 1 or directions < 1 or min(height, width) < 2 ** (scales + 1):
        raise InputError(
            f"scattering with J = {scales}, L = {directions} needs images of at least {2 ** (scales + 1)} pixels a "
            f"side, got {height} x {width}."
        )
    maps = 1 + scales * directions + directions**2 * scales * (scales - 1) // 2
    rows, columns = (_padded(side, scales) // 2**scales - 2 for side in (height, width))
    return channels * maps, rows, columns


def _padded(side: int, scales: int) -> int:
    """Return a side with a margin of at least 2^J pixels, a multiple of 2^J."""
    step = 2**scales
    return ((side + step) // step + 1) * step


class Scattering(nn.Module):
    """The transform for one image size. It has filters (buffers), no parameters, and is differentiable.

    Args:
        image_shape: (C, H, W); H and W at least 2^(J + 1).
        scales: J; None = `scales_of`.
        directions: L.
    """

    def __init__(self, image_shape: tuple[int, int, int], scales: int | None = None, directions: int = 8) -> None:
        super().__init__()
        channels, height, width = image_shape
        scales = scales_of(height, width) if scales is None else scales
        self.output_shape = scattering_shape(image_shape, scales, directions)
        self.image_shape, self.scales, self.directions = image_shape, scales, directions
        self.padded = _padded(height, scales), _padded(width, scales)
        extra = [padded - side for padded, side in zip(self.padded, (height, width), strict=True)]
        self.padding = (extra[1] // 2, (extra[1] + 1) // 2, extra[0] // 2, (extra[0] + 1) // 2)
        self.maps = self.output_shape[0] // channels
        average = _envelope(self.padded, _SIGMA * 2 ** (scales - 1), 0.0, 0.0, 1.0)  # of rank one: a product of sides
        for level in range(scales):
            for axis, name in enumerate(("rows", "columns")):
                self.register_buffer(f"_{name}_{level}", self._averages(average, axis, level), persistent=False)
        for scale in range(scales):
            wavelets = torch.stack([self._wavelet(scale, turn) for turn in range(directions)])
            for level in range(min(scale + 1, max(scales - 1, 1))):
                sides, factor = [side // 2**level for side in self.padded], 2**level  # of signals of this level
                shared = _kept(self.padded[0], factor)[:, None] & _kept(self.padded[1], factor)
                folded = (wavelets * shared).unflatten(-1, (factor, sides[1])).unflatten(-3, (factor, sides[0]))
                coarser = folded.sum((-4, -2))  # in the Fourier domain
                filters = _by_frequency(coarser, 2 ** (scale - level)) / 4 ** (scale - level)
                self.register_buffer(f"_psi_{scale}_{level}", filters.transpose(1, 2).float(), persistent=False)

    def _averages(self, average: Tensor, axis: int, level: int) -> Tensor:
        """Return the matrix of ``x * phi`` along one axis for signals sampled every 2^level pixels, without the margin.

        Returns:
            float32 (samples every 2^J pixels, samples every 2^level pixels).
        """
        profile = average.real.sum(1 - axis)
        smooth = torch.fft.fft(profile / profile.sum() * average.real.sum().sqrt()).real
        factor, coarser = 2**level, 2 ** (self.scales - level)
        smooth = _kept(len(smooth), factor) * smooth
        smooth = smooth.unflatten(0, (factor, -1)).sum(0)
        spectrum = torch.fft.fft(torch.eye(len(smooth), dtype=torch.float64)) * smooth
        sampled = torch.fft.ifft(spectrum.unflatten(1, (coarser, -1)).mean(1)).real
        return sampled[:, 1:-1].T.float().contiguous()

    def _wavelet(self, scale: int, turn: int) -> Tensor:
        """Return the Fourier transform of one Morlet wavelet, real: a Gabor wave made to have mean zero."""
        directions = self.directions
        angle = (int(directions - directions / 2 - 1) - turn) * math.pi / directions
        sigma, frequency, slant = _SIGMA * 2**scale, _FREQUENCY / 2**scale, 4 / directions
        wave = _envelope(self.padded, sigma, angle, frequency, slant)
        envelope = _envelope(self.padded, sigma, angle, 0.0, slant)
        return torch.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real

    def forward(self, images: Tensor) -> Tensor:
        """Transform images (B, C, H, W), float32, any range: (B, C * maps, rows, columns), channel by channel."""
        if tuple(images.shape[1:]) != self.image_shape:
            raise InputError(f"images must be (B, {', '.join(map(str, self.image_shape))}), got {tuple(images.shape)}.")
        flat = images.flatten(0, 1)
        per_image = self.padded[0] * self.padded[1] * self.directions * (1 + self.directions // 4)
        most = _CHUNK_NUMBERS.get(flat.device.type, _CHUNK_NUMBERS["cuda"]) // per_image
        parts = [self._transform(part) for part in flat.split(max(1, most))]
        return torch.cat(parts).unflatten(0, images.shape[:2]).flatten(1, 2)

    def _transform(self, images: Tensor) -> Tensor:
        padded = nn.functional.pad(images[:, None], self.padding, mode="reflect")  # (B, 1, h, w)
        first, second = [], []
        for scale in range(self.scales):
            modulus = self._modulus(padded, scale, 0)  # (B, L, h / 2^scale, w / 2^scale)
            first.append(self._average(modulus, scale))
            for coarser in range(scale + 1, self.scales):
                pairs = self._modulus(modulus, coarser, scale)  # (B, L * L, ...)
                second.append(self._average(pairs, coarser))
        zeroth = self._average(padded, 0)
        # Order of the maps: S0, S1 by scale and direction, S2 by scale and direction of a, then of b.
        joined = [part.unflatten(1, (self.directions, -1)) for part in second]
        grouped, place = [], 0
        for scale in range(self.scales):
            count = self.scales - 1 - scale
            if count:
                grouped.append(torch.cat(joined[place : place + count], 2).flatten(1, 2))
            place += count
        return torch.cat([zeroth, *first, *grouped], 1)

    def _modulus(self, signals: Tensor, scale: int, level: int) -> Tensor:
        """Return ``|x * psi|`` for all directions, sampled every 2^scale pixels.

        The product with the filters and the sum over the frequencies that the coarser grid cannot tell apart are one
        small matrix product per frequency of that grid: this moves far less memory than one after the other.

        Args:
            signals: x, real (B, M, h, w), sampled every 2^level pixels.
            scale: Of psi.
            level: Of x.

        Returns:
            (B, M * L, h', w').
        """
        filters, factor = self.get_buffer(f"_psi_{scale}_{level}"), 2 ** (scale - level)  # (h' w', L, factor^2)
        height, width = (side // factor for side in signals.shape[-2:])
        spectrum = _by_frequency(torch.fft.fft2(signals.flatten(0, 1)), factor)  # (h' w', factor^2, B M)
        product = filters @ torch.view_as_real(spectrum).flatten(2)  # (h' w', L, 2 B M)
        waves = torch.view_as_complex(product.unflatten(2, (-1, 2))).permute(2, 1, 0).unflatten(2, (height, width))
        return _lengths(torch.fft.ifft2(waves)).reshape(len(signals), -1, height, width)

    def _average(self, signals: Tensor, level: int) -> Tensor:
        """Return ``x * phi``, sampled every 2^J pixels, without the margin; x: real, every 2^level pixels."""
        return self.get_buffer(f"_rows_{level}") @ signals @ self.get_buffer(f"_columns_{level}").T

    def normalized(self, images: Tensor) -> Tensor:
        """Return features of norm 1 for images (B, C, H, W): (B, D), D = product of `output_shape`.

        About three neighboring maps of one image at a time lose their common mean and are divided by their common
        spread (group normalization without parameters, as Tramer and Boneh 2021, "Differentially private learning needs
        better features (or much more data)"), so that fine and coarse scales weigh alike; then the vector gets norm 1.
        An image without contrast becomes zero.
        """
        maps = self(images)
        groups = max(count for count in range(1, self.maps + 1) if self.maps % count == 0 and self.maps >= 3 * count)
        grouped = maps.reshape(len(maps), self.image_shape[0] * groups, -1)
        centered = grouped - grouped.mean(2, keepdim=True)
        spread = centered.square().mean(2, keepdim=True).sqrt()
        vectors = (centered / spread.clamp(min=_LEAST_NORM)).flatten(1)
        return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=_LEAST_NORM)


def _lengths(numbers: Tensor) -> Tensor:
    """Return the absolute values of complex numbers, in a third of the time that torch's own functions take."""
    if numbers.requires_grad:  # the root of 0 has no gradient, a norm's is 0 there
        return torch.linalg.vector_norm(torch.view_as_real(numbers), dim=-1)
    squares = torch.view_as_real(numbers).square()
    return (squares[..., 0] + squares[..., 1]).sqrt_()


def _envelope(size: tuple[int, ...], sigma: float, angle: float, frequency: float, slant: float) -> Tensor:
    """Return a periodic Gabor function: a Gaussian, narrower by ``slant`` across its wave, complex128 (h, w)."""
    cos, sin = math.cos(angle), math.sin(angle)
    along = cos * cos + slant**2 * sin * sin
    across = sin * sin + slant**2 * cos * cos
    mixed = 2 * cos * sin * (1 - slant**2)
    total = torch.zeros(size, dtype=torch.complex128)
    for row in range(-_WRAPS, _WRAPS + 1):
        for column in range(-_WRAPS, _WRAPS + 1):
            y = torch.arange(size[0], dtype=torch.float64)[:, None] + row * size[0]
            x = torch.arange(size[1], dtype=torch.float64)[None, :] + column * size[1]
            decay = -(along * y * y + mixed * y * x + across * x * x) / (2 * sigma**2)
            total += torch.exp(torch.complex(decay, frequency * (y * cos + x * sin)))
    return total * slant / (2 * math.pi * sigma**2)


def _kept(side: int, factor: int) -> Tensor:
    """Return which frequencies of an axis a grid coarser by a factor has: bool (side,)."""
    kept = torch.ones(side, dtype=torch.bool)
    start = int(side / (2 * factor))
    kept[start : start + int(side * (1 - 1 / factor))] = False
    return kept


def _by_frequency(spectra: Tensor, factor: int) -> Tensor:
    """Group frequencies (B, h, w) by their alias on a grid coarser by a factor: (h' w', factor^2, B), contiguous."""
    height, width = (side // factor for side in spectra.shape[-2:])
    sorted_ = spectra.reshape(len(spectra), factor, height, factor, width).permute(2, 4, 1, 3, 0)
    return sorted_.reshape(height * width, factor * factor, len(spectra)).contiguous()
