r"""Adapters in a tangent space: releases of idpgan 0.3 may have some beside a pipeline. They draw, and learn no more.

With the orthonormal columns of Q (m, R) and P (n, R) the weight (m, n) of a layer changes by
``Q X + (I - Q Q^T) Y P^T`` (Vandereycken 2013, section 2). After PRISM (2026, arXiv
2606.00944), whose point moves.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Tangent(nn.Module):
    """A layer, and beside it a change of its weight in a tangent space.

    Args:
        layer: A linear layer, or a convolution in one group.
        rank: R.

    Attributes:
        left: Q, (m, R), or (m, R, 1, 1) for a convolution; likewise ``tall``, Y.
        right: P^T, R rows of the shape of one of the layer; likewise ``wide``, X.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int) -> None:
        super().__init__()
        self.layer = layer
        out, *rest = layer.weight.shape
        left, right = torch.zeros(out, rank, *(1 for _ in rest[1:])), torch.zeros(rank, *rest)
        self.left, self.right = (nn.Parameter(part, requires_grad=False) for part in (left, right))
        self.tall, self.wide = (nn.Parameter(torch.zeros_like(part)) for part in (left, right))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the layer makes of the inputs, and what the change adds."""
        tall = _product(self._seen(inputs, self.right), self.tall)
        wide = self._seen(inputs, self.wide) - _product(tall, self.left.transpose(0, 1))
        made: Tensor = self.layer(inputs) + tall + _product(wide, self.left)
        return made

    def _seen(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return what the layer would make with a weight of R rows in the place of its own."""
        if isinstance(self.layer, nn.Linear):
            return functional.linear(inputs, weight)
        layer = self.layer
        return functional.conv2d(inputs, weight, None, layer.stride, layer.padding, layer.dilation)


def factors(left: Tensor, right: Tensor, wide: Tensor, tall: Tensor) -> tuple[Tensor, Tensor]:
    """Return a change as a product of rank 2 R, as LoRA has it: factors next to input and output."""
    return torch.cat([wide, right]), torch.cat([left, tall], 1)


def _product(inputs: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(inputs, weight) if weight.ndim == 2 else functional.conv2d(inputs, weight)
