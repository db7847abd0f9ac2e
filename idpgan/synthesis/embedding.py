"""The embedding that defines near images: principal components of scattering features, learned on drawn images only.

The nearest candidate of each record is found exactly, since vectors are whole numbers, whose products add up without
rounding in any order. With numbers of at most 127 and at most 256 coordinates, ``2 q.c - |c|^2`` is a whole number
below 2^24 in size, and so is every partial sum: float32 holds them all, on the CPU and on a GPU. So which candidate is
nearest depends on the record and on the candidates alone, never on the batch, the other records, or the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from idpgan.data.images import Images, to_float
from idpgan.device import by_device
from idpgan.models.scattering import Scattering, scales_of
from idpgan.privacy.dpsgd import full_precision

DRAWN = 1000  # images that the components are learned on
LEAST_SIDE = 8  # px, of an image
LEVELS = 127  # largest absolute value of a coordinate
MOST_DIMENSIONS = 256
_DIRECTIONS = 4  # of wavelets: twice as many take three times as long
_SMALL_SIDE = 16  # px, below which two scales leave too few places
_IMAGES = 256  # of a call, always: fewer are padded
_TILE = (512, 2048), (16_384, 8192)  # `by_device`: records and candidates at once, 4 MiB of scores on the CPU


class Embedding:
    """Images -> vectors of whole numbers, fixed before any private image is read.

    Normalized scattering features (`idpgan.models.scattering`) are centered at the mean of the drawn images and
    projected on their first principal components. A step of the grid is so small that the drawn images just fit into
    `LEVELS` steps on each side; what lies beyond is cut off.

    Args:
        image_shape: (C, H, W), each side at least 8 pixels.
        draw: Returns so many images of the simulator, or fewer, (B, C, H, W) in [-1, 1]; called with `DRAWN`.
        features: Of the user, in place of scattering: images -> (B, D), each vector a function of its image alone.

    Attributes:
        size: Coordinates, at most 256.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        draw: Callable[[int], Tensor],
        device: torch.device,
        features: nn.Module | None = None,
    ) -> None:
        height, width = image_shape[1:]
        scales = 1 if min(height, width) < _SMALL_SIDE else scales_of(height, width)
        self._device = device
        self._features: Callable[[Tensor], Tensor] = (
            Scattering(image_shape, scales, _DIRECTIONS).to(device).normalized
            if features is None
            else features.to(device)
        )
        drawn = draw(DRAWN).split(_IMAGES)
        with torch.no_grad(), full_precision():
            found = torch.cat([self._features(part.to(device)) for part in drawn]).double()
        self._mean = found.mean(0)
        centered = found - self._mean
        wide = centered.shape[0] < centered.shape[1]
        variances, vectors = torch.linalg.eigh(centered @ centered.T if wide else centered.T @ centered)
        self.size = min(MOST_DIMENSIONS, int((variances > 1e-9 * variances[-1]).sum()))
        variances, vectors = variances[-self.size :], vectors[:, -self.size :]
        axes = centered.T @ vectors / variances.sqrt() if wide else vectors  # orthonormal, (D, size)
        self._axes = (axes * (LEVELS / (centered @ axes).abs().max())).float()
        self._mean = self._mean.float()

    def __call__(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) in [-1, 1] to int8 (B, size) on the device; what is not a number becomes 0."""
        with torch.no_grad(), full_precision():
            coordinates = torch.cat([self._projected(part)[: len(part)] for part in images.split(_IMAGES)])
        return coordinates.nan_to_num(0.0).round().clamp(-LEVELS, LEVELS).to(torch.int8)

    def _projected(self, part: Tensor) -> Tensor:
        """Project one tile, padded: the arithmetic of a row is a function of its image and its place."""
        padded = torch.cat([part, part.new_zeros(_IMAGES - len(part), *part.shape[1:])]).to(self._device)
        return (self._features(padded) - self._mean) @ self._axes


def private_vectors(private: Images, embedding: Embedding, share: slice | None = None) -> Iterator[Tensor]:
    """Yield the vectors of the private images in their order, int8: the one place here that reads private pixels.

    Every call has the same number of rows and null records keep theirs, so that a row, down to the last bit, is a
    function of that row's image and place. Called after the first iteration was charged; the vectors stay in the
    process, and only `votes` sees them. ``share`` are the positions of this rank; None = all.
    """
    first, last = (0, len(private)) if share is None else (share.start, share.stop)
    for start in range(first, last, _IMAGES):
        index = torch.arange(start, min(start + _IMAGES, last), device=private.images.device)
        yield embedding(to_float(private.select(index).images))


def nearest(records: Tensor, candidates: Tensor) -> Tensor:
    """Return the number of the nearest candidate of each record, int64 (N,), the first among equals.

    No N x M matrix is ever held.

    Args:
        records: int8 (N, D), D <= `MOST_DIMENSIONS`, any device.
        candidates: int8 (M, D), M >= 1, on the same device.
    """
    if records.dtype != torch.int8 or candidates.dtype != torch.int8 or records.shape[1] != candidates.shape[1]:
        raise ValueError(f"records and candidates are int8 of one length, got {records.shape} and {candidates.shape}.")
    if records.shape[1] > MOST_DIMENSIONS or not len(candidates):
        raise ValueError(f"there are 1 to {MOST_DIMENSIONS} coordinates and at least one candidate.")
    rows, columns = by_device(records.device, *_TILE)
    parts = [(part.float(), part.float().square().sum(1)) for part in candidates.split(columns)]
    chosen = torch.empty(len(records), dtype=torch.int64, device=records.device)
    with full_precision():
        for start in range(0, len(records), rows):
            queries = 2 * records[start : start + rows].float()
            best, index = queries.new_full((len(queries),), -torch.inf), chosen[start : start + rows]
            for number, (values, squares) in enumerate(parts):
                score, column = torch.addmm(-squares, queries, values.T).max(1)
                better = score > best
                index[better] = column[better] + number * columns
                best = torch.where(better, score, best)
    return chosen
