"""The losses, one equation per function. Scores are (B,), images (B, C, H, W); no function reduces over pixels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def critic_wasserstein(real_scores: Tensor, fake_scores: Tensor) -> Tensor:
    """Return ``E[D(G(z))] - E[D(x)]``: the critic's loss without the penalty (seed 004, eq. 5)."""
    return fake_scores.mean() - real_scores.mean()


def generator_wasserstein(fake_scores: Tensor) -> Tensor:
    """Return ``-E[D(G(z))]``: the generator's loss (seed 004, Algorithm 1, line 11)."""
    return -fake_scores.mean()


def interpolate(real: Tensor, fake: Tensor, alpha: Tensor) -> Tensor:
    """Return ``alpha x + (1 - alpha) G(z)`` (seed 004, below eq. 5).

    Args:
        real: Images (B, C, H, W).
        fake: Images of the same shape; record i meets record i of `real`.
        alpha: One number in [0, 1] per record, (B,).
    """
    weight = alpha.view(-1, *[1] * (real.dim() - 1))  # (B, 1, 1, 1)
    return weight * real + (1 - weight) * fake


def gradient_penalty(critic: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return ``(||grad_x D(x)||_2 - 1)^2`` per record, differentiable in the critic's weights (seed 004, eq. 5).

    The critic must not mix records: then the gradient of the sum of the scores holds each record's own gradient.

    Args:
        critic: Maps images (B, C, H, W) to scores (B,).
        images: Where the gradient is taken, usually `interpolate` of reals and fakes. The penalty is not
            differentiated with respect to them.

    Returns:
        One penalty >= 0 per record, (B,). Where the gradient is exactly zero the penalty is 1 and pulls nowhere.
    """
    inputs = images.detach().requires_grad_()
    (gradients,) = torch.autograd.grad(critic(inputs).sum(), inputs, create_graph=True)  # (B, C, H, W)
    return (torch.linalg.vector_norm(gradients.flatten(1), dim=1) - 1).square()
