r"""Membership inference by comparing an image with generated ones.

Pure functions: each gives n images their scores, higher for members. They see members and non-members in one tensor and
are not told which is which. A *calibrated* score subtracts the score against a reference. This removes how typical an
image is: typical images are near generated ones whether or not they were trained on.

| attack | paper | needs |
|---|---|---|
| `nearest_sample` | GAN-Leaks, Chen et al. (2020), arXiv:1909.03935 | generated images |
| `nearest_in_features` | the same, in features in the place of pixels | generated images |
| `calibrate` | the same, with a reference generator | the same from a reference |
| `neighborhood_count` | Hilprecht, Haerterich, Bernau (2019), PoPETs 2019(4) | generated images |
| `copies` | Carlini et al. (2023), arXiv:2301.13188, section 4.2 | generated images |
| `density_ratio` | DOMIAS, van Breugel et al. (2023), arXiv:2302.12580 | generated and other real images |
| `gen_lra` | Gen-LRA, Ward, Wang, Cheng (2025) | generated and other real images |

The features are moduli of Gabor filters at one to three scales, averaged to 4 x 4 places (`models.gabor`), which no
data has shaped, in whitened principal components of the generated images. Distances in pixels call two photographs of
one scene far apart if one is shifted by a pixel. Attacks that ask a network are in `losses`.

Tracing: were an image's features part of a released sum?
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from idpgan import checks
from idpgan.attacks import distances
from idpgan.attacks.distances import check_comparable, projected
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.models.gabor import gabor_filters, pooled_moduli
from idpgan.progress import Progress, silent
from idpgan.training.method import ReleasedSums

_MOST_RADIUS = 1e9  # images lie within 2 sqrt(pixels) of each other
_SPACE_ROWS = 1000  # of each set that the space of a density is taken from
_COPY_ROWS = 256  # generated images at once: no more than one block of distances has
_ROUNDING = 1e-6  # share of a typical squared distance that the expanded square may lose
_FEATURE_BATCH = 500  # images per call of the filters
_FEATURE_ROWS = 1000  # generated images that the components are computed from
_FEATURE_SIDE = 8  # px of the coarsest scale; below it pixels are the features
_FEATURE_GRID = 4
_MOST_SIDE = 48  # px of the shorter side: larger images are shrunk for components and features


def nearest_sample(images: Tensor, samples: Tensor, *, progress: Progress = silent) -> Tensor:
    """Score by the negative squared distance to the nearest generated image, mean over pixels.

    Images (n, ...) and samples (S, ...) are uint8, mapped to [-1, 1], or floating point. The scores are (n,) float32,
    at most 0; 0 for an image that was generated exactly.

    Raises:
        InputError: If there are no images or samples, or shapes differ.
    """
    check_comparable(images, samples)
    return -distances.nearest_neighbors(images, samples, 1, progress)[0][:, 0]


def neighborhood_count(
    images: Tensor,
    samples: Tensor,
    *,
    radius: float | None = None,
    dimensions: int = 40,
    progress: Progress = silent,
) -> Tensor:
    """Score by the share of generated images within a radius (Hilprecht et al.), in principal components: (n,), <= 1.

    Args:
        images: (n, ...) uint8, mapped to [-1, 1], or floating point.
        samples: (S, ...) generated images in the same form; the components are fitted to them.
        radius: Radius in the space of the components; None is the paper's heuristic, the median over all images of the
            distance to the nearest sample, so that half of the images have no sample within it.
        dimensions: Principal components; 40 in the paper for MNIST.

    Raises:
        InputError: If there are no images or samples, or shapes differ.
    """
    check_comparable(images, samples)
    checks.whole(dimensions, "dimensions", 1)
    if radius is not None and not 0 <= radius <= _MOST_RADIUS:
        raise InputError(f"radius = {radius} must be in [0, {_MOST_RADIUS:g}].")
    images, samples = shrunk(images), shrunk(samples.to(images.device))
    space = distances.components(samples, dimensions, whiten=False)
    points, cloud = projected(images, space), projected(samples, space)
    if radius is None:
        nearest = distances.nearest_neighbors(points, cloud, 1)[0][:, 0]
        radius = float(nearest.mul(points.shape[1]).sqrt().median())
    return distances.within(points, cloud, radius, progress) / len(cloud)


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
        neighbors: How many neighbors are taken, at most half of the images.

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
    for cloud in samples.split(_COPY_ROWS):
        squares = torch.cat([block for _, block in distances.blocks(cloud.to(images.device), images)], 1)  # (rows, n)
        usual = squares.topk(count, largest=False).values.mean(1, keepdim=True)
        best = torch.minimum(best, (squares / usual.clamp(min=_ROUNDING)).amin(0))
        seen += len(cloud)
        progress("copies", seen, len(samples))
    return -best


def density_ratio(
    images: Tensor,
    samples: Tensor,
    reference: Tensor,
    *,
    dimensions: int = 30,
    progress: Progress = silent,
) -> Tensor:
    """Score by log p_G(x) - log p_R(x): where is the generator denser than the real distribution?

    Both densities are Gaussian kernel estimates in ``dimensions`` whitened principal components of the two sets
    together. The paper leaves the estimator open; here each bandwidth is the one with the best leave-one-out
    likelihood. All images are uint8, mapped to [-1, 1], or floating point; none of the reference is among ``images``.

    Raises:
        InputError: If a set is empty, a density has fewer than 3 images, or shapes differ.
    """
    points, *clouds = _whitened(images, samples, reference, dimensions)
    densities = []
    for done, cloud in enumerate(clouds):
        densities.append(distances.log_density(points, cloud, distances.bandwidth(cloud)))
        progress("densities", done + 1, 2)
    return densities[0] - densities[1]


def gen_lra(
    images: Tensor,
    samples: Tensor,
    reference: Tensor,
    *,
    neighbors: int = 200,
    dimensions: int = 30,
    progress: Progress = silent,
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
        neighbors: How many generated images count, at most S.

    Returns:
        (n,) float32.

    Raises:
        InputError: If a set is empty or too small, or shapes differ.
    """
    checks.whole(neighbors, "neighbors", 1)
    points, cloud, known = _whitened(images, samples, reference, dimensions)
    width = distances.bandwidth(known)
    log_p = distances.log_density(cloud, known, width)  # (S,)
    squares, index = distances.nearest_neighbors(points, cloud, neighbors, progress)
    log_kernel = squares * points.shape[1] / (-2 * width**2) - points.shape[1] * math.log(width)
    ratio = log_kernel - math.log(len(known)) - log_p[index]
    return functional.softplus(ratio).sum(1) - index.shape[1] * math.log1p(1 / len(known))


