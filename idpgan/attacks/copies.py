"""Copies: is a real image nearly repeated by a generated one, more nearly than real images repeat each other?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idpgan import checks
from idpgan.attacks.distances import blocks, check_comparable
from idpgan.checks import typed
from idpgan.progress import Progress, silent

_ROWS = 256  # generated images at once: no more than one block of distances has
_ROUNDING = 1e-6  # share of a typical squared distance that the expanded square may lose


@typed
def copies(images: Tensor, samples: Tensor, *, neighbors: int = 50, progress: Progress = silent) -> Tensor:
    """Score by the negative squared distance to a generated image, as a share of what is usual around that image.

    For a generated image s, what is usual is the mean squared distance to the ``neighbors`` images in question that are
    nearest to s. The score of an image is minus its least share over all s: near 0 for a copy, about -1 where many
    other images are as near. A blurred or typical image has many neighbors, and so is not mistaken for a copy (Carlini
    et al. 2023, "Extracting training data from diffusion models", section 4.2, equation 1). The images in question are
    members and non-members together, so that the score does not know which is which.

    Args:
        images: (n, ...) uint8, mapped to [-1, 1], or floating point; at least 2.
        samples: (S, ...) generated images in the same form.
        neighbors: At most half of the images are taken.

    Returns:
        (n,) float32, at most 0.

    Raises:
        InputError: If there are no images or samples, or shapes differ.
    """
    check_comparable(images, samples)
    checks.whole(neighbors, "neighbors", 1)
    count = max(1, min(neighbors, len(images) // 2))
    best = torch.full((len(images),), math.inf, device=images.device)
    seen = 0
    for cloud in samples.split(_ROWS):
        distances = torch.cat([found for _, found in blocks(cloud.to(images.device), images)], 1)  # (rows, n)
        usual = distances.topk(count, largest=False).values.mean(1, keepdim=True)
        best = torch.minimum(best, (distances / usual.clamp(min=_ROUNDING)).amin(0))
        seen += len(cloud)
        progress("copies", seen, len(samples))
    return -best
