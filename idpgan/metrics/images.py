"""Distances of published images from the originals, per image and batched, and filters for published images.

Images are uint8, any shape (N, ...), which stands for [0, 1] as x / 255, or floating point in the scale [0, 1]. Results
are one float64 number per image. The results depend on private images: curator only, and no epsilon covers them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from idpgan.data.images import to_unit
from idpgan.errors import InputError

GREY_LEVELS = 256
_SSIM_WINDOW = 11  # pixels, Gaussian of standard deviation 1.5 (Wang et al. 2004)
_CHUNK_NUMBERS = 1 << 24  # pixels at a time where a method needs several times its input in memory


def grey_histograms(images: Tensor) -> Tensor:
    """Count the grey levels of each image: int64 (N, 256), on the device of `images`.

    Floating point images are in [0, 1] and rounded to the nearest of 256 levels. All channels of a color image are
    counted together.

    Raises:
        InputError: If the images are not (N, ...), or floating point beyond [0, 1] or NaN.
    """
    if images.ndim < 2 or len(images) == 0 or images[0].numel() == 0:
        raise InputError(f"Images must be (N, ...) with N >= 1, got {tuple(images.shape)}.")
    grey = images.dtype == torch.uint8
    levels = (images if grey else _unit(images).mul(GREY_LEVELS - 1).add_(0.5).floor_().to(torch.uint8)).flatten(1)
    histograms = torch.zeros(len(levels), GREY_LEVELS, dtype=torch.int64, device=images.device)
    step = max(1, _CHUNK_NUMBERS // max(1, levels.shape[1]))
    for start in range(0, len(levels), step):  # by memory, not per image: one byte becomes eight
        part = levels[start : start + step].long()
        histograms[start : start + step].scatter_add_(1, part, torch.ones_like(part))
    return histograms


def entropy(images: Tensor) -> Tensor:
    r"""Return the entropy of each image's grey levels, ``-sum_i p_i log2 p_i`` in bits, in [0, 8].

    Zhang, Fu and Meng (2020), section 4.2.2, which omits the minus sign and does not name the base.

    Example:
        >>> entropy(torch.tensor([[0, 0, 255, 255], [9, 9, 9, 9], [1, 2, 3, 4]], dtype=torch.uint8)).tolist()
        [1.0, 0.0, 2.0]
    """
    counts = grey_histograms(images).double()
    shares = counts / counts.sum(dim=1, keepdim=True)
    return torch.special.entr(shares).sum(dim=1) / math.log(2)


def mse(images: Tensor, reference: Tensor) -> Tensor:
    """Return the mean squared error of each image in the scale [0, 1]; float images may lie beyond it.

    Raises:
        InputError: If the shapes differ, or a value is NaN or infinite.
    """
    first, second = _pair(images, reference)
    return (first - second).square_().flatten(1).mean(dim=1)


def absolute_error(images: Tensor, reference: Tensor) -> Tensor:
    """Return the mean absolute error of each image in the scale [0, 1]; float images may lie beyond it.

    Liu et al. (2021), section 4.2, call it the absolute error for images straight after the noise, not clipped: a pixel
    of 200 that became 280 counts 80 grey levels.
    """
    first, second = _pair(images, reference)
    return (first - second).abs_().flatten(1).mean(dim=1)


def relative_error(images: Tensor, reference: Tensor) -> Tensor:
    """Return the mean absolute error of each image once its pixels are clipped to [0, 1], as they are shown.

    What Liu et al. (2021), section 4.2, call the relative error: a pixel of 200 that became 280 is shown as 255 and
    counts 55 grey levels. It is not a relative error; it equals `absolute_error` where no pixel lies beyond the range.
    """
    return absolute_error(images if images.dtype == torch.uint8 else images.clamp(0, 1), reference)


def psnr(images: Tensor, reference: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio in dB, ``-10 log10`` of `mse` (peak 1); equal images: infinite."""
    return -10 * mse(images, reference).log10()


