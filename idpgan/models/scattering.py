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
_CHUNK_NUMBERS = 1 << 25  # complex numbers at once: 256 MiB
_LEAST_NORM = 1e-6


def scales_of(height: int, width: int) -> int:
    """Return J by size: maps keep between 6 and 13 rows. 2 up to 39 pixels, 3 up to 79, then 4."""
    side = min(height, width)
    return 2 if side < 40 else 3 if side < 80 else 4


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
        if scales < 1 or directions < 1 or min(height, width) < 2 ** (scales + 1):
            raise InputError(
                f"scattering with J = {scales}, L = {directions} needs images of at least {2 ** (scales + 1)} pixels a "
                f"side, got {height} x {width}."
            )
        self.image_shape, self.scales, self.directions = image_shape, scales, directions
        step = 2**scales
        self.padded = tuple(((side + step) // step + 1) * step for side in (height, width))
        extra = [padded - side for padded, side in zip(self.padded, (height, width), strict=True)]
        self.padding = (extra[1] // 2, (extra[1] + 1) // 2, extra[0] // 2, (extra[0] + 1) // 2)
        rows, columns = (padded // step - 2 for padded in self.padded)
        self.maps = 1 + scales * directions + directions**2 * scales * (scales - 1) // 2
        self.output_shape = (channels * self.maps, rows, columns)
        for scale in range(scales):
            wavelets = torch.stack([self._wavelet(scale, turn) for turn in range(directions)])
            for level in range(min(scale + 1, max(scales - 1, 1))):
                self.register_buffer(f"_psi_{scale}_{level}", _coarser(wavelets, level).float(), persistent=False)
        average = _envelope(self.padded, _SIGMA * 2 ** (scales - 1), 0.0, 0.0, 1.0)
        for level in range(scales):
            smooth = _coarser(torch.fft.fft2(average).real[None], level)[0]
            self.register_buffer(f"_phi_{level}", smooth.float(), persistent=False)

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
        parts = [self._transform(part) for part in flat.split(max(1, _CHUNK_NUMBERS // per_image))]
        return torch.cat(parts).unflatten(0, images.shape[:2]).flatten(1, 2)

    def _transform(self, images: Tensor) -> Tensor:
        spectrum = torch.fft.fft2(nn.functional.pad(images[:, None], self.padding, mode="reflect"))  # (B, 1, h, w)
        first, second = [], []
        for scale in range(self.scales):
            modulus = self._modulus(spectrum, scale, 0)  # (B, L, h / 2^scale, w / 2^scale), its Fourier transform
            first.append(self._average(modulus, scale))
            for coarser in range(scale + 1, self.scales):
                pairs = self._modulus(modulus[:, :, None], coarser, scale)  # (B, L, L, ...)
                second.append(self._average(pairs.flatten(1, 2), coarser))
        zeroth = self._average(spectrum, 0)
        # Order of the maps: S0, S1 by scale and direction, S2 by scale and direction of a, then of b.
        joined = [part.unflatten(1, (self.directions, -1)) for part in second]
        grouped, place = [], 0
        for scale in range(self.scales):
            count = self.scales - 1 - scale
            if count:
                grouped.append(torch.cat(joined[place : place + count], 2).flatten(1, 2))
            place += count
        return torch.cat([zeroth, *first, *grouped], 1)

    def _modulus(self, spectrum: Tensor, scale: int, level: int) -> Tensor:
        """Return the transform of ``|x * psi|`` for all directions, sampled every 2^scale pixels; x: every 2^level."""
        filters = self.get_buffer(f"_psi_{scale}_{level}")
        return torch.fft.fft2(torch.fft.ifft2(_sampled(spectrum * filters, 2 ** (scale - level))).abs())

    def _average(self, spectrum: Tensor, level: int) -> Tensor:
        """Return ``x * phi``, sampled every 2^J pixels, without the margin."""
        product = spectrum * self.get_buffer(f"_phi_{level}")
        return torch.fft.ifft2(_sampled(product, 2 ** (self.scales - level))).real[..., 1:-1, 1:-1]

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


def _coarser(filters: Tensor, level: int) -> Tensor:
    """Return filters (..., h, w) in the Fourier domain for signals that are sampled every 2^level pixels."""
    factor = 2**level
    for axis in (-2, -1):
        side = filters.shape[axis]
        kept = torch.ones(side, dtype=torch.bool)
        start = int(side / (2 * factor))
        kept[start : start + int(side * (1 - 1 / factor))] = False  # frequencies that the coarser grid does not have
        filters = filters * (kept[:, None] if axis == -2 else kept)
    return _folded(filters, factor).sum((-4, -2))


def _sampled(spectrum: Tensor, factor: int) -> Tensor:
    """Return the Fourier transform of a signal that is sampled every ``factor`` pixels."""
    return spectrum if factor == 1 else _folded(spectrum, factor).mean((-4, -2))


def _folded(spectrum: Tensor, factor: int) -> Tensor:
    height, width = spectrum.shape[-2:]
    return spectrum.unflatten(-1, (factor, width // factor)).unflatten(-3, (factor, height // factor))