def _whitened(images: Tensor, samples: Tensor, reference: Tensor, dimensions: int) -> list[Tensor]:
    """Return all three in whitened principal components of samples and reference together."""
    check_comparable(images, samples)
    check_comparable(images, reference)
    checks.whole(dimensions, "dimensions", 1)
    if min(len(samples), len(reference)) < 3:
        raise InputError(f"{len(samples)} samples and {len(reference)} reference images: a density needs 3.")
    parts = [shrunk(part.to(images.device)) for part in (images, samples, reference)]
    space = distances.components(torch.cat([part[:_SPACE_ROWS] for part in parts[1:]]), dimensions, whiten=True)
    return [projected(part, space) for part in parts]


def nearest_in_features(
    images: Tensor, samples: Tensor, *, dimensions: int = 100, progress: Progress = silent
) -> Tensor:
    """Score by the negative squared distance to the nearest generated image in features, mean over components: (n,).

    Chen et al. (2020), GAN-Leaks, add such a distance, of a trained network, to that of pixels.

    Args:
        images: (n, C, H, W) uint8, mapped to [-1, 1], or floating point.
        samples: (S, C, H, W) in the same form.
        dimensions: Principal components.

    Raises:
        InputError: If there are no images or samples, or shapes differ.
    """
    check_comparable(images, samples)
    checks.whole(dimensions, "dimensions", 1)
    features = _features_of(images)
    space = distances.components(features(samples[:_FEATURE_ROWS].to(images.device)), dimensions, whiten=True)
    clouds = []
    for part in (samples, images):
        coordinates = []
        for batch in part.split(_FEATURE_BATCH):
            coordinates.append(projected(features(batch.to(images.device)), space))
            progress("features of images", sum(map(len, coordinates)), len(part))
        clouds.append(torch.cat(coordinates))
    return -distances.nearest_neighbors(clouds[1], clouds[0], 1)[0][:, 0]


def _features_of(images: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the features of images of one shape: averaged moduli, or pixels where the images are too small."""
    side = int(min(images.shape[-2:])) if images.ndim == 4 else 0
    if side < _FEATURE_SIDE:
        return distances.flat
    filters, levels = gabor_filters().to(images.device), max(1, min(3, (side // _FEATURE_SIDE).bit_length()))

    def features(batch: Tensor) -> Tensor:
        planes, moduli = shrunk(batch).flatten(0, 1)[:, None], []
        for level in range(levels):
            planes = functional.avg_pool2d(planes, 2) if level else planes
            padded = functional.pad(planes, (4, 4, 4, 4), mode="replicate")
            moduli.append(pooled_moduli(padded, filters, stride=2, grid=_FEATURE_GRID).view(len(batch), -1))
        return torch.cat(moduli, 1)

    return features


def shrunk(images: Tensor) -> Tensor:
    """Return images as floating point; larger ones (n, C, H, W) by area averages, their shorter side 48 px.

    The components that attacks look at are coarse: nothing is lost, and 96 px take a quarter of the time.
    """
    images = distances.floats(images)
    side = int(min(images.shape[-2:])) if images.ndim == 4 else 0
    if side <= _MOST_SIDE:
        return images
    height, width = (round(length * _MOST_SIDE / side) for length in images.shape[-2:])
    return torch.cat([functional.adaptive_avg_pool2d(part, (height, width)) for part in images.split(_FEATURE_BATCH)])


def calibrate(scores: Tensor, reference: Tensor) -> Tensor:
    """Return scores (n,) minus those of the same attack against a reference (GAN-Leaks).

    The reference is a generator trained on other images of the same distribution.
    """
    if scores.ndim != 1 or scores.shape != reference.shape:
        raise InputError(
            f"Scores and reference must be one number per image each, got {tuple(scores.shape)} and "
            f"{tuple(reference.shape)}."
        )
    return scores - reference


def closeness(scores: Tensor) -> Tensor:
    """Return minus the logarithm of squared distances, given as scores (n,) at most 0; a distance of 0 stays finite.

    One copied image among many of a person raises the mean of logarithms a lot, and that of distances little.
    """
    distances = -scores.double()
    return -(distances + 1e-3 * distances.median().clamp(min=1e-12)).log().float()


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
