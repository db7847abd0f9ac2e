"""Distances and densities of image sets, in blocks that fit the memory of the device."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from scipy import linalg
from torch import Tensor

from idpgan.data.images import to_float
from idpgan.device import free_bytes, is_gpu
from idpgan.errors import InputError
from idpgan.progress import Progress, silent

_CPU_NUMBERS = 1 << 24  # of float32 in one block of distances: 64 MiB
_BLOCK_NUMBERS = 1 << 27  # of float32 in the images on one side of a block: 512 MiB
_GPU_SHARE = 0.2  # of the free memory
_FIT_ROWS = 2000  # images that principal components are computed from, at most
_AT_ONCE = 4000  # images projected at once
_WIDTH_ROWS = 500  # points whose likelihood chooses a bandwidth
_BANDWIDTHS = 12  # tried, from a tenth to thirty times the distance between neighbors


def check_comparable(images: Tensor, others: Tensor) -> None:
    """Raise an `InputError` for empty sets and shapes that differ."""
    if min(images.ndim, others.ndim) < 2 or 0 in (*images.shape, *others.shape) or images.shape[1:] != others.shape[1:]:
        raise InputError(
            f"Images of the shape {tuple(images.shape)} cannot be compared with {tuple(others.shape)}: give at least "
            "one of each, of one shape."
        )


def check_attacked(images: Tensor, labels: Tensor | None, num_classes: int | None = None) -> None:
    """Raise an `InputError` unless images are (n, C, H, W) uint8 or floating point, n >= 1, with a label each.

    Labels are (n,) int64 below ``num_classes`` (None = any), or None.
    """
    if images.ndim != 4 or 0 in images.shape or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise InputError(
            f"Images under attack must be uint8 or floating point (n, C, H, W), n >= 1, got {images.dtype} "
            f"{tuple(images.shape)}."
        )
    if labels is None:
        return
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise InputError(
            f"{len(images)} images need int64 labels ({len(images)},), got {labels.dtype} {tuple(labels.shape)}."
        )
    low, high = torch.stack(labels.aminmax()).tolist()
    if low < 0 or (num_classes is not None and high >= num_classes):
        limit = "at least 0" if num_classes is None else f"in [0, {num_classes - 1}]"
        raise InputError(f"Labels are in [{low}, {high}], but must be {limit}.")


def nearest_neighbors(images: Tensor, cloud: Tensor, count: int, progress: Progress = silent) -> tuple[Tensor, Tensor]:
    """Return mean squared differences (n, count), ascending, and positions of the nearest rows of the cloud.

    Images (n, ...) and cloud (S, ...) are uint8, mapped to [-1, 1], or floating point, perhaps on different devices. At
    most S neighbors are returned.
    """
    count, seen = min(count, len(cloud)), 0
    best = torch.full((len(images), count), math.inf, device=images.device)
    where = torch.zeros((len(images), count), dtype=torch.int64, device=images.device)
    for rows, distances in blocks(images, cloud):
        nearest, index = distances.topk(min(count, distances.shape[1]), largest=False)
        both, places = torch.cat([best[rows], nearest], 1), torch.cat([where[rows], index + seen], 1)
        best[rows], chosen = both.topk(count, largest=False)
        where[rows] = places.gather(1, chosen)
        if rows.stop == len(images):
            seen += distances.shape[1]
            progress("distances", seen, len(cloud))
    # The expanded square loses digits where two images are nearly equal: recompute the chosen distances exactly.
    for part in torch.arange(len(images)).split(max(1, _CPU_NUMBERS // (images[0].numel() * count))):
        near = flat(cloud[where[part].flatten().to(cloud.device)].to(images.device))
        best[part] = (near.view(len(part), count, -1) - flat(images[part])[:, None]).square().mean(2)
    return best, where


def blocks(images: Tensor, cloud: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield (positions of images, their squared distances to a part of the cloud); each part meets all images."""
    side = math.isqrt(_CPU_NUMBERS)  # of a square block of distances that fits the memory
    if is_gpu(images.device):
        side = max(256, math.isqrt(int(_GPU_SHARE * free_bytes(images.device) / 4)))
    side = max(256, min(side, _BLOCK_NUMBERS // images[0].numel()))  # so do the images on its two sides
    for part in cloud.split(side):
        points = flat(part.to(images.device))
        norms = points.square().sum(1)
        for start in range(0, len(images), side):
            rows = slice(start, min(start + side, len(images)))
            mine = flat(images[rows])
            yield rows, torch.addmm(norms, mine, points.T, alpha=-2).add_(mine.square().sum(1, True)).clamp_(min=0)


def components(cloud: Tensor, count: int, *, whiten: bool) -> tuple[Tensor, Tensor]:
    """Return mean (D,) and directions (D, k) of the largest variance, optionally divided by their standard deviation.

    Only the first 2,000 rows of the cloud are used. Directions without variance are left out, so k <= ``count``.
    """
    rows = flat(cloud[:_FIT_ROWS]).double()
    mean = rows.mean(0)
    rows -= mean
    small = rows if rows.shape[1] <= rows.shape[0] else rows.T  # the smaller of the two Gram matrices
    gram = small.T @ small
    if not bool(gram.isfinite().all()):
        raise InputError("images with numbers that are not finite have no principal components. Leave them out.")
    most = len(gram) - 1
    few = max(0, most - count + 1), most  # not all of them: slow
    spectrum = linalg.eigh(gram.cpu().numpy(), subset_by_index=few)
    values, vectors = (torch.from_numpy(part).to(gram) for part in spectrum)
    keep = max(1, int((values > 1e-9 * values[-1]).sum()))
    values, vectors = values[-keep:].clamp(min=1e-30), vectors[:, -keep:]
    if small is not rows:
        vectors = rows.T @ vectors / values.sqrt()
    if whiten:
        vectors = vectors / (values / len(rows)).sqrt()
    return mean.float(), vectors.float()


def projected(images: Tensor, onto: tuple[Tensor, Tensor]) -> Tensor:
    """Return the coordinates (n, k) of images in `components`, on the device of the components."""
    mean, vectors = onto
    return torch.cat([(flat(part.to(mean.device)) - mean) @ vectors for part in images.split(_AT_ONCE)])


def within(points: Tensor, cloud: Tensor, radius: float, progress: Progress = silent) -> Tensor:
    """Return how many rows of a cloud (S, k) lie within a radius of points (n, k): (n,) float32."""
    counts, seen = torch.zeros(len(points), device=points.device), 0
    for rows, distances in blocks(points, cloud):
        counts[rows] += (distances <= radius**2).sum(1)
        seen += distances.numel()
        progress("neighborhoods", seen, len(points) * len(cloud))
    return counts


def log_density(points: Tensor, cloud: Tensor, width: float) -> Tensor:
    """Return the logarithm of the Gaussian kernel density of a cloud (S, k) at points (n, k): (n,)."""
    dimensions = cloud.shape[1]
    total = torch.full((len(points),), -math.inf, device=points.device)
    for rows, distances in blocks(points, cloud):
        total[rows] = torch.logaddexp(total[rows], (distances / (-2 * width**2)).logsumexp(1))
    return total - math.log(len(cloud)) - dimensions * math.log(width)


def floats(images: Tensor) -> Tensor:
    """Return images as floating point; uint8 are mapped to [-1, 1]."""
    return to_float(images) if images.dtype == torch.uint8 else images.float()


def flat(images: Tensor) -> Tensor:
    """Return images as float rows (n, D)."""
    return floats(images).flatten(1)


def bandwidth(cloud: Tensor) -> float:
    """Return the bandwidth with the largest leave-one-out likelihood of points of a cloud (S, k), S >= 2."""
    points = cloud[:_WIDTH_ROWS]
    between = nearest_neighbors(points, cloud, 2)[0][:, 1].mul(cloud.shape[1]).sqrt().median()
    widths = between.clamp(min=1e-3) * torch.logspace(-1, 1.5, _BANDWIDTHS, device=cloud.device)
    scores = torch.full((len(points), _BANDWIDTHS), -math.inf, device=cloud.device)
    seen = 0
    for _, distances in blocks(points, cloud):  # the points fit one block: part after part of the cloud
        itself = torch.arange(len(points), device=cloud.device)[seen : seen + distances.shape[1]]
        distances[itself, itself - seen] = math.inf
        seen += distances.shape[1]
        for i, width in enumerate(widths):
            scores[:, i] = torch.logaddexp(scores[:, i], (distances / (-2 * width**2)).logsumexp(1))
    likelihood = scores.mean(0) - cloud.shape[1] * widths.log()
    return float(widths[likelihood.argmax()])
