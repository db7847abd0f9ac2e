"""Tracing: were an image's features part of a released sum?"""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.training.method import ReleasedSums

LEAST_REFERENCE = 20  # images, to know the mean
_MOST_REFERENCE = 2000
_ROWS = 2000  # images whose vectors are in memory at once
_SHRUNK = 0.2  # share of the variance that is taken to lie evenly in all directions: the reference shows few of them


def trace(images: Images, released: ReleasedSums, reference: Images) -> Tensor:
    r"""Score by the log-likelihood ratio of a released sum, with and without the image's vector in it.

    Homer et al. (2008, "Resolving individuals contributing trace amounts of DNA to highly complex mixtures") and Dwork
    et al. (2015, "Robust traceability from trace amounts") compare an individual with published means and a reference
    population. With the sum T of a class, m records in it, and the mean p and covariance S of R reference images,
    ``T - m p`` has the covariance ``C = noise_std^2 I + (m + m^2 / R) S``, and the vector v of a member adds
    ``u = v - p`` to its mean: the score is ``u' C^-1 (T - m p) - u' C^-1 u / 2``, which is optimal for normal sums. The
    sum itself says how large m is.

    Args:
        images: Images in question, with labels where the sums are those of classes.
        released: The sums and the map of an image to its vector.
        reference: At least 20 images of the same distribution that are not in the sums, labeled alike.

    Returns:
        (n,) float32.

    Raises:
        InputError: If the reference is too small.
    """
    if len(reference) < LEAST_REFERENCE:
        raise InputError(f"{len(reference)} reference images do not show a mean: {LEAST_REFERENCE} are needed.")
    known, known_rows = released.vectors(reference.select(torch.arange(min(len(reference), _MOST_REFERENCE))))
    known, known_rows, sums = known.double().cpu(), known_rows.cpu(), released.sums.double().cpu()
    overall = known.mean(0)
    means, sizes = overall.repeat(len(sums), 1), torch.full((len(sums),), float(len(known)))
    for row in known_rows.unique().tolist():
        of_row = known[known_rows == row]
        if len(of_row) >= LEAST_REFERENCE:  # a class of fewer images leans on all of them
            means[row], sizes[row] = of_row.mean(0), len(of_row)
    spread = known - means[known_rows]
    scores = torch.zeros(len(images), dtype=torch.float64)
    for part in torch.arange(len(images)).split(_ROWS):  # the vectors of all may be larger than memory
        vectors, rows = released.vectors(images.select(part))
        vectors, rows = vectors.double().cpu(), rows.cpu()
        for row in rows.unique().tolist():
            mine, mean = rows == row, means[row]
            records = float((sums[row] @ mean) / (mean @ mean)) if bool(mean.any()) else 1.0
            records = max(records, 1.0)
            added = vectors[mine] - mean
            weighted = _weighted(added, spread, records * (1 + records / float(sizes[row])), released.noise_std)
            scores[part[mine]] = weighted @ (sums[row] - records * mean) - (weighted * added).sum(1) / 2
    return scores.float()


def _weighted(vectors: Tensor, spread: Tensor, records: float, noise_std: float) -> Tensor:
    """Return ``C^-1 u`` for rows u (n, D), with C = noise_std^2 I + records S, by Woodbury's identity.

    S is the covariance of centered reference vectors ``spread`` (R, D), shrunk towards equal variance.
    """
    num, dimensions = spread.shape
    even = _SHRUNK * spread.square().sum() / (num * dimensions)
    floor = noise_std**2 + records * float(even) + 1e-12
    gram = spread @ spread.T
    scale = (1 - _SHRUNK) * records / num
    inner = torch.linalg.solve(gram + (floor / scale) * torch.eye(num, dtype=gram.dtype), spread @ vectors.T)
    return (vectors - inner.T @ spread) / floor