def ssim(images: Tensor, reference: Tensor) -> Tensor:
    """Return the structural similarity of each image, in [-1, 1], 1 for equal images.

    Gaussian window of 11 pixels and standard deviation 1.5, constants 0.01 and 0.03, variances divided by the window's
    weight (not corrected), only windows that lie inside the image (Wang et al. 2004; torchmetrics 1.9 reflects the
    border and averages over it too), channels averaged. The window is a product with two banded matrices: on a CPU
    float64 convolutions take 100 times longer.

    Args:
        images: (N, H, W) or (N, C, H, W) uint8 or floating point in [0, 1], H and W at least 11.

    Raises:
        InputError: If the shapes differ or are too small, or floating point values are beyond [0, 1] or NaN.
    """
    _same_shape(images, reference)
    if images.ndim not in (3, 4) or min(images.shape[-2:]) < _SSIM_WINDOW:
        raise InputError(
            f"SSIM needs (N, H, W) or (N, C, H, W) with sides of at least {_SSIM_WINDOW} pixels, "
            f"got {tuple(images.shape)}."
        )
    # The product with such a matrix, (side - 10, side), takes a Gaussian-weighted mean around each inner pixel.
    reach = torch.arange(_SSIM_WINDOW, dtype=torch.float64, device=images.device)
    weights = reach.sub(_SSIM_WINDOW // 2).div_(1.5).square_().mul_(-0.5).softmax(dim=0)
    matrices = []
    for side in images.shape[-2:]:
        inner = side - _SSIM_WINDOW + 1
        matrix = torch.zeros(inner, side, dtype=torch.float64, device=images.device)
        index = torch.arange(inner, device=images.device)[:, None] + reach.long()
        matrices.append(matrix.scatter_(1, index, weights.expand(inner, -1)))
    rows, columns = matrices
    step = max(1, _CHUNK_NUMBERS // 8 // images[0].numel())
    parts = []
    for start in range(0, len(images), step):
        x, y = _unit(images[start : start + step]), _unit(reference[start : start + step])
        mean_x, mean_y, xx, yy, xy = (rows @ part @ columns.mT for part in (x, y, x * x, y * y, x * y))
        variances = (xx - mean_x.square()).clamp_(min=0) + (yy - mean_y.square()).clamp_(min=0)
        covariance = xy - mean_x * mean_y
        c1, c2 = 0.01**2, 0.03**2  # of the peak, 1
        similarity = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
        similarity /= (mean_x.square() + mean_y.square() + c1) * (variances + c2)
        parts.append(similarity.flatten(1).mean(dim=1))
    return torch.cat(parts)


def histogram_distance(images: Tensor, reference: Tensor) -> Tensor:
    """Return the total variation between the grey histograms of each image and of its original, in [0, 1].

    It is half the L1 distance: the share of pixels that would have to change their level.

    Raises:
        InputError: If the shapes differ, or as `grey_histograms`.
    """
    _same_shape(images, reference)
    difference = (grey_histograms(images) - grey_histograms(reference)).double() / images[0].numel()
    return difference.abs().sum(dim=1) / 2


def _unit(images: Tensor) -> Tensor:
    unit = _double(images)
    if not bool(((unit >= 0) & (unit <= 1)).all()):  # NaN fails too
        raise InputError(
            f"Pixels must lie in [0, 1], found {float(unit.min()):g} to {float(unit.max()):g}: clip them first "
            "(Release.to_uint8() does)."
        )
    return unit


def _double(images: Tensor) -> Tensor:
    """Return float64 images, uint8 ones mapped to [0, 1]."""
    if images.dtype == torch.uint8:
        return to_unit(images).double()
    if not images.is_floating_point():
        raise InputError(f"Images must be uint8 or floating point, got {images.dtype}.")
    return images.detach().double()


def _same_shape(images: Tensor, reference: Tensor) -> None:
    if images.shape != reference.shape or images.ndim < 2 or len(images) == 0 or images[0].numel() == 0:
        shapes = f"{tuple(images.shape)} and {tuple(reference.shape)}"
        raise InputError(f"Images and originals must have one shape (N, ...) with N >= 1, got {shapes}.")


def _pair(images: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return two batches of one shape as finite float64."""
    _same_shape(images, reference)
    pair = _double(images), _double(reference)
    if not all(bool(part.isfinite().all()) for part in pair):
        raise InputError("There are pixels that are NaN or infinite: no error can be computed.")
    return pair


# Filters that any recipient of a noisy image can apply: a filter reads released pixels only, so it costs no
# epsilon. Liu et al. (2021), section 4.2, filter their published images to judge how much noise can be removed.


def mean_filter(images: Tensor, side: int = 3) -> Tensor:
    """Return images whose pixels are the means of the ``side`` x ``side`` pixels around them.

    At the border the nearest pixel is repeated. The paper does not state the side; 3 is usual.

    Args:
        images: (N, H, W) or (N, C, H, W), uint8 (then rounded to the nearest level) or floating point of any range.
        side: Odd, at least 1.

    Raises:
        InputError: If shape, type or side are others.

    Example:
        >>> mean_filter(torch.tensor([[[0.0, 9.0, 0.0]]])).tolist()
        [[[3.0, 3.0, 3.0]]]
    """
    return _filtered(images, side, lambda neighbors: neighbors.mean(-1))


def median_filter(images: Tensor, side: int = 3) -> Tensor:
    """Return images whose pixels are the medians of the ``side`` x ``side`` pixels around them; see `mean_filter`.

    Example:
        >>> median_filter(torch.tensor([[[0.0, 9.0, 0.0, 0.0]]])).tolist()
        [[[0.0, 0.0, 0.0, 0.0]]]
    """
    return _filtered(images, side, lambda neighbors: neighbors.median(-1).values)


def _filtered(images: Tensor, side: int, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Reduce the neighborhood (..., side^2) of every pixel to one number."""
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise InputError(f"A filter needs images (N, H, W) or (N, C, H, W), got {tuple(images.shape)}.")
    if not images.is_floating_point() and images.dtype != torch.uint8:
        raise InputError(f"A filter needs uint8 or floating point images, got {images.dtype}.")
    if side < 1 or side % 2 == 0:
        raise InputError(f"side = {side} must be odd and at least 1: a pixel lies in the middle of its neighbors.")
    planes = images.reshape(-1, *images.shape[-2:])
    filtered = torch.empty_like(planes)
    step = max(1, _CHUNK_NUMBERS // (planes[0].numel() * side * side))
    for start in range(0, len(planes), step):
        part = planes[start : start + step]
        values = part if part.is_floating_point() else part.float()
        padded = torch.nn.functional.pad(values[:, None], (side // 2,) * 4, mode="replicate")[:, 0]
        neighbors = padded.unfold(1, side, 1).unfold(2, side, 1).flatten(-2)  # (N, H, W, side^2)
        reduced = reduce(neighbors)
        filtered[start : start + step] = reduced if part.is_floating_point() else reduced.round()
    return filtered.view(images.shape)
