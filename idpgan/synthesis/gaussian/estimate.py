r"""Noisy sums of moments -> one normal distribution a class: post-processing of what was released.

The noise on a symmetric matrix of sums is known: independent, of standard deviation s on the diagonal and s / sqrt(2)
off it. Such a matrix of q rows has its eigenvalues in ``[-e, e]`` with ``e = 2 (s / sqrt(2)) sqrt(q)`` (Wigner's
semicircle), so eigenvalues of a noisy covariance within the edge say nothing and are set to 0, and one at distance
``|l| > e`` is shrunk to ``sqrt(l^2 - e^2)``, which is optimal in Frobenius norm for few true directions (Shabalin and
Nobel, Reconstruction of a low-rank matrix in the presence of Gaussian noise, 2013, for symmetric matrices).

Classes of one kind of images differ little in covariance. So what is estimated first is the covariance within all
classes together, where the noise is least, and then, of each class, its difference from that one, both shrunk as above.
Without noise this gives each class its own covariance; with much noise all get the same, and a classifier that learns
from the images cannot take differences of noise for differences of classes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from idpgan.synthesis.gaussian.moments import MomentMap, Sums


class Normals(NamedTuple):
    """Normal distributions of the coefficients.

    Attributes:
        mean: (rows, q).
        factor: F of the covariance F F^T, (rows, q, q); columns of missing ranks are zero.
        ranks: Directions of each.
    """

    mean: Tensor
    factor: Tensor
    ranks: tuple[int, ...]


def estimate_normals(sums: Tensor, moments: MomentMap, noise_std: float) -> Normals:
    """Estimate the distribution of each row's coefficients from noisy sums (rows, D), float64.

    ``moments`` says what was summed; every entry of the sums has noise of standard deviation ``noise_std``.
    """
    found = moments.read(sums, noise_std)
    counts = found.counts.clamp(min=1)  # noisy images of each row
    means = found.first / counts[:, None]
    covariances = found.second / counts[:, None, None] - means[:, :, None] * means[:, None]
    edge = math.sqrt(2 * moments.size) * found.second_std  # of the noise on a sum of second moments
    total = counts.sum()
    within = (counts[:, None, None] * covariances).sum(0) / total
    common = shrunk(within, edge * math.sqrt(len(sums)) / total.item())
    # A row's own noise counts 1/n - 1/N times in its difference from the common covariance, that of the others 1/N.
    parts = ((1 / counts - 1 / total).square() + (len(sums) - 1) / total.square()).sqrt()
    factors, ranks = [], []
    for covariance, part in zip(covariances, parts.tolist(), strict=True):
        values, vectors = torch.linalg.eigh(common + shrunk(covariance - within, edge * part))
        values = values.clamp(min=0)
        factors.append(vectors * values.sqrt())
        ranks.append(int((values > values.max() * 1e-9).sum()))
    scale = moments.scale * _gain(found)
    return Normals(moments.center + scale * means, scale[:, None] * torch.stack(factors), tuple(ranks))


def _gain(found: Sums) -> float:
    """Return by how much images are longer than what was kept of them, at least 1: it gives them back their contrast.

    One number for all rows, which belong to one kind of images.
    """
    kept = found.second.diagonal(dim1=1, dim2=2).sum().item()
    return math.sqrt(max(found.power.sum().item() / kept, 1.0)) if kept > 0 else 1.0


def shrunk(matrix: Tensor, edge: float) -> Tensor:
    """Return a symmetric matrix (q, q) with each eigenvalue l as ``sign(l) sqrt(max(l^2 - edge^2, 0))``."""
    values, vectors = torch.linalg.eigh(matrix)
    values = values.sign() * (values.square() - edge**2).clamp(min=0).sqrt()
    return (vectors * values) @ vectors.T
