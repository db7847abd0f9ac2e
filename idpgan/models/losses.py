"""The losses, one equation per function. Scores are (B,), images (B, C, H, W); no function reduces over pixels.

Those of IDP-GAN are from Yang Yunlu, Zhou Yajian, Ning Hua, "Image Data Mining Method Supporting Differential Privacy".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

OutputLoss = Literal["cross-entropy", "squared-error"]  # of an output z with target y, as far as order 2
ORDERS: Mapping[OutputLoss, tuple[float, float]] = {  # weights of (1/2 - y) z and of z^2
    "cross-entropy": (1.0, 1 / 8),
    "squared-error": (2.0, 1 / 2),
}


def critic_wasserstein(real_scores: Tensor, fake_scores: Tensor) -> Tensor:
    """Return ``E[D(G(z))] - E[D(x)]``: the critic's loss without the penalty (Yang, Zhou and Ning, eq. 5)."""
    return fake_scores.mean() - real_scores.mean()


def generator_wasserstein(fake_scores: Tensor) -> Tensor:
    """Return ``-E[D(G(z))]``: the generator's loss (Yang, Zhou and Ning, Algorithm 1, line 11)."""
    return -fake_scores.mean()


def interpolate(real: Tensor, fake: Tensor, alpha: Tensor) -> Tensor:
    """Return ``alpha x + (1 - alpha) G(z)`` (Yang, Zhou and Ning, below eq. 5).

    Record i of the reals is paired with record i of the fakes; ``alpha`` is one number in [0, 1] per record, (B,).
    """
    weight = alpha.view(-1, *[1] * (real.dim() - 1))  # (B, 1, 1, 1)
    return weight * real + (1 - weight) * fake


def gradient_penalty(critic: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return ``(||grad_x D(x)||_2 - 1)^2`` per record, differentiable in the critic's weights (eq. 5).

    The critic must not mix records: then the gradient of the sum of the scores holds each record's own gradient.

    Args:
        critic: Maps images (B, C, H, W) to scores (B,).
        images: Where the gradient is taken, usually `interpolate` of reals and fakes. The penalty is not
            differentiated with respect to them.

    Returns:
        (B,), >= 0. Where the gradient is exactly zero the penalty is 1 and pulls nowhere.
    """
    inputs = images.detach().requires_grad_()
    (gradients,) = torch.autograd.grad(critic(inputs).sum(), inputs, create_graph=True)  # (B, C, H, W)
    return (torch.linalg.vector_norm(gradients.flatten(1), dim=1) - 1).square()


def taylor_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    r"""Return the cross-entropy of M sigmoid outputs, expanded to order 2 at z = 0, per record.

    ``sum_l [ log 2 + (1/2 - y_l) z_l + z_l^2 / 8 ]``: eq. 10-11 of the paper with their sign errors corrected, from
    ``log(1 + e^-z) = log 2 - z/2 + z^2/8 + O(z^4)``. Its minimum lies at ``z = 4 (y - 1/2)``.

    ``outputs`` are z, (B, M); ``targets`` y in [0, 1], (B, M). At y = 1/2 the order-1 term vanishes.
    """
    return (math.log(2) + (0.5 - targets) * outputs + outputs.square() / 8).sum(1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the squared error of M outputs, ``sum_l (z_l - (2 y_l - 1))^2 / 2``, per record, in that same form.

    A polynomial already (Yang, Zhou and Ning, below eq. 9: "such as the squared error"), so no expansion leaves an
    error: ``sum_l [ (2 y_l - 1)^2 / 2 + 2 (1/2 - y_l) z_l + z_l^2 / 2 ]``. Its minimum lies at ``z = 2 y - 1``.
    Arguments are those of `taylor_cross_entropy`.
    """
    return (outputs - (2 * targets - 1)).square().sum(1) / 2


OUTPUT_LOSSES: Mapping[OutputLoss, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": taylor_cross_entropy,
    "squared-error": squared_error,
}


def taylor_coefficients(features: Tensor, targets: Tensor, loss: OutputLoss = "cross-entropy") -> tuple[Tensor, Tensor]:
    """Return the coefficients of a loss as a polynomial in the last weights (eq. 11).

    Args:
        features: h, (B, d) in [-1, 1].
        targets: y, (B, M).

    Returns:
        Order 1, ``a (1/2 - y_il) h_i``: (B, M, d). Order 2, ``b h_i h_i^T``: (B, d, d), the same for every output; a
        and b are the loss' `ORDERS`.
    """
    a, b = ORDERS[loss]
    first = a * (0.5 - targets).unsqueeze(2) * features.unsqueeze(1)
    return first, b * features.unsqueeze(2) * features.unsqueeze(1)


def taylor_polynomial(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """Return ``sum_l [ first_l . w_l + w_l^T second_l w_l ]``, 0-d (Algorithm 1, line 8, without its constant).

    It is linear in the coefficients: the noisy loss is the loss plus this polynomial of the noise alone. ``first``,
    (M, d), and ``second``, (M, d, d), are coefficients summed over records; ``weight`` is (M, d).
    """
    return (first * weight).sum() + torch.einsum("ma,mab,mb->", weight, second, weight)


def taylor_sensitivity(num_outputs: int, num_features: int, loss: OutputLoss = "cross-entropy") -> float:
    """Return DF, ``M (a d + 2 b d^2)``: the paper's ``M (|h_k| + |h_k|^2 / 4)`` (below eq. 11) of the cross-entropy.

    An upper bound on the L1 change of all M (d + d^2) coefficients when one record is replaced, for features in
    [-1, 1] and targets in [0, 1]: ``(1/2 - y) h`` lies in [-1/2, 1/2], so an order-1 number changes by at most a, and
    ``h h'`` in [-1, 1], so one of order 2 changes by at most 2 b. The squared error has ``M (2 d + d^2)``.
    """
    a, b = ORDERS[loss]
    return num_outputs * (a * num_features + 2 * b * num_features**2)


def taylor_curvature(second: Tensor, l2: float) -> Tensor:
    """Return the smallest curvature of the loss along each output's weights; below 0 the loss is unbounded below.

    Args:
        second: Order-2 coefficients of the loss as it is minimized, noise included, (M, d, d), symmetric.
        l2: Weight of the term ``l2 / 2 ||w||^2``.

    Returns:
        Smallest eigenvalue of ``second + l2 / 2 I``, (M,).
    """
    return torch.linalg.eigvalsh(second)[:, 0] + l2 / 2
