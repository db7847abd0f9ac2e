"""What nearness of images means: principal components of scattering features, learned on drawn images only."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from idpgan.data.images import Images, to_float
from idpgan.models.scattering import Scattering, scales_of
from idpgan.privacy.dpsgd import full_precision
from idpgan.synthesis.evolution.nearest import LEVELS, MOST_DIMENSIONS

DRAWN = 1000  # images that the components are learned on
_DIRECTIONS = 4  # of wavelets: twice as many take three times as long
LEAST_SIDE = 8  # px, of an image
_SMALL_SIDE = 16  # px, below which two scales leave too few places
_TILE = 256  # images of a call, always: fewer are padded


class Embedding:
    """Images -> vectors of whole numbers, fixed before any private image is read.

    Normalized scattering features (`idpgan.models.scattering`) lose the mean of the drawn images and are projected on
    their first principal components. A step of the grid is so small that the drawn images just fit into `LEVELS` steps
    on each side; what lies beyond is cut off.

    Args:
        image_shape: (C, H, W), each side at least 8 pixels.
        draw: Returns so many images of the simulator, (B, C, H, W) in [-1, 1]; called with `DRAWN`.

    Attributes:
        size: Coordinates, at most 256.
    """

    def __init__(self, image_shape: tuple[int, int, int], draw: Callable[[int], Tensor], device: torch.device) -> None:
        height, width = image_shape[1:]
        scales = 1 if min(height, width) < _SMALL_SIDE else scales_of(height, width)
        self._scattering, self._device = Scattering(image_shape, scales, _DIRECTIONS).to(device), device
        features = self._features(draw(DRAWN)).double()
        self._mean = features.mean(0)
        centered = features - self._mean
        axes = _principal_axes(centered)
        self.size = axes.shape[1]
        self._axes = (axes * (LEVELS / (centered @ axes).abs().max())).float()
        self._mean = self._mean.float()

    def __call__(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) in [-1, 1] to int8 (B, size) on the device."""
        return self.rounded(self.coordinates(images))

    def coordinates(self, images: Tensor) -> Tensor:
        """Return the vectors before they are rounded, float32 (B, size)."""
        with torch.no_grad(), full_precision():
            return torch.cat([self._projected(part)[: len(part)] for part in images.split(_TILE)])

    @staticmethod
    def rounded(coordinates: Tensor) -> Tensor:
        """Round vectors to whole numbers, int8."""
        return coordinates.round().clamp(-LEVELS, LEVELS).to(torch.int8)

    def _features(self, images: Tensor) -> Tensor:
        with torch.no_grad(), full_precision():
            return torch.cat([self._scattering.normalized(part.to(self._device)) for part in images.split(_TILE)])

    def _projected(self, part: Tensor) -> Tensor:
        """Project one tile, padded: the arithmetic of a row is a function of its image and its place."""
        padded = torch.cat([part, part.new_zeros(_TILE - len(part), *part.shape[1:])]).to(self._device)
        return (self._scattering.normalized(padded) - self._mean) @ self._axes


def _principal_axes(centered: Tensor) -> Tensor:
    """Return the orthonormal directions of most variance of centered rows (n, D): (D, at most 256)."""
    wide = centered.shape[0] < centered.shape[1]
    variances, vectors = torch.linalg.eigh(centered @ centered.T if wide else centered.T @ centered)
    size = min(MOST_DIMENSIONS, int((variances > 1e-9 * variances[-1]).sum()))
    variances, vectors = variances[-size:], vectors[:, -size:]
    return centered.T @ vectors / variances.sqrt() if wide else vectors


def private_vectors(private: Images, embedding: Embedding, share: slice | None = None) -> Iterator[Tensor]:
    """Yield the vectors of the private images in their order, int8: the one place here that reads private pixels.

    Every call has the same number of rows and null records keep theirs, so that a row, down to the last bit, is a
    function of that row's image and place. Called after the first iteration was charged; the vectors stay in the
    process, and only `votes` sees them. ``share`` are the positions of this rank; None = all.
    """
    first, last = (0, len(private)) if share is None else (share.start, share.stop)
    for start in range(first, last, _TILE):
        index = torch.arange(start, min(start + _TILE, last), device=private.images.device)
        yield embedding(to_float(private.select(index).images))
