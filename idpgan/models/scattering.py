r"""Wavelet scattering of images: fixed features without any data, for private classifiers and for feature sums.

Order 2, Morlet wavelets in L directions at J scales (Bruna and Mallat 2013, "Invariant scattering convolution
networks"): ``S0 = x * phi``, ``S1 = |x * psi_a| * phi``, ``S2 = ||x * psi_a| * psi_b| * phi`` with scale(b) > scale(a),
each sampled every 2^J pixels. That is ``1 + J L + L^2 J (J - 1) / 2`` maps of ``(H / 2^J, W / 2^J)`` per channel.
Filters act in the real Fourier basis (`Axis`), and every product is sampled as coarsely as its scale allows.

Classifiers and mean-embedding matches take `normalized`, a function of each image alone.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from idpgan.device import by_device
from idpgan.errors import InputError
from idpgan.privacy.dpsgd import full_precision

_SIGMA = 0.8  # width of the finest envelope, in pixels
_FREQUENCY = 0.75 * math.pi  # of the finest wavelet
_WRAPS = 2  # copies of an envelope on each side, for a periodic filter
# Planes of a tile at most, and numbers of a plane in all directions times planes: 1 where a plane is large.
_TILE = (48, 3 << 20), (512, 1 << 25)  # `by_device`
_FINEST = 2  # directions at once of the finest wavelets: a cache holds their waves; of coarser ones all
_LEAST_SQUARE = 1e-30  # where the slope of a root ends
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
    """The transform for one image size. It has matrices (buffers), no parameters, and is differentiable.

    Images are taken in tiles of a fixed number, the last one filled up with zeros: row i of a result is, to the last
    bit, a function of image i and its place, whatever the other images are. On a CPU the memory of a tile is kept for
    the next call.

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
        self._tapes: defaultdict[tuple[torch.dtype, bool], list[_Tape]] = defaultdict(list)
        self.padded = _padded(height, scales), _padded(width, scales)
        self.maps = self.output_shape[0] // channels
        self._coarsest = self.padded[0] // 2 ** (scales - 1), self.padded[1] // 2 ** (scales - 1)
        self._make_averages()
        for scale in range(scales):
            wavelets = torch.stack([self._wavelet(scale, turn) for turn in range(directions)])
            for level in range(min(scale + 1, max(scales - 1, 1))):
                together = directions if scale else math.gcd(directions, _FINEST)
                parts = self._coarser(wavelets, level).split(together)
                blocks = [blocks_of(part, self._coarsest, 2 ** (scale - level)) for part in parts]
                self.register_buffer(f"_psi_{scale}_{level}", torch.stack(blocks).float(), persistent=False)

    def _make_averages(self) -> None:
        """Make the matrices that turn an axis into its Fourier basis and back, and those of ``x * phi``, by level.

        Level -1 are the images, which are padded by reflection on the way.
        """
        average = _envelope(self.padded, _SIGMA * 2 ** (self.scales - 1), 0.0, 0.0, 1.0)  # of rank one
        for number, name in enumerate(("rows", "columns")):
            side, padded = self.image_shape[number + 1], self.padded[number]
            ends = (padded - side) // 2, (padded - side + 1) // 2
            reflected = nn.functional.pad(torch.eye(side, dtype=torch.float64)[None], ends, mode="reflect")[0].T
            for level in range(self.scales):
                basis = Axis(padded // 2**level, self._coarsest[number]).basis
                mean = self._averages(average, number, level)
                # Rows: first the first number of every group, then the second, as the products below leave them.
                back = basis.view(-1, 2, len(basis)).transpose(0, 1).flatten(0, 1) if name == "rows" else basis
                made = {f"to_{level}": basis, f"from_{level}": back.T, f"mean_{level}": mean}
                made |= {} if level else {"to_-1": basis @ reflected, "mean_-1": mean @ reflected}
                for what, matrix in made.items():
                    self.register_buffer(f"_{name}_{what}", matrix.float().contiguous(), persistent=False)

    def _averages(self, average: Tensor, axis: int, level: int) -> Tensor:
        """Return the matrix of ``x * phi`` along one axis for signals sampled every 2^level pixels, without the margin.

        Returns:
            float64 (samples every 2^J pixels, samples every 2^level pixels).
        """
        profile = average.real.sum(1 - axis)
        smooth = torch.fft.fft(profile / profile.sum() * average.real.sum().sqrt()).real
        factor, coarser = 2**level, 2 ** (self.scales - level)
        smooth = _kept(len(smooth), factor) * smooth
        smooth = smooth.unflatten(0, (factor, -1)).sum(0)
        spectrum = torch.fft.fft(torch.eye(len(smooth), dtype=torch.float64)) * smooth
        sampled = torch.fft.ifft(spectrum.unflatten(1, (coarser, -1)).mean(1)).real
        return sampled[:, 1:-1].T

    def _wavelet(self, scale: int, turn: int) -> Tensor:
        """Return the Fourier transform of one Morlet wavelet, real: a Gabor wave made to have mean zero."""
        directions = self.directions
        angle = (int(directions - directions / 2 - 1) - turn) * math.pi / directions
        sigma, frequency, slant = _SIGMA * 2**scale, _FREQUENCY / 2**scale, 4 / directions
        wave = _envelope(self.padded, sigma, angle, frequency, slant)
        envelope = _envelope(self.padded, sigma, angle, 0.0, slant)
        return torch.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real

    def _coarser(self, wavelets: Tensor, level: int) -> Tensor:
        """Return filters (L, h, w) for signals sampled every 2^level pixels, whose aliases add up."""
        factor = 2**level
        shared = _kept(self.padded[0], factor)[:, None] & _kept(self.padded[1], factor)
        sides = [side // factor for side in self.padded]
        return (wavelets * shared).unflatten(-1, (factor, sides[1])).unflatten(-3, (factor, sides[0])).sum((-4, -2))

    def normalized(self, images: Tensor) -> Tensor:
        """Return features of norm 1 for images (B, C, H, W): (B, D), D = product of `output_shape`.

        About three neighboring maps of one image at a time lose their common mean and are divided by their common
        spread (group normalization without parameters, as Tramer and Boneh 2021, "Differentially private learning needs
        better features (or much more data)"), so that fine and coarse scales weigh alike; then the vector gets norm 1.
        An image without contrast becomes zero.
        """
        tiles, channels = (tile.permute(2, 1, 0) for tile in self.normalized_tiles(images)), self.image_shape[0]
        return _joined(tiles, images, (channels, math.prod(self.output_shape) // channels)).flatten(1)

    def normalized_tiles(self, images: Tensor) -> Iterator[Tensor]:
        """Yield what `normalized` returns in parts (D / C, C, T) of one size, the last one filled up with zeros.

        Without gradients a part is valid until the next one is asked for.
        """
        groups = max(count for count in range(1, self.maps + 1) if self.maps % count == 0 and self.maps >= 3 * count)
        for maps, tape in self._tiles(images):
            grouped = maps.view(groups, -1, *maps.shape[2:])
            centered = grouped.sub_(grouped.mean(1, keepdim=True))
            out = tape.memory("features", *centered.shape)  # at first of their squares
            sums = torch.square(centered, out=out).sum(1, keepdim=True)
            scales = (sums / centered.shape[1]).clamp(min=_LEAST_NORM**2).rsqrt()
            norms = (sums * scales * scales).sum((0, 2), keepdim=True)  # squares of the vectors' norms, without them
            features = torch.mul(centered, scales * norms.clamp(min=_LEAST_NORM**2).rsqrt(), out=out)
            yield features.view(-1, *maps.shape[2:])

    def forward(self, images: Tensor) -> Tensor:
        """Transform images (B, C, H, W), float32, any range: (B, C * maps, rows, columns), channel by channel."""
        tiles = (maps.permute(3, 2, 0, 1).reshape(-1, *self.output_shape) for maps, _ in self._tiles(images))
        return _joined(tiles, images, self.output_shape)

    def _tiles(self, images: Tensor) -> Iterator[tuple[Tensor, _Tape]]:
        """Yield the transforms of T images at once, (maps, rows * columns, C, T), the last ones of zeros."""
        channels, height, width = self.image_shape
        if tuple(images.shape[1:]) != self.image_shape:
            raise InputError(f"images must be (B, {', '.join(map(str, self.image_shape))}), got {tuple(images.shape)}.")
        most, numbers = by_device(images.device, *_TILE)
        planes = min(most, numbers // (self.padded[0] * self.padded[1] * self.directions))
        size = 1 << max(planes // channels, 1).bit_length() - 1  # a power of two
        with self._tape(images) as tape:
            memory = tape.memory("images", height, width, channels, size)
            for part in images.split(size):
                if memory is None or len(part) < size:
                    part = torch.cat([part, part.new_zeros(size - len(part), *self.image_shape)])
                tile = part.permute(2, 3, 1, 0)
                tile = tile.contiguous() if memory is None else memory.copy_(tile)
                with full_precision():
                    maps = tape.played(self._transform, tile.view(height, width, -1))
                yield maps.view(self.maps, -1, channels, size), tape

    @contextmanager
    def _tape(self, images: Tensor) -> Iterator[_Tape]:
        """Lend a tape that no other call holds: that of an earlier call where there is one, on a CPU."""
        if images.device.type != "cpu" or torch.is_grad_enabled():
            yield _Tape(images)
            return
        kept = self._tapes[images.dtype, torch.is_inference_mode_enabled()]
        try:
            tape = kept.pop()
        except IndexError:  # none, or another thread was faster
            tape = _Tape(images)
        yield tape
        kept.append(tape)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the tapes out of copies."""
        return {**self.__dict__, "_tapes": defaultdict(list)}

    def _transform(self, images: Tensor, tape: _Tape) -> Tensor:
        """Transform planes, one in each place of the last dimension: (H, W, P) -> (maps, rows * columns, P)."""
        planes, found = images.shape[2], dict[tuple[int, ...], Tensor]()

        def add(level: int, signals: Tensor, *key: int) -> None:
            found[key] = self._along("mean", level, signals, tape, f"mean {key}")

        add(-1, images, 0)
        numbers = self._along("to", -1, images, tape, "numbers")
        for scale in range(self.scales):
            again = []
            for part, modulus in enumerate(self._moduli(self._blocks(numbers, scale, tape), scale, 0, tape)):
                add(scale, modulus, 1, scale, part)
                if scale + 1 < self.scales:
                    again.append(self._along("to", scale, modulus, tape, f"again {part}"))
            for (part, moduli), coarser in itertools.product(enumerate(again), range(scale + 1, self.scales)):
                for turn, blocks in enumerate(self._blocks(moduli, coarser - scale, tape).split(planes, 2)):
                    for number, modulus in enumerate(self._moduli(blocks, coarser, scale, tape)):
                        add(coarser, modulus, 2, scale, part, turn, coarser, number)
        # Order of the maps: S0, S1 by scale and direction, S2 by scale and direction of a, then of b.
        parts = [found[key].view(math.prod(found[key].shape[:2]), -1, planes).transpose(0, 1) for key in sorted(found)]
        out = tape.memory("maps", self.maps, math.prod(self.output_shape[1:]), planes)
        return tape(torch.cat, parts, out=out)

    def _blocks(self, numbers: Tensor, octaves: int, tape: _Tape) -> Tensor:
        """Return numbers (h, w, P) by the groups that sampling every 2^octaves places couples: (groups, n, P)."""
        (height, width, count), size = numbers.shape, 2 ** (octaves + 1)
        grouped = numbers.view(height // size, size, width // size, size, count).transpose(1, 2)
        return tape.copy("blocks", grouped).view(-1, size * size, count)

    def _along(self, what: str, level: int, planes: Tensor, tape: _Tape, into: str) -> Tensor:
        """Multiply both axes of planes (h, w, P) of a level by their matrices of that name."""
        rows, columns = self._matrix(f"_rows_{what}_{level}"), self._matrix(f"_columns_{what}_{level}")
        height, width, count = planes.shape
        done = tape(torch.mm, rows, planes.view(height, -1), out=tape.memory("rows", len(rows), width * count))
        out = tape.memory(into, len(rows), len(columns), count)
        return tape(torch.bmm, columns.expand(len(rows), -1, -1), done.view(-1, width, count), out=out)

    def _matrix(self, name: str) -> Tensor:
        """Return a buffer, in a tenth of the time that `get_buffer` takes."""
        return cast(Tensor, self._buffers[name])

    def _moduli(self, blocks: Tensor, scale: int, level: int, tape: _Tape) -> Iterator[Tensor]:
        """Yield ``|x * psi|``, sampled every 2^scale pixels, of some directions after others.

        Args:
            blocks: x, sampled every 2^level pixels, as `_blocks` returns it.
            scale: Of psi.
            level: Of x.

        Yields:
            (h', w', some of L times P), without gradients in memory that the next one overwrites.
        """
        rows, columns = self._matrix(f"_rows_from_{scale}"), self._matrix(f"_columns_from_{scale}")
        height, width, count = len(rows), len(columns), blocks.shape[2]
        for filters in self._matrix(f"_psi_{scale}_{level}"):
            products = tape.memory("products", *filters.shape[:3], count)
            if products is None:
                products = torch.stack([torch.bmm(each, blocks) for each in filters])
            else:
                for each, out in zip(filters, products, strict=True):
                    tape(torch.bmm, each, blocks, out=out)
            products = products.view(height, -1)
            half = tape(torch.mm, rows, products, out=tape.memory("half", *products.shape)).view(height, width, -1)
            # The products are of no more use, so the waves take their place: a CPU's cache holds what is in use.
            out = tape.memory("products", 2, height, width, half.shape[2] // 2)
            real, imaginary = (
                tape(torch.bmm, columns.expand(height, -1, -1), wave, out=None if out is None else out[part])
                for part, wave in enumerate(half.chunk(2, 2))
            )
            if real.requires_grad:  # the root of 0 has no slope
                yield (real.square() + imaginary.square()).clamp(min=_LEAST_SQUARE).sqrt()
            else:
                tape(Tensor.square_, real)
                yield tape(Tensor.sqrt_, tape(Tensor.addcmul_, real, imaginary, imaginary))


class _Tape:
    """What is computed of a tile, played again for the next ones in the same memory.

    Fresh pages cost as much as a product that fills them, and slices of tensors as much as a small product. Where
    gradients are enabled, which may need every result, there is no memory, torch takes new one each time, and every
    tile is computed anew.
    """

    def __init__(self, like: Tensor) -> None:
        self._like, self._none = like, torch.is_grad_enabled()
        self._memory: dict[str, Tensor] = {}
        self._steps: list[Callable[[], Any]] = []
        self._result: Tensor | None = None

    def memory(self, name: str, *shape: int) -> Tensor | None:
        """Return memory of a name and a shape, whose content is overwritten when the name is used again; or None."""
        if self._none:
            return None
        numbers = math.prod(shape)
        if name not in self._memory or self._memory[name].numel() < numbers:
            self._memory[name] = self._like.new_empty(numbers)
        return self._memory[name][:numbers].view(shape)

    def __call__(self, operation: Callable[..., Tensor], *arguments: Any, **out: Tensor | None) -> Tensor:
        """Compute, into memory or in place."""
        step = functools.partial(operation, *arguments, **out)
        if not self._none:
            self._steps.append(step)
        return step()

    def copy(self, name: str, tensor: Tensor) -> Tensor:
        """Return a contiguous copy."""
        out = self.memory(name, *tensor.shape)
        return tensor.contiguous() if out is None else self(Tensor.copy_, out, tensor)

    def played(self, computed: Callable[[Tensor, _Tape], Tensor], images: Tensor) -> Tensor:
        """Return what is computed of images, which lie in the same memory every time."""
        if self._none:
            return computed(images, self)
        if self._result is None:
            self._steps.clear()  # those of a call that failed
            self._result = computed(images, self)
        else:
            for step in self._steps:
                step()
        return self._result


def _joined(tiles: Iterator[Tensor], images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the first rows of tiles, one for each image."""
    if torch.is_grad_enabled():
        return torch.cat([*tiles, images.new_empty(0, *shape)])[: len(images)]
    found, start = images.new_empty(len(images), *shape), 0
    for tile in tiles:
        found[start : start + len(tile)] = tile[: len(images) - start]
        start += len(tile)
    return found


@functools.lru_cache(maxsize=64)  # a run asks for the same filters several times
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


# The real Fourier basis --------------------------------------------------------------------------------------------


class Axis:
    """The real Fourier basis of a periodic axis, its frequencies sorted by groups: those of any factor lie together.

    A filter followed by sampling every f-th point couples frequencies that the coarser grid cannot tell apart, and a
    real signal couples k with -k. So the h frequencies of an axis fall into h / (2 f) groups of 2 f: all k with the
    same ``min(k mod h', -k mod h')``, h' = h / f, where 0 and h' / 2, each its own mirror image, share a group. In the
    basis of cosines and sines every group has 2 f numbers before the filter and 2 after it, and a filter of an image is
    one matrix of (2 f)^2 columns and 4 rows for each pair of groups. Sums over short axes are matrix products: for
    sides up to some hundred they take less time than fast transforms of the same numbers, whose results have to be
    sorted.

    Args:
        side: h.
        coarsest: h' of the coarsest grid; h is a power of two times it, and it is even.

    Attributes:
        basis: R, float64 (h, h): orthonormal rows, cosines and sines of all frequencies in their groups.
        frequencies: k in 0 .. h - 1, int64 (h,), in the same groups.
    """

    def __init__(self, side: int, coarsest: int) -> None:
        self.side = side
        known, place = torch.arange(side // 2 + 1), torch.arange(side, dtype=torch.float64)
        angles = 2 * math.pi / side * torch.outer(known.double(), place)
        waves = torch.cat([angles.cos(), angles[1 : (side + 1) // 2].sin()])  # the sine of 0 and of h / 2 is zero
        of_wave = torch.cat([known, known[1 : (side + 1) // 2]])
        self.basis = (waves / waves.norm(dim=1, keepdim=True))[_by_group(of_wave, side, coarsest)]
        self.frequencies = _by_group(torch.arange(side), side, coarsest)

    def spectra(self, size: int) -> Tensor:
        """Return what each basis function has at each frequency of its group, complex128 (h / size, size, size)."""
        waves = torch.exp(-2j * math.pi / self.side * torch.outer(self.frequencies, torch.arange(self.side)).double())
        coefficients = waves @ self.basis.T.to(waves.dtype)  # (frequencies, basis functions)
        starts = range(0, self.side, size)
        return torch.stack([coefficients[start : start + size, start : start + size] for start in starts])


def blocks_of(filters: Tensor, coarsest: tuple[int, int], factor: int) -> Tensor:
    """Return filters and the sampling that follows as blocks in the real Fourier basis; see `Axis`.

    Args:
        filters: Fourier transforms of L complex filters, real, (L, h, w), in the usual order.
        coarsest: Sides of the coarsest grid, for `Axis`.
        factor: f.

    Returns:
        float64 (2, groups, 4 L, (2 f)^2), groups row by row: first the even rows (of each row group's two numbers, the
        first), then the odd ones. A block's rows are a column group's two numbers, of each the real part of L filters,
        then the imaginary part; its columns are the numbers of both groups before the filter.
    """
    size, ends = 2 * factor, []  # of each axis: (groups, frequencies, 2 after, size before)
    for side, coarse in zip(filters.shape[1:], coarsest, strict=True):
        fine, sampled = Axis(side, coarse), Axis(side // factor, coarse)
        aliases = fine.frequencies.view(-1, size, 1) % sampled.side == sampled.frequencies.view(-1, 1, 2)
        after = aliases.to(torch.complex128) @ sampled.spectra(2).conj() / side  # 1 / side is the mean over aliases
        ends.append((fine.frequencies, after[..., None] * fine.spectra(size)[:, :, None]))
    (of_rows, rows), (of_columns, columns) = ends
    parts = []
    for each in filters:  # one at a time: of large images all together would take gigabytes
        grouped = each[of_rows][:, of_columns].view(len(rows), size, len(columns), size).to(torch.complex128)
        along = torch.einsum("gphq,hqxb->gphxb", grouped, columns)
        parts.append(torch.einsum("gphxb,gpya->yghxab", along, rows))
    found = torch.stack(parts, 4)  # (2 after of rows, row groups, column groups, 2 after of columns, L, a, b)
    both = torch.stack([found.real, found.imag], 4)
    return both.reshape(2, len(rows) * len(columns), 4 * len(filters), size**2)


def _by_group(frequencies: Tensor, side: int, coarsest: int) -> Tensor:
    """Return the order that sorts frequencies by their groups, nested: coarsest grid first."""
    keys, grid = torch.zeros_like(frequencies), coarsest
    while grid <= side:
        alias = torch.minimum(frequencies % grid, -frequencies % grid)
        keys = keys * side + torch.where(2 * alias == grid, 0, alias)
        grid *= 2
    return torch.argsort(keys, stable=True)
