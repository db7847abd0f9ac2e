"""Membership inference by distances in features: a copy that was shifted a little stays near.

The features are moduli of Gabor filters at one to three scales, averaged to 4 x 4 places (`models.gabor`), which no
data has shaped, in whitened principal components of the generated images. Distances in pixels call two photographs of
one scene far apart if one is shifted by a pixel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from idpgan import checks
from idpgan.attacks.distances import check_comparable, components, flat, projected, shared
from idpgan.checks import typed
from idpgan.data.images import to_float
from idpgan.models.gabor import gabor_filters, pooled_moduli
from idpgan.progress import Progress, silent
from idpgan.ranks import ALONE, Ranks

_BATCH = 500  # images per call of the filters
_FIT_ROWS = 1000  # generated images that the components are computed from
_LEAST_SIDE = 8  # px of the coarsest scale; below it pixels are the features
_GRID = 4


@typed
def nearest_in_features(
    images: Tensor, samples: Tensor, *, dimensions: int = 100, progress: Progress = silent, ranks: Ranks = ALONE
) -> Tensor:
    """Score by the negative squared distance to the nearest generated image in features, mean over components: (n,).

    Chen et al. (2020), GAN-Leaks, add such a distance, of a trained network, to that of pixels.

    Args:
        images: (n, C, H, W) uint8, mapped to [-1, 1], or floating point.
        samples: (S, C, H, W) in the same form.
        dimensions: Principal components.
        ranks: Processes of `torchrun` that share the images (`distances.shared`).

    Raises:
        InputError: If there are no images or samples, or shapes differ.
    """
    check_comparable(images, samples)
    checks.whole(dimensions, "dimensions", 1)
    features = _features_of(images)
    space = components(features(samples[:_FIT_ROWS].to(images.device)), dimensions, whiten=True)
    clouds = []
    for part in (samples, images):
        coordinates = []
        for batch in part.split(_BATCH):
            coordinates.append(projected(features(batch.to(images.device)), space))
            progress("features", sum(map(len, coordinates)), len(part))
        clouds.append(torch.cat(coordinates))
    return -shared("nearest", clouds[1], clouds[0], 1, ranks=ranks)


Features = Callable[[Tensor], Tensor]  # images (B, ...) -> features (B, D), float32


def _features_of(images: Tensor) -> Features:
    """Return the features of images of one shape: averaged moduli, or pixels where the images are too small."""
    side = int(min(images.shape[-2:])) if images.ndim == 4 else 0
    if side < _LEAST_SIDE:
        return flat
    filters, levels = gabor_filters().to(images.device), max(1, min(3, (side // _LEAST_SIDE).bit_length()))

    def features(batch: Tensor) -> Tensor:
        floats = to_float(batch) if batch.dtype == torch.uint8 else batch.float()
        planes, found = floats.flatten(0, 1)[:, None], []
        for level in range(levels):
            planes = functional.avg_pool2d(planes, 2) if level else planes
            padded = functional.pad(planes, (4, 4, 4, 4), mode="replicate")
            found.append(pooled_moduli(padded, filters, stride=2, grid=_GRID).view(len(batch), -1))
        return torch.cat(found, 1)

    return features
