r"""Per-record gradients of one weight, from the inputs and the output gradients of its layer; their exact sum.

A layer that multiplies has ``g_i = sum_r a_r x_r^T``: x_r are the R inputs of record i, a_r the gradients of the
outputs (a convolution's inputs are its patches, one per position). Every g_i is multiplied out, some records at a time,
in the precision of the weights: it becomes a row of whole numbers, and only these are added (`clip_and_add`). "Ghost
norms" (Goodfellow 2015; Li et al. 2022) never multiply g_i out, and then add parts of all records in floating point:
that sum is not a sum of one number per record, and no proof about single records holds for its last bits.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_FEW_LINES = 256  # lines of an embedding up to which a matrix product is faster than adding line by line
_BLOCK_BYTES = {"cpu": 4 << 20, "cuda": 1 << 30}  # of float64 rows held at once; a processor's cache holds them


def clip_and_add(
    gradients: Mapping[str, LayerGradient], counted: Tensor, bound: float, steps: float, total: Mapping[str, Tensor]
) -> Tensor:
    """Add the `contributions` of B records to ``total``, float64, by weight, and return their norms (B,).

    The sum is exact, in any order, while no partial sum exceeds 2^53.
    """
    norms = [torch.zeros(0, dtype=torch.float64, device=counted.device)]
    for some, rows, norm in contributions(gradients, counted, bound, steps):
        for part, (name, gradient) in zip(_parts(rows, gradients), gradients.items(), strict=True):
            gradient.add(part, some, total[name])
        norms.append(norm)
    return torch.cat(norms)


def contributions(
    gradients: Mapping[str, LayerGradient], counted: Tensor, bound: float, steps: float
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield ``trunc(steps g_i min(1, bound / ||g_i||))``, g_i being record i's gradient in all weights together.

    They are whole numbers. But for the norm, they are computed by operations that IEEE 754 defines for single numbers.

    Args:
        gradients: By weight; none for a weight that the losses do not depend on.
        counted: bool (B,); a record that is not counted, or whose gradient is not finite, contributes zero.
        bound: The norm that clipping leaves.
        steps: Grid steps per unit of a gradient.

    Yields:
        Some records, their rows (k, W) float64, which the next ones overwrite, and their norms (k,) before clipping,
        not finite where the row is zero.
    """
    for some, rows in blocks(gradients, counted):
        norm = torch.linalg.vector_norm(rows, dim=1)
        finite = norm.isfinite()
        if not bool(finite.all()):
            rows.masked_fill_(~finite[:, None], 0.0)
        factor = torch.where(finite & counted[some], (bound / norm).clamp(max=1.0) * steps, 0.0)
        yield some, rows.mul_(factor[:, None]).trunc_(), torch.where(counted[some], norm, torch.nan)


def blocks(gradients: Mapping[str, LayerGradient], counted: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield some records after the other with their gradients in all weights, (k, W) float64, W numbers each.

    Which records come together follows from shapes alone. The next block overwrites the last one.
    """
    width = sum(gradient.width for gradient in gradients.values())
    block = max(1, _BLOCK_BYTES.get(counted.device.type, 1 << 30) // (8 * max(1, width)))
    buffer = torch.empty(min(block, len(counted)), width, dtype=torch.float64, device=counted.device)
    for start in range(0, len(counted), block):
        some = slice(start, min(start + block, len(counted)))
        rows = buffer[: some.stop - some.start]
        for part, gradient in zip(_parts(rows, gradients), gradients.values(), strict=True):
            part.copy_(gradient.rows(some))
        yield some, rows


def _parts(rows: Tensor, gradients: Mapping[str, LayerGradient]) -> Sequence[Tensor]:
    return rows.split([gradient.width for gradient in gradients.values()], 1)


class LayerGradient:
    """The gradients of B records in one weight.

    Attributes:
        shape: Of the weight.
        width: Numbers in a row, the same for every record. Their L2 norm is that of the gradient.
    """

    def __init__(self, shape: torch.Size, width: int | None = None) -> None:
        self.shape, self.width = shape, shape.numel() if width is None else width

    def rows(self, some: slice) -> Tensor:
        """Return the gradients of some records, (k, width)."""
        raise NotImplementedError

    def add(self, rows: Tensor, some: slice, total: Tensor) -> None:
        """Add whole rows (k, width), float64, of some records to a sum in the shape of the weight: exact."""
        total.add_(self.arranged(rows.sum(0)))

    def arranged(self, total: Tensor) -> Tensor:
        """Return a sum of rows, (width,), in the shape of the weight."""
        return total.view(self.shape)


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
        self._calls = calls

    def rows(self, some: slice) -> Tensor:
        """See `LayerGradient`."""
        (left, right), *others = self._parts(some)
        total = torch.bmm(left, right)
        for left, right in others:
            total.baddbmm_(left, right)
        return total.view(-1, self.width)

    def arranged(self, total: Tensor) -> Tensor:
        """See `LayerGradient`."""
        # An input is in the order (row, column, channel), a weight in (channel, row, column).
        return total.reshape(self.shape[0], *self.shape[2:], self.shape[1]).movedim(-1, 1)

    def _parts(self, some: slice) -> Iterator[tuple[Tensor, Tensor]]:
        for call in self._calls:
            for left, right in call.factors(some):
                yield left.to(self._dtype), right.to(self._dtype)


class _Product(Call, ABC):
    """A call of a layer that multiplies, in G groups: ``y_r = W x_r`` for the R inputs of a record."""

    gradient_of = Outer
    groups = 1

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
    """The gradients in an embedding: a_r is added to line x_r of it. A row holds the R lines that a record uses."""

    def __init__(self, calls: Sequence[Call], weight: Tensor) -> None:
        batch = len(calls[0].inputs)
        self._lines = torch.cat([call.inputs.reshape(batch, -1) for call in calls], 1)  # (B, R)
        self._left = torch.cat([call.gradient.reshape(batch, -1, weight.shape[1]) for call in calls], 1)  # (B, R, D)
        super().__init__(weight.shape, self._left.shape[1] * weight.shape[1])

    def rows(self, some: slice) -> Tensor:
        """See `LayerGradient`; a line that a record uses several times has its whole gradient at the first of them."""
        lines, left = self._lines[some], self._left[some]
        if lines.shape[1] > 1:
            same = lines[:, :, None] == lines[:, None, :]  # (k, R, R)
            first = ~same.tril(-1).any(2, keepdim=True)
            left = torch.where(first, same.to(left.dtype) @ left, 0.0)
        return left.flatten(1)

    def add(self, rows: Tensor, some: slice, total: Tensor) -> None:
        """See `LayerGradient`."""
        lines, rows = self._lines[some].flatten(), rows.reshape(-1, self.shape[1])
        if self.shape[0] <= _FEW_LINES:
            places = torch.arange(self.shape[0], device=lines.device)[:, None] == lines
            total.add_(places.double() @ rows)
        else:
            total.index_add_(0, lines, rows)


class EmbeddingCall(Call):
    """``torch.nn.functional.embedding``."""

    gradient_of = _Lookup
