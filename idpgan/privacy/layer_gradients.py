r"""Per-record gradients of one weight, as inputs and output gradients of its layer: multiplied out in rows, or never.

A layer that multiplies has ``g_i = sum_r a_r x_r^T``: x_r are the R inputs of record i, a_r the gradients of the
outputs (a convolution's inputs are its patches, one per position). There are two exact ways to its norm and to the
clipped sum:

- *rows*: g_i is multiplied out, some records at a time, in the precision of the weights; its norm and the sum over
  records are float64.
- *ghost*: ``||g_i||^2 = sum_{r,s} (a_r . a_s) (x_r . x_s)`` (Goodfellow 2015; for R > 1, Li et al. 2022), and the sum
  is one matrix product of all records' ``f_i a_r`` and x_r. Both float64.

`Outer.ghost` chooses by a fixed rule, so that equal runs compute in the same way.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_DOUBLE = 2.0  # cost of a float64 multiplication in float32 multiplications: on a processor, and on a data center GPU
_PASS = 12.0  # cost of writing a number of a row, converting, squaring and summing it, in float32 multiplications
_FEW_LINES = 256  # lines of an embedding up to which a matrix product is faster than adding line by line
_MOST_TERMS = 1 << 17  # see `Outer.squares`


_BLOCK_BYTES = {"cpu": 4 << 20, "cuda": 1 << 30}  # of float64 rows held at once; a processor's cache holds them


def clip_and_add(
    gradients: Mapping[str, LayerGradient], counted: Tensor, bound: float, total: Mapping[str, Tensor]
) -> Tensor:
    """Add ``sum_i g_i min(1, bound / ||g_i||)``, g_i being record i's gradient in all weights together.

    Args:
        gradients: By weight; none for a weight that the losses do not depend on.
        counted: bool (B,); a record that is not counted, or whose gradient is not finite, adds zero.
        bound: The norm that clipping leaves.
        total: What it is added to, float64, by weight.

    Returns:
        The norms (B,) before clipping, float64, not finite where the record added zero.
    """
    ghosts = {name: gradient for name, gradient in gradients.items() if gradient.ghost}
    others = {name: gradient for name, gradient in gradients.items() if not gradient.ghost}
    squares = torch.zeros(len(counted), dtype=torch.float64, device=counted.device)
    for gradient in ghosts.values():
        squares += gradient.squares()
    squares.masked_fill_(~counted, torch.nan)
    sizes = [gradient.numel for gradient in others.values()]
    block = max(1, _BLOCK_BYTES.get(counted.device.type, 1 << 30) // (8 * max(1, sum(sizes))))
    buffer = squares.new_empty(min(block, len(counted)), sum(sizes))
    sums, factors, norms = squares.new_zeros(sum(sizes)), [], []
    for start in range(0, len(counted), block):
        some = slice(start, start + block)
        rows = buffer[: len(squares[some])]
        for part, gradient in zip(rows.split(sizes, 1), others.values(), strict=True):
            part.copy_(gradient.rows(some))
        norm = torch.hypot(torch.linalg.vector_norm(rows, dim=1), squares[some].sqrt())
        finite = norm.isfinite()
        if not bool(finite.all()):
            rows.masked_fill_(~finite[:, None], 0.0)
        factor = torch.where(finite, (bound / norm).clamp(max=1.0), 0.0)
        sums.addmv_(rows.mT, factor)
        factors.append(factor)
        norms.append(norm)
    for part, (name, gradient) in zip(sums.split(sizes), others.items(), strict=True):
        total[name].add_(gradient.arranged(part))
    if ghosts and factors:
        factor = torch.cat(factors)
        for name, gradient in ghosts.items():
            total[name].add_(gradient.weighted(factor))
    return torch.cat(norms) if norms else squares


class LayerGradient:
    """The gradients of B records in one weight."""

    ghost = False  # whether the gradients are never multiplied out; if so `squares` and `weighted` exist, else `rows`

    def __init__(self, shape: torch.Size) -> None:
        self.shape, self.numel = shape, shape.numel()

    def rows(self, some: slice) -> Tensor:
        """Return the gradients of some records, (k, numel), in the order of `arranged`."""
        raise NotImplementedError

    def arranged(self, total: Tensor) -> Tensor:
        """Return a sum of rows, (numel,), in the shape of the weight."""
        return total.view(self.shape)

    def squares(self) -> Tensor:
        """Return upper bounds on the squared norms, (B,) float64."""
        raise NotImplementedError

    def weighted(self, factor: Tensor) -> Tensor:
        """Return the sum of all gradients times their factors (B,) float64, in float64.

        Factor 0 leaves a record out, whatever its gradient.
        """
        raise NotImplementedError


class Materialized(LayerGradient):
    """Gradients (B, *shape) that are computed already."""

    def __init__(self, gradients: Tensor) -> None:
        super().__init__(gradients.shape[1:])
        self._gradients = gradients.unsqueeze(-1).flatten(1)  # a weight may be one number

    def rows(self, some: slice) -> Tensor:
        """Return the rows of some records."""
        return self._gradients[some]


class Call:
    """One call of a layer: its inputs, and the gradient of its output. The first dimension is the record.

    Attributes:
        inputs: (B, ...), as `keep` took them.
        gradient: (B, ...); there once `arrived`: where the losses depend on this call.
    """

    inputs: Tensor
    gradient: Tensor
    arrived = False

    @staticmethod
    def gradient_of(calls: Sequence[Any], weight: Tensor) -> LayerGradient:
        """Return the gradient of the weight of these calls, all of this class."""
        raise NotImplementedError

    def keep(self, inputs: Tensor) -> None:
        """Keep the input, (B, ...)."""
        self.inputs, self._version = inputs, inputs._version

    def arrive(self, gradient: Tensor) -> None:
        """Keep the gradient of the output, (B, ...)."""
        self.gradient, self.arrived = gradient, True

    @property
    def changed(self) -> bool:
        """Whether the input was changed in place after the call."""
        return self.inputs._version != self._version


@dataclass(eq=False)
class AffineCall(Call):
    """``y = x * scale`` or ``y = x + shift``.

    Attributes:
        trailing: Dimensions of x after those of the weight.
        scales: Whether the weight is the scale.
    """

    trailing: int = 0
    scales: bool = False

    @staticmethod
    def gradient_of(calls: Sequence[AffineCall], weight: Tensor) -> LayerGradient:
        """Sum over the calls, and over all dimensions but those of the weight."""
        vectors = []
        for call in calls:
            product = call.gradient * call.inputs if call.scales else call.gradient
            last = product.ndim - call.trailing
            others = [dim for dim in range(1, product.ndim) if not last - weight.ndim <= dim < last]
            vectors.append((product.sum(others) if others else product).to(weight.dtype))
        return Materialized(torch.stack(vectors).sum(0) if len(vectors) > 1 else vectors[0])


class Outer(LayerGradient):
    """The gradients ``sum_r a_r x_r^T`` in the weight of a linear layer or a convolution."""

    def __init__(self, calls: Sequence[_Product], weight: Tensor) -> None:
        super().__init__(weight.shape)
        if len({call.groups for call in calls}) > 1:  # their parts do not fit together
            raise RuntimeError("a weight is in convolutions of unequal groups.")
        self._dtype = weight.dtype
        self._calls, self._groups = calls, calls[0].groups
        # R: how many outputs a record has, each with the features of one dimension.
        self._counts = sum(math.prod(call.gradient.shape[1:]) // call.gradient.shape[call.features] for call in calls)
        self._out = weight.shape[0] // self._groups
        self._inner = weight.numel() // weight.shape[0]
        self.ghost = self._chooses_ghost()

    def _chooses_ghost(self) -> bool:
        """Compare the two ways by their numbers of multiplications."""
        count, matrix, sides = self._counts, self._out * self._inner, self._out + self._inner
        if sides + count**2 > _MOST_TERMS or self._dtype == torch.float64:  # float64 squares may leave its range
            return False
        return _DOUBLE * (count**2 * sides + count * matrix) < (count + _PASS) * matrix

    def rows(self, some: slice) -> Tensor:
        """See `LayerGradient`."""
        (left, right), *others = self._parts(some)
        total = torch.bmm(left, right)
        for left, right in others:
            total.baddbmm_(left, right)
        return total.view(-1, self.numel)

    def arranged(self, total: Tensor) -> Tensor:
        """See `LayerGradient`."""
        # An input is in the order (row, column, channel), a weight in (channel, row, column).
        return total.reshape(self.shape[0], *self.shape[2:], self.shape[1]).movedim(-1, 1)

    def _parts(self, some: slice) -> Iterator[tuple[Tensor, Tensor]]:
        for call in self._calls:
            for left, right in call.factors(some):
                yield left.to(self._dtype), right.to(self._dtype)

    @functools.cached_property
    def _factors(self) -> tuple[Tensor, Tensor]:
        """Return all a (B, G, R, p) and x (B, G, R, d), float64."""
        lefts, rights = zip(*self._parts(slice(None)), strict=True)
        left, right = torch.cat([part.mT for part in lefts], 1), torch.cat(rights, 1)
        groups = (-1, self._groups)
        return left.unflatten(0, groups).double(), right.unflatten(0, groups).double()

    def squares(self) -> Tensor:
        """See `LayerGradient`. Where the terms of a record cancel, rounding could make the sum too small.

        Rounding moves it by at most ``n u (sum_r |a_r| |x_r|)^2`` for n terms in all and u = 2^-53 (Higham 2002,
        "Accuracy and stability of numerical algorithms", section 3.1), and that much is added. By the same bound
        clipped terms then round by at most ``C sqrt(n u)``, less than half of the plan's slack up to `_MOST_TERMS`.
        """
        left, right = self._factors
        if self._counts == 1:
            products = left.square().sum((2, 3)) * right.square().sum((2, 3))
            return products.sum(1)
        grams = left @ left.mT, right @ right.mT  # (B, G, R, R)
        lengths = grams[0].diagonal(dim1=2, dim2=3) * grams[1].diagonal(dim1=2, dim2=3)
        margin = (self._out + self._inner + self._counts**2 + 8) * 2.0**-53
        return ((grams[0] * grams[1]).sum((2, 3)) + margin * lengths.sqrt().sum(2).square()).sum(1)

    def weighted(self, factor: Tensor) -> Tensor:
        """See `LayerGradient`."""
        left, right = self._factors
        kept = factor[:, None, None, None]
        left = left * kept
        if not bool(factor.all()):
            left, right = (torch.where(kept > 0, part, 0.0) for part in (left, right))
        left, right = (part.transpose(0, 1).flatten(1, 2) for part in (left, right))  # (G, B R, ...)
        return self.arranged((left.mT @ right).flatten())


class _Product(Call, ABC):
    """A call of a layer that multiplies, in G groups: ``y_r = W x_r`` for the R inputs of a record."""

    gradient_of = Outer
    groups = 1
    features = -1  # dimension of the output's features

    @abstractmethod
    def factors(self, some: slice) -> list[tuple[Tensor, Tensor]]:
        """Return a (k G, p, R) and x (k G, R, d) of some records, in parts of fewer R each."""


class LinearCall(_Product):
    """``torch.nn.functional.linear``."""

    def factors(self, some: slice) -> list[tuple[Tensor, Tensor]]:
        """See `_Product`."""
        gradient, inputs = self.gradient[some], self.inputs[some]
        batch = len(inputs)
        return [(gradient.reshape(batch, -1, gradient.shape[-1]).mT, inputs.reshape(batch, -1, inputs.shape[-1]))]


@dataclass(eq=False)
class ConvolutionCall(_Product):
    """``torch.nn.functional.conv2d``.

    Attributes:
        kernel: Height and width.
        places: Stride, padding (zeros on either side) and dilation (1 = none), each down and across.
        groups: G.
    """

    kernel: Sequence[int]
    places: Sequence[tuple[int, int]]
    groups: int
    features = -3

    def factors(self, some: slice) -> list[tuple[Tensor, Tensor]]:
        """See `_Product`; a patch is in the order (row, column, channel), so that it is copied in long runs."""
        gradient, inputs = self.gradient[some], self.inputs[some]
        batch, channels = len(inputs), inputs.shape[-3]
        images = inputs.reshape(batch, -1, *inputs.shape[-3:])
        number, height, width = images.shape[1], *images.shape[-2:]
        (down, across), (up, left), (y, x) = self.places
        padded = images.new_zeros(batch, number, height + 2 * up, width + 2 * left, channels)
        padded[:, :, up : up + height, left : left + width] = images.permute(0, 1, 3, 4, 2)
        record, image, row, column, one = padded.stride()
        part = channels // self.groups
        patches = padded.as_strided(
            (batch, number, self.groups, *gradient.shape[-2:], *self.kernel, part),
            (record, image, part, down * row, across * column, y * row, x * column, one),
        ).reshape(batch, number, self.groups, math.prod(gradient.shape[-2:]), -1)
        outputs = gradient.reshape(batch, number, self.groups, -1, patches.shape[3])
        return [(outputs[:, i].flatten(0, 1), patches[:, i].flatten(0, 1)) for i in range(number)]


class _Lookup(LayerGradient):
    """The gradients in an embedding: a_r is added to line x_r of it."""

    ghost = True

    def __init__(self, calls: Sequence[Call], weight: Tensor) -> None:
        super().__init__(weight.shape)
        batch = len(calls[0].inputs)
        self._lines = torch.cat([call.inputs.reshape(batch, -1) for call in calls], 1)  # (B, R)
        width = weight.shape[1]
        self._left = torch.cat([call.gradient.reshape(batch, -1, width) for call in calls], 1).double()  # (B, R, D)

    def squares(self) -> Tensor:
        """See `Outer.squares`."""
        grams = self._left @ self._left.mT  # (B, R, R)
        same = self._lines[:, :, None] == self._lines[:, None, :]
        lengths = grams.diagonal(dim1=1, dim2=2).sqrt()
        margin = (self.shape[1] + self._lines.shape[1] ** 2 + 8) * 2.0**-53
        return torch.where(same, grams, 0.0).sum((1, 2)) + margin * lengths.sum(1).square()

    def weighted(self, factor: Tensor) -> Tensor:
        """See `LayerGradient`."""
        left, lines = self._left, self._lines
        if not bool(factor.all()):
            left = torch.where(factor[:, None, None] > 0, left, 0.0)
        left = left.flatten(0, 1)  # (B R, D)
        weights = factor[:, None].expand(lines.shape).flatten()
        if self.shape[0] <= _FEW_LINES:
            places = torch.arange(self.shape[0], device=lines.device)[:, None] == lines.flatten()
            return torch.where(places, weights, 0.0) @ left
        total = torch.zeros(self.shape, dtype=torch.float64, device=left.device)
        return total.index_add_(0, lines.flatten(), left * weights[:, None])


class EmbeddingCall(Call):
    """``torch.nn.functional.embedding``."""

    gradient_of = _Lookup
