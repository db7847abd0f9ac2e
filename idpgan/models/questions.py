"""What photos are asked: v(x), bounded numbers of an image, fixed by portraits and by no private image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from idpgan.data.images import to_float
from idpgan.errors import InputError
from idpgan.models.camera import LIGHT, SHARPNESS, light, sharpness
from idpgan.models.orientations import ORIENTATIONS, orientations

_EDGES = 150  # principal components
_FARTHEST = 4.0  # standard deviations
_QUANTILE = 0.9  # of the portraits' lengths: the radius
_AT_ONCE = 500
FEWEST = 2 * _EDGES  # portraits: fewer do not fix so many directions
_KINDS, _PLACED, _ROUNDS = 8, 20, 30  # of portraits; components that tell them; rounds that find them
SHARES = {"edges": 0.25, "kinds": 0.35, "light": 0.3, "sharpness": 0.1}  # of the squared norm that the count leaves
COUNT_SHARE = 0.05  # of all and of a kind: a count that is wrong by 2 % moves a mean by less than the noise on it
_NUMBERS: dict[str, tuple[Callable[[Tensor], Tensor], int, int]] = {  # of an image, how many, and how many are asked
    "edges": (orientations, ORIENTATIONS, _EDGES),
    "light": (light, LIGHT, LIGHT),
    "sharpness": (sharpness, SHARPNESS, SHARPNESS),
}
_SIZES = {name: asked for name, (_, _, asked) in _NUMBERS.items()} | {"kinds": _KINDS * (1 + _EDGES)}
BLOCKS = {  # which numbers lie together: components by their variance, octaves of frequency, cells of a sub-band
    "edges": (86, 32, 16, 8, 8),
    "light": (8, 16, 32, 64, 128, 152),
    "sharpness": (9,) * 12,
}


def refuse_few(num: int) -> None:
    """Raise `InputError` where so many portraits do not fix the directions."""
    if num < FEWEST:
        raise InputError(
            f"{num:,} portraits are too few to compare photos with, and {FEWEST} the least. Draw more: idpgan people "
            "PORTRAITS --num 12000."
        )


class Question(nn.Module):
    """Numbers of an image by constants of portraits: ``(x - center) @ basis``, cut, and shortened to the radius.

    Attributes:
        center: (D,) float64.
        basis: (D, k).
        radius: 0-d.
    """

    def __init__(self, size: int, numbers: int) -> None:
        super().__init__()
        self.center = nn.Buffer(torch.zeros(size, dtype=torch.float64))
        self.basis = nn.Buffer(torch.zeros(size, numbers, dtype=torch.float64))
        self.radius = nn.Buffer(torch.ones((), dtype=torch.float64))

    def learn(self, of_portraits: Tensor) -> None:
        """Take the constants from the numbers of portraits, float64 (N, D): principal components where k < D."""
        self.center.copy_(of_portraits.mean(0))
        centered, numbers = of_portraits - self.center, self.basis.shape[1]
        if numbers < centered.shape[1]:
            self.basis.copy_(_components(centered, numbers))
        else:
            self.basis.copy_(torch.diag(1 / centered.std(0).clamp(min=1e-6)))
        self.radius.copy_((centered @ self.basis).clamp(-_FARTHEST, _FARTHEST).norm(dim=1).quantile(_QUANTILE))

    def forward(self, numbers: Tensor) -> Tensor:
        """Return float64 (B, k), none longer than the radius, of numbers (B, D)."""
        return self.shortened(((numbers.double() - self.center) @ self.basis).clamp(-_FARTHEST, _FARTHEST))

    def back(self, change: Tensor) -> Tensor:
        """Return what a change (k,) is of the numbers themselves, where each was taken by its own deviation."""
        return change / self.basis.diagonal().to(change.device)

    def shortened(self, vectors: Tensor) -> Tensor:
        """Return vectors (..., k) none of which is longer than the radius."""
        return vectors * (self.radius.to(vectors.device) / vectors.norm(dim=-1, keepdim=True)).clamp(max=1)


def _components(centered: Tensor, numbers: int) -> Tensor:
    """Return principal components of rows (N, D), each by its standard deviation, (D, numbers)."""
    few = len(centered) < centered.shape[1]  # then the smaller of the two matrices of products
    values, vectors = torch.linalg.eigh((centered @ centered.T if few else centered.T @ centered) / len(centered))
    values, vectors = values[-numbers:].clamp(min=1e-6 * float(values[-1])), vectors[:, -numbers:]
    if few:
        vectors = centered.T @ vectors / (len(centered) * values).sqrt()
    return vectors / values.sqrt()


class Answers(NamedTuple):
    """What sums say.

    Attributes:
        counts: How many images each row has, (rows,), and of each kind, (rows, 8) or (rows, 0).
        off: Standard deviation of the noise on these, (2,).
        means: Of each question, (rows, k); of "kinds" those of edges, (rows, 8, k).
        noise: Standard deviation of the noise on each number of these, (rows,) or (rows, 8).
    """

    counts: tuple[Tensor, Tensor]
    off: tuple[float, float]
    means: dict[str, Tensor]
    noise: dict[str, Tensor]


class Questions(nn.Module):
    r"""The vector v(x) of an image x, which is summed: a function of x and of constants of portraits alone.

    v is ``(sqrt(t), sqrt((1 - t) a_i) u_i, ...)`` with a question i of share a_i, the shares adding up to 1. For
    "edges", the 150 principal components of histograms of orientations, "light", the 400 lowest frequencies, and
    "sharpness", the logarithms of 108 energies, ``u = s / R``: each number of s is by the portraits' mean and standard
    deviation, cut at 4 of these, and s is shortened to the radius R where it is longer. For "kinds" u has a place for
    each of eight kinds of portraits (k-means): ``(sqrt(t), sqrt(1 - t) s / R)``, with s of edges, in that of the
    nearest kind, 0 in the others.

    Proof of the norm. ``|s| <= R``, so each ``|u_i| <= 1`` and ``|v|^2 <= t + (1 - t) sum of a_i = 1`` for every image.
    Center, basis, R and kinds are of the portraits, which no private image has touched, and v is computed of one image
    at a time. A null record adds v = 0, count included, so that zeroing out a record moves one sum by at most 1
    (`privacy.sums` has the rest: rounding, other relations, people).

    Args:
        asked: The questions, some of `SHARES`; "edges" is one.

    Attributes:
        centers: Of the kinds, (8, 20): of the largest components.
        dimensions: Length of v.
    """

    def __init__(self, asked: Sequence[str] = tuple(SHARES)) -> None:
        super().__init__()
        self.asked = tuple(asked)
        self.dimensions = 1 + sum(_SIZES[name] for name in asked)
        self.centers = nn.Buffer(torch.zeros(_KINDS, _PLACED, dtype=torch.float64))
        for name in (name for name in asked if name in _NUMBERS):
            self.add_module(name, Question(*_NUMBERS[name][1:]))

    def learn(self, images: Tensor) -> Self:
        """Take all constants from portraits, uint8 (N, C, H, W).

        Raises:
            InputError: If there are too few.
        """
        refuse_few(len(images))
        for name in (name for name in self.asked if name in _NUMBERS):
            numbers = torch.cat([_NUMBERS[name][0](to_float(part)).double() for part in images.split(_AT_ONCE)])
            self.question(name).learn(numbers)
            if name == "edges":
                self.centers.copy_(_means(self.question(name)(numbers)[:, -_PLACED:]))
        return self

    def forward(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return v of images (B, C, H, W) in [-1, 1], (B, `dimensions`) float64 of norm at most 1; rows: of no use."""
        units = {name: self._of(name, images) / self.question(name).radius for name in self.asked if name in _NUMBERS}
        edges, count = units["edges"], math.sqrt(COUNT_SHARE)
        if "kinds" in self.asked:
            placed = edges.new_zeros(len(edges), _KINDS, 1 + _EDGES)
            own = torch.arange(len(edges)), self.kinds(edges * self.question("edges").radius)
            placed[own] = torch.cat([edges.new_full((len(edges), 1), count), math.sqrt(1 - COUNT_SHARE) * edges], 1)
            units["kinds"] = placed.flatten(1)
        parts = [self._scale(name) * units[name] for name in self.asked]
        return torch.cat([edges.new_full((len(edges), 1), count), *parts], 1)

    def of(self, name: str, images: Tensor) -> Tensor:
        """Return s of a question of images, uint8 (N, C, H, W), as float64 (N, k) on the CPU."""
        device = self.question(name).radius.device
        return torch.cat([self._of(name, to_float(part.to(device))).cpu() for part in images.split(_AT_ONCE)])

    def kinds(self, edges: Tensor) -> Tensor:
        """Return the kind that is nearest to s of edges, (B, 150), int64 (B,); 0 where kinds are not asked."""
        near = torch.cdist(edges[:, -_PLACED:], self.centers.to(edges.device)).argmin(1)
        return near if "kinds" in self.asked else torch.zeros_like(near)

    def answers(self, sums: Tensor, noise_std: float) -> Answers:
        """Read sums of v with noise, (rows, `dimensions`) float64.

        Args:
            noise_std: Standard deviation of the noise on each number of them.
        """
        first, *parts = sums.split([1, *(_SIZES[name] for name in self.asked)], 1)
        root, means, noise = math.sqrt(COUNT_SHARE), {}, {}
        counts, off = (first[:, 0] / root, first[:, :0]), (noise_std / root, 0.0)
        for name, part in zip(self.asked, parts, strict=True):
            scale, of, question = self._scale(name), counts[0], "edges" if name == "kinds" else name
            if name == "kinds":
                placed, at = part.unflatten(1, (_KINDS, 1 + _EDGES)), scale * root
                counts, off = (counts[0], placed[..., 0] / at), (off[0], noise_std / at)
                of, part, scale = counts[1], placed[..., 1:], scale * math.sqrt(1 - COUNT_SHARE)
            factor = float(self.question(question).radius) / (scale * of.clamp(min=1))
            means[name] = self.question(question).shortened(part * factor[..., None])
            noise[name] = noise_std * factor
        return Answers(counts, off, means, noise)

    def question(self, name: str) -> Question:
        """Return the constants of a question."""
        return cast(Question, self.get_submodule(name))

    def _scale(self, name: str) -> float:
        """Return the factor of u in v."""
        return math.sqrt((1 - COUNT_SHARE) * SHARES[name] / sum(SHARES[one] for one in self.asked))

    def _of(self, name: str, images: Tensor) -> Tensor:
        return self.question(name)(_NUMBERS[name][0](images))


def _means(rows: Tensor) -> Tensor:
    """Return the centers of eight groups of rows (N, k) by k-means (Lloyd 1982), which begins at rows by chance."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    centers = rows[order[:_KINDS]]
    for _ in range(_ROUNDS):
        near = torch.cdist(rows, centers).argmin(1)
        sums = torch.zeros_like(centers).index_add_(0, near, rows)
        counts = near.bincount(minlength=_KINDS)[:, None]
        centers = torch.where(counts > 0, sums / counts.clamp(min=1), centers)
    return centers
