"""Gen-LRA: would the generated images near an image be likelier if that image had been known?"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idpgan import checks
from idpgan.attacks.distances import bandwidth, check_comparable, components, nearest_neighbors, projected, shared
from idpgan.checks import typed
from idpgan.errors import InputError
from idpgan.progress import Progress, silent
from idpgan.ranks import ALONE, Ranks

_SPACE_ROWS = 2000  # of each set that the space is taken from


@typed
def gen_lra(
    images: Tensor,
    samples: Tensor,
    reference: Tensor,
    *,
    neighbors: int = 200,
    dimensions: int = 30,
    progress: Progress = silent,
    ranks: Ranks = ALONE,
) -> Tensor:
    r"""Score by the log-likelihood ratio of the nearby generated images, with and without the image in the reference.

    With a Gaussian kernel density p of the m reference images, kernel K, and the ``neighbors`` generated images s
    nearest to x, the score is ``sum_s log p_x(s) / p(s)``, where ``p_x = (m p + K(. - x)) / (m + 1)`` is the density of
    the reference with x added (Ward, Wang and Cheng 2025, "Privacy auditing synthetic data release through local
    likelihood attacks"). Both are in whitened principal components of generated and reference images together, with the
    bandwidth of the best leave-one-out likelihood.

    Args:
        images: (n, ...) uint8, mapped to [-1, 1], or floating point.
        samples: (S, ...) generated images in the same form, at least 3.
        reference: (m, ...) real images in the same form, none of them among ``images``, at least 3.
        neighbors: At most S.
        ranks: Processes of `torchrun` that share the density at the generated images.

    Returns:
        (n,) float32.

    Raises:
        InputError: If a set is empty or too small, or shapes differ.
    """
    check_comparable(images, samples)
    check_comparable(images, reference)
    checks.whole(dimensions, "dimensions", 1)
    checks.whole(neighbors, "neighbors", 1)
    if min(len(samples), len(reference)) < 3:
        raise InputError(f"{len(samples)} samples and {len(reference)} reference images: a density needs 3.")
    both = torch.cat([part[:_SPACE_ROWS].to(images.device) for part in (samples, reference)])
    space = components(both, dimensions, whiten=True)
    points, cloud, known = (projected(part, space) for part in (images, samples, reference))
    width = bandwidth(known)
    log_p = shared("density", cloud, known, width, ranks=ranks)  # (S,)
    distances, index = nearest_neighbors(points, cloud, neighbors, progress)
    log_kernel = distances * points.shape[1] / (-2 * width**2) - points.shape[1] * math.log(width)
    ratio = log_kernel - math.log(len(known)) - log_p[index]
    return torch.nn.functional.softplus(ratio).sum(1) - index.shape[1] * math.log1p(1 / len(known))
