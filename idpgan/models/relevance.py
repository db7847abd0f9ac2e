"""How much each pixel matters, from PUBLIC images only, and how noise is allotted by it.

Layer-wise relevance propagation (LRP) distributes the score of a network over its pixels, layer by layer. IDP-GAN gives
less noise to relevant pixels (introduction; Phan et al. 2017). Relevance from private images would be a release of its
own that nobody has paid for, so private images must never be passed to a function of this file.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from idpgan.errors import InputError

MOST_BINS = 32
_STABILISER = 1e-6  # of the epsilon rule, relative to the largest activation
_LINEAR = (nn.Linear, nn.Conv2d, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d)
_PASSED = (nn.ReLU, nn.LeakyReLU, nn.Identity, nn.Dropout)  # relevance goes through unchanged


def propagate_relevance(network: nn.Sequential, images: Tensor, labels: Tensor) -> Tensor:
    r"""Distribute the score of each image's own class over its pixels.

    The epsilon rule of `Bach et al. (2015), Eq. (58) <https://doi.org/10.1371/journal.pone.0130140>`_, from the last
    layer to the first: ``R_i = a_i * sum_j w_ij R_j / (z_j + eps sign z_j)``, with z_j the output of neuron j, its
    bias included. Without biases the relevance of all pixels sums to the score.

    Args:
        network: Linear layers, convolutions, pooling, ReLU or LeakyReLU, Flatten; its output are logits (B, K).
        images: Public images, (B, C, H, W) in [-1, 1].
        labels: (B,) int64 in [0, K).

    Returns:
        Relevance, the shape of `images`; either sign.

    Raises:
        InputError: If the network holds another kind of layer: no rule is guessed.
    """
    inputs = [images]
    with torch.no_grad():
        for layer in network:
            if not isinstance(layer, (*_LINEAR, *_PASSED, nn.Flatten)):
                raise InputError(f"relevance has no rule for a layer of kind {type(layer).__name__}.")
            inputs.append(layer(inputs[-1]))
    logits = inputs.pop()
    chosen = torch.nn.functional.one_hot(labels, logits.shape[1])
    relevance = logits * chosen  # (B, K)
    for layer, activation in zip(reversed(network), reversed(inputs), strict=True):
        if isinstance(layer, _LINEAR):
            relevance = _through_linear(layer, activation, relevance)
        relevance = relevance.reshape(activation.shape)
    return relevance


def _through_linear(layer: nn.Module, activation: Tensor, relevance: Tensor) -> Tensor:
    """One step of the epsilon rule, as activation times gradient (Montavon et al. 2019, section 10.3)."""
    leaf = activation.detach().requires_grad_()
    with torch.enable_grad():
        outputs = layer(leaf)
        stabiliser = _STABILISER * outputs.detach().abs().max().clamp(min=1e-30)
        sign = torch.where(outputs >= 0, 1.0, -1.0)
        ratio = (relevance / (outputs + stabiliser * sign)).detach()
        (gradient,) = torch.autograd.grad((outputs * ratio).sum(), leaf)
    return activation * gradient


def mean_relevance(network: nn.Sequential, images: Tensor, labels: Tensor, batch_size: int = 500) -> Tensor:
    """Average the relevance of each pixel over public images, at least one: float64 (C, H, W), either sign."""
    if len(images) == 0:
        raise InputError("relevance needs public images: set data.public_share, or data.public_root.")
    total = torch.zeros(images.shape[1:], dtype=torch.float64, device=images.device)
    for batch, batch_labels in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        total += propagate_relevance(network, batch, batch_labels).double().sum(0)
    return total / len(images)


def allocate(relevance: Tensor, floor: float) -> tuple[float, ...]:
    """Turn relevance into the divisors beta_j of the noise scale: ``beta_j = n r_j / sum r``.

    ``r_j = max(|relevance_j|, floor * mean |relevance|)``: relevance has no unit, so the floor is relative to its mean.

    Args:
        relevance: Any shape with n numbers.
        floor: In (0, 1]; 1 lifts every pixel below the average to it.

    Returns:
        n numbers > 0 whose sum is n, in the order of ``relevance.flatten()``.

    Raises:
        InputError: If the floor is out of range, or the relevance is zero everywhere or not finite.
    """
    if not 0 < floor <= 1:
        raise InputError(f"the floor of the relevance = {floor} must lie in (0, 1]: a pixel of none would lose itself.")
    size = relevance.detach().double().flatten().abs()
    mean = size.mean().item()
    if not 0 < mean < math.inf:
        raise InputError(f"the mean relevance of the public images is {mean}: nothing can be allotted by it.")
    size = size.clamp(min=floor * mean)
    beta = size * (len(size) / size.sum())
    return tuple(beta.tolist())


def bin_allocation(beta: Sequence[float], most_bins: int = MOST_BINS) -> tuple[tuple[float, int], ...]:
    """Group the divisors beta_j > 0 into a few geometric bins, each stated by its largest member: rounded up.

    A larger divisor is less noise, so pricing a pixel at its bin's largest divisor never prices it too low. Afterwards
    the sum exceeds n by the rounding.

    Returns:
        (largest divisor, number of pixels) per bin that is not empty, ascending.
    """
    values = sorted(beta)
    if not values or not 0 < values[0] <= values[-1] < math.inf:
        raise InputError("the divisors of the noise scale must be positive and finite.")
    width = math.log(values[-1] / values[0]) / most_bins
    bins: dict[int, list[float]] = {}
    for value in values:
        number = min(int(math.log(value / values[0]) / width), most_bins - 1) if width > 0 else 0
        bins.setdefault(number, []).append(value)
    return tuple((members[-1], len(members)) for members in bins.values())
