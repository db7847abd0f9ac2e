r"""Registration: smooth displacements that bring images into place on a template, and back out of it.

An active appearance model (Cootes, Edwards and Taylor, "Active appearance models", 1998) describes an image by its
*shape*, a displacement of the pixels, and by its *texture*, the image with that displacement undone. Textures of
different images have their eyes and mouths in the same places, so that their mean and covariance are not blurred.

A displacement is ``d(p) = sum_k c_k f_k(p)`` for x and for y, with the lowest functions of the cosine basis, scaled to
a mean square of 1, and c in half image sides. The registered image at p is the image at ``p + d(p)``. Its coefficients
minimize the squared difference to the template, both blurred and normalized, weighted to the middle, plus the bending
penalty ``lambda sum_k (1 + |frequency_k|^2)^2 c_k^2``, by damped Gauss-Newton steps (Levenberg, 1944; Marquardt, 1963)
from zero.

The arithmetic of an image depends on that image, the template, and its position in a batch of a fixed size, down to the
last bit: no step looks at another row. An image that is not finite, or whose displacement is not, gets none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from idpgan.data.annotations import Annotations
from idpgan.numerics.dct import cosines

_SIDE = 24  # px of the blurred images that are compared
_BLUR = 0.03  # its standard deviation, in image sides
_WINDOW = 0.7  # standard deviation of the weights, half image sides
_PENALTY = 1.0
_DAMPING = 0.3
_STEPS = 10
_LEAST_CONTRAST = 0.02
_LEAST_WEIGHT = 1e-12  # of a pixel in a blurred one
_STEEPEST = 0.75  # a displacement that changes less than this by its own length can be inverted
_INVERSIONS = 20  # fixed-point steps: 0.75^20 = 0.003 of the displacement
_CONTRAST = 0.5  # of the pixels of any image
_SHAPE_STD = 0.05  # of photographs of faces with their eyes in place, half image sides, chosen on photographs


def low_frequencies(count: int) -> list[tuple[int, int]]:
    """Return the ``count`` lowest pairs (u, v), vertical and horizontal."""
    side = math.isqrt(count) + 2
    return [(u, v) for _, u, v in sorted((u * u + v * v, u, v) for u in range(side) for v in range(side))[:count]]


def shape_variance(count: int) -> Tensor:
    """Return the variance that is expected of the 2 ``count`` coefficients of a displacement, (2 count,) float64."""
    each = [(_SHAPE_STD / (1 + u * u + v * v)) ** 2 for u, v in low_frequencies(count)]
    return torch.tensor(each * 2, dtype=torch.float64)


def shape_unit(count: int, pixels: int) -> float:
    """Return the half image sides of a displacement that weigh as much as 1 of a pixel, of images of so many numbers.

    One as large as is expected of photographs then weighs as much as an image of contrast 0.5.
    """
    return math.sqrt(float(shape_variance(count).sum()) / pixels) / _CONTRAST


def odd_displacements(count: int) -> Tensor:
    """Return which coefficients of a displacement change their sign for the mirror image, (2 count,) bool.

    The mirror image of a face is brought into place on a mirror-symmetric template by the mirrored displacement, whose
    horizontal part points the other way: ``d_x'(p) = -d_x(Mp)`` and ``d_y'(p) = d_y(Mp)``.
    """
    across = [v % 2 == 1 for _, v in low_frequencies(count)]
    return torch.tensor([not odd for odd in across] + across, dtype=torch.bool)


def displaced(images: Tensor, shapes: Tensor) -> Tensor:
    """Return images (B, C, H, W), read at the places to which the displacements (B, 2 count) point."""
    places = _places(*images.shape[2:], shapes.dtype, shapes.device) + _field(shapes, *images.shape[2:])
    return _read(images, places, "bicubic")


def bent_back(images: Tensor, shapes: Tensor) -> Tensor:
    """Undo `displaced`: images (B, C, H, W) of registered faces get the shapes (B, 2 count).

    The inverse e of a displacement d solves ``e(p) = -d(p + e(p))``, by iteration (Chen et al., "A simple fixed-point
    approach to invert a deformation field", 2008). A displacement that is too steep to be inverted is shortened first.
    """
    return _read(images, _places_back(shapes, *images.shape[2:]), "bicubic")


def bent_anew(images: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """Return ``bent_back(displaced(images, before), after)``, but read once, so that edges stay sharp."""
    return _read(images, _places_anew(before, after, *images.shape[2:]), "bicubic")


def annotations_anew(annotations: Annotations, before: Tensor, after: Tensor) -> Annotations:
    """Return where the parts of images lie in those of `bent_anew`; the pose stays.

    An image that reads at ``p + d(p)`` shows a point q at the p of ``p = q - d(p)``, by iteration as in `bent_back`.
    """
    landmarks, masks, pose = annotations
    height, width = masks.shape[1:]
    places, sides = _places_anew(before, after, height, width), torch.tensor([width, height]).to(landmarks)
    field = (places - _places(height, width, places.dtype, places.device)).movedim(3, 1)
    goal = (2 * landmarks / sides - 1)[:, :, None]
    found = goal
    for _ in range(_INVERSIONS):
        found = goal - _read(field, found, "bilinear").movedim(1, 3)
    shown = _read(masks[:, None].float(), places, "nearest")[:, 0].to(torch.uint8)
    return Annotations((found[:, :, 0] + 1) * sides / 2, shown, pose)


def _places_anew(before: Tensor, after: Tensor, height: int, width: int) -> Tensor:
    """Return where `bent_anew` reads, (B, H, W, 2)."""
    places = _places_back(after, height, width)
    return places + _read(_field(before, height, width).movedim(3, 1), places, "bilinear").movedim(1, 3)


def _places_back(shapes: Tensor, height: int, width: int) -> Tensor:
    """Return where `bent_back` reads, (B, H, W, 2)."""
    field = _field(shapes, height, width)
    steps = (field.diff(dim=axis).abs().sum(3) * field.shape[axis] / 2 for axis in (1, 2))  # from pixel to pixel
    steepest = torch.maximum(*(each.flatten(1).amax(1) for each in steps))
    field = field * (_STEEPEST / steepest.clamp(min=_STEEPEST))[:, None, None, None]
    planes, straight = field.movedim(3, 1), _places(height, width, field.dtype, field.device)
    places = straight - field
    for _ in range(_INVERSIONS):
        places = straight - _read(planes, places, "bilinear").movedim(1, 3)
    return places


def _field(shapes: Tensor, height: int, width: int) -> Tensor:
    """Return displacements in half image sides, x and then y, (B, H, W, 2)."""
    functions = _functions(height, width, shapes.shape[1] // 2, shapes.dtype, shapes.device)
    return torch.stack([part @ functions.T for part in shapes.chunk(2, dim=1)], dim=2).view(-1, height, width, 2)


def _read(planes: Tensor, places: Tensor, mode: str) -> Tensor:
    """Return planes (B, C, H, W) at places in half image sides, (B, H, W, 2); outside, the border is repeated."""
    return functional.grid_sample(planes, places, mode=mode, padding_mode="border", align_corners=False)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)  # kept for calls that need gradients
def _functions(height: int, width: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return (cosines(height, width, low_frequencies(count)) * math.sqrt(height * width)).to(device, dtype)


@functools.lru_cache(maxsize=8)
@torch.inference_mode(False)
def _places(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.stack(torch.meshgrid(_line(width), _line(height), indexing="xy"), dim=2).to(device, dtype)


def _line(side: int) -> Tensor:
    return (2 * torch.arange(side, dtype=torch.float64) + 1) / side - 1


class Registration:
    """Finds the displacement that brings an image into place on a template.

    Args:
        image_shape: (C, H, W) of images and template.
        count: Functions of a displacement, for each direction.
    """

    def __init__(self, image_shape: Sequence[int], count: int) -> None:
        _, height, width = image_shape
        self.count = count
        self._rows, self._columns = _blurring(height), _blurring(width)
        line = torch.exp(-0.5 * (_line(_SIDE) / _WINDOW).square())
        self._weights = (line[:, None] * line / line.sum().square()).float()
        kind = torch.float32, torch.device("cpu")
        functions, weights = _functions(_SIDE, _SIDE, count, *kind), self._weights.view(-1, 1)
        self._functions = weights * functions
        self._straight = _places(_SIDE, _SIDE, *kind).flatten()
        self._moves = torch.zeros(2, count, _SIDE**2, 2)  # of the places, by each coefficient
        self._moves[0, :, :, 0] = self._moves[1, :, :, 1] = functions.T
        rows, columns = torch.tril_indices(count, count)
        self._products = weights * functions[:, rows] * functions[:, columns]  # they are symmetric
        entries = torch.zeros(count, count, dtype=torch.int64)
        entries[rows, columns] = entries[columns, rows] = torch.arange(len(rows))
        xx, xy, yy = (entries + len(rows) * plane for plane in range(3))
        self._entries = torch.cat([torch.cat([xx, xy], 1), torch.cat([xy, yy], 1)]).flatten()
        bending = [_PENALTY * (1 + u * u + v * v) ** 2 for u, v in low_frequencies(count)]
        self._penalty = torch.tensor(bending * 2, dtype=torch.float32)

    def prepare(self, images: Tensor) -> Tensor:
        """Blur and normalize images (B, C, H, W) to (B, 24, 24): weighted mean 0 and, but for flat ones, variance 1."""
        grey = images.float().mean(1)  # not finite where a channel is not
        grey = torch.where(grey.isfinite().all(2).all(1)[:, None, None], grey, 0.0)
        narrow = grey @ self._columns.to(grey).T  # one matrix product for all images, as the next
        small = (narrow.mT @ self._rows.to(grey).T).mT
        weights = self._weights.to(grey)
        small = small - (small * weights).sum((1, 2), keepdim=True)
        contrast = (small.square() * weights).sum((1, 2), keepdim=True).sqrt()
        return small / (contrast + _LEAST_CONTRAST)

    def __call__(self, images: Tensor, template: Tensor) -> Tensor:
        """Return the displacements of images (B, C, H, W) to a template: (B, 2 count) float32, finite.

        The template is one for all, (C, H, W) or (1, C, H, W), or each image's own, (B, C, H, W).
        """
        prepared, goal = self.prepare(images), self.prepare(template.view(-1, *images.shape[1:])).flatten(1)
        slope_y, slope_x = torch.gradient(prepared, dim=(1, 2), spacing=2 / _SIDE)
        planes = torch.stack([prepared, slope_x, slope_y], dim=1)
        shapes = prepared.new_zeros(len(images), 2 * self.count)
        for _ in range(_STEPS):
            shapes = shapes - self._step(planes, goal, shapes)
        return torch.where(shapes.isfinite().all(1, keepdim=True), shapes, 0.0)

    def _step(self, planes: Tensor, goal: Tensor, shapes: Tensor) -> Tensor:
        """Return a damped Gauss-Newton step, (B, 2 count), from images and their slopes in x and y, (B, 3, 24, 24)."""
        functions, products, penalty = (part.to(shapes) for part in (self._functions, self._products, self._penalty))
        places = torch.addmm(self._straight.to(shapes), shapes, self._moves.to(shapes).view(shapes.shape[1], -1))
        read = _read(planes, places.view(-1, _SIDE, _SIDE, 2), "bilinear").flatten(2)
        moved, slope_x, slope_y = read.unbind(1)
        residual = (moved - goal)[:, None] * read[:, 1:]
        gradient = (residual @ functions).flatten(1) + penalty * shapes
        torch.mul(slope_x, slope_x, out=moved)
        slope_x *= slope_y
        slope_y *= slope_y  # so `read` holds xx, xy, yy
        curvature = (read @ products).flatten(1)[:, self._entries].view(-1, *2 * shapes.shape[1:])
        factor, _ = torch.linalg.cholesky_ex(curvature + torch.diag(penalty + _DAMPING))
        return torch.cholesky_solve(gradient[:, :, None], factor)[:, :, 0]


def _blurring(side: int) -> Tensor:
    """Return the matrix that blurs a line of pixels and samples it at 24 places, (24, side)."""
    centers = (torch.arange(_SIDE, dtype=torch.float64) + 0.5) * side / _SIDE
    pixels = torch.arange(side, dtype=torch.float64) + 0.5
    weights = torch.exp(-0.5 * ((centers[:, None] - pixels) / max(_BLUR * side, 0.5)).square())
    weights = weights / weights.sum(1, keepdim=True)
    return weights.where(weights > _LEAST_WEIGHT, 0.0).float()  # a processor is slow at numbers that are nearly 0
