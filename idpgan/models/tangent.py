r"""Adapters in a tangent space: what a record's clip bounds and noise moves is the weight, not two factors of a change.

Let W be the weight of a layer as a matrix (m, n), and Q (m, R), P (n, R) the orthonormal columns of its R largest
singular vectors: ``Q S P^T`` is the point of rank R that is nearest to W. Matrices of rank R move from there, to first
order, by

.. math:: Q X + (I - Q Q^T) Y P^T, \quad X \in (R, n),\ Y \in (m, R)

(Vandereycken 2013, "Low-rank matrix completion by Riemannian optimization", section 2). The layer learns X and Y.

**Norm.** A record's gradient G in W is ``(Q^T G, (I - Q Q^T) G P)`` in X and Y. The sum of their squared norms is
``||Q Q^T G||^2 + ||(I - Q Q^T) G P P^T||^2``, the squared norm of the projection of G onto the tangent space, since Q
and P are orthonormal and both parts are orthogonal to each other. So to clip in X and Y is to clip what a record does
to the weight. Factors B, A of a product give a record the gradients ``G A^T`` and ``B^T G``, which grow with the other
factor: the same change of the weight has another clip and other noise for ``2 B, A / 2``. **Sensitivity.** Q and P are
constants of the public network, X and Y weights like others: the proof of `idpgan.privacy.dpsgd` holds as it is. Noise
on X and Y is noise of one size in each direction of the tangent space; what of Y lies along Q, the layer drops.

After PRISM (2026, arXiv 2606.00944), which moves the point along with the training: docs/reference/deviations.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Tangent(nn.Module):
    """A layer, frozen, and beside it a change of its weight in the tangent space at its best approximation of rank R.

    Args:
        layer: A linear layer, or a convolution in one group, with its final weight.
        rank: R.

    Attributes:
        left: Q, not trained; (m, R), or (m, R, 1, 1) for a convolution.
        right: P^T, not trained; R rows of the shape of one of the layer.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int) -> None:
        super().__init__()
        self.layer = layer
        weight = layer.weight
        left, _, right = torch.linalg.svd(weight.detach().flatten(1).double(), full_matrices=False)
        ones = (1,) * (weight.ndim - 2)
        self.left = nn.Parameter(left[:, :rank].to(weight).reshape(-1, rank, *ones), requires_grad=False)
        self.right = nn.Parameter(right[:rank].to(weight).reshape(rank, *weight.shape[1:]), requires_grad=False)
        self.wide = nn.Parameter(torch.zeros_like(self.right))  # X
        self.tall = nn.Parameter(torch.zeros_like(self.left))  # Y

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

    def settle(self) -> None:
        """Drop what of Y lies along Q, which the layer does not see: the `factors` are then copies of what is there."""
        left, tall = self.left.detach().flatten(1), self.tall.detach()
        outside = tall.flatten(1) - left @ (left.T @ tall.flatten(1))
        self.tall = nn.Parameter(outside.view_as(tall), requires_grad=self.tall.requires_grad)

    def merged(self) -> nn.Module:
        """Return the layer with the change in its weight."""
        self.settle()
        down, up = factors(self.left.detach(), self.right, self.wide.detach(), self.tall.detach())
        self.layer.weight.data += torch.tensordot(up.flatten(1), down, 1)
        return self.layer


def factors(left: Tensor, right: Tensor, wide: Tensor, tall: Tensor) -> tuple[Tensor, Tensor]:
    """Return a settled change as a product of rank 2 R, as LoRA has it: factors next to input and output."""
    return torch.cat([wide, right]), torch.cat([left, tall], 1)


def _product(inputs: Tensor, weight: Tensor) -> Tensor:
    return functional.linear(inputs, weight) if weight.ndim == 2 else functional.conv2d(inputs, weight)
