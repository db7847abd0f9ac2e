"""Adversarial examples: the smallest change that fools a classifier, and the worst change within a bound.

Both attacks see the network and its gradients (white box). They work on whole batches, on the device of the images.
Lengths are in units of the pixel range: 1 takes black to white. Networks take images in [-1, 1], where that is 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from idpgan.attacks.distances import check_attacked, floats
from idpgan.checks import whole
from idpgan.errors import InputError

Network = Callable[[Tensor], Tensor]  # images, float (B, C, H, W) in [-1, 1] -> logits (B, K), with gradients
_BATCH = 250


def pgd(
    network: Network,
    images: Tensor,
    labels: Tensor,
    *,
    radius: float = 0.3,
    steps: int = 40,
    step_size: float | None = None,
    seed: int | None = 0,
) -> Tensor:
    """Return images of higher loss within ``radius`` of each pixel: projected gradient ascent by signs.

    Madry, Makelov, Schmidt, Tsipras, Vladu 2018, "Towards deep learning models resistant to adversarial attacks",
    section 2.1: from a uniform start within the bound, ``x <- clip(x + step_size sign(grad loss))``.

    Args:
        network: The network under attack.
        images: (n, C, H, W) uint8, or floating point in [-1, 1].
        labels: (n,) int64, the true classes.
        radius: Bound on the change of a pixel, in units of the pixel range, 0 .. 1.
        steps: >= 1.
        step_size: Length of a step in the same unit; None = ``2.5 radius / steps``, enough to reach the bound from
            anywhere within it.
        seed: Seed of the random start; None starts at the image.

    Returns:
        (n, C, H, W), floating point in [-1, 1], on the device of the images.

    Raises:
        InputError: If an argument is out of range.
    """
    check_attacked(images, labels)
    whole(steps, "steps", 1, 100_000)
    size = 2.5 * radius / steps if step_size is None else step_size
    if not 0 <= radius <= 1 or not 0 <= size <= 1:
        raise InputError(f"radius = {radius} and step_size = {size} must lie in [0, 1], the pixel range being 1.")
    rng = None if seed is None else torch.Generator(images.device).manual_seed(seed)
    parts = []
    for batch, truth in zip(images.split(_BATCH), labels.to(images.device).split(_BATCH), strict=True):
        attacked = clean = floats(batch)
        low, high = (clean - 2 * radius).clamp(min=-1), (clean + 2 * radius).clamp(max=1)
        if rng is not None:
            start = torch.rand(clean.shape, generator=rng, device=clean.device)
            attacked = low + (high - low) * start
        for _ in range(steps):
            attacked = attacked.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(cross_entropy(network(attacked), truth, reduction="sum"), attacked)
            attacked = torch.maximum(torch.minimum(attacked.detach() + 2 * size * gradient.sign(), high), low)
        parts.append(attacked.detach())
    return torch.cat(parts)


@dataclass(frozen=True)
class Fooled:
    """What DeepFool found.

    Attributes:
        images: (n, C, H, W), floating point on the scale of [-1, 1], not clipped to it.
        lengths: (n,) L2 length of the change, in units of the pixel range.
        norms: (n,) L2 norm of the clean images with black at 0 and white at 1.
        success: (n,) bool, whether the class changed.
        steps: (n,) int64, steps taken.
    """

    images: Tensor
    lengths: Tensor
    norms: Tensor
    success: Tensor
    steps: Tensor

    @property
    def robustness(self) -> float:
        """Rho of the paper: the mean of length / norm, over fooled images that are not black; NaN if there are none."""
        counted = self.success & (self.norms > 0)
        return float((self.lengths[counted] / self.norms[counted]).mean())


def deepfool(network: Network, images: Tensor, *, steps: int = 50, overshoot: float = 0.02) -> Fooled:
    """Find nearly the least change, in L2, that changes each image's class.

    Moosavi-Dezfooli, Fawzi, Frossard 2016, "DeepFool: a simple and accurate method to fool deep neural networks",
    Algorithm 2: step to the nearest boundary of the linearized network until the class changes, then ``overshoot``
    beyond. For a linear network the first step is exact.

    Args:
        network: The network under attack; at least 2 classes.
        images: (n, C, H, W) uint8, or floating point in [-1, 1].
        steps: Largest number of steps, >= 1.
        overshoot: eta of the paper, >= 0.

    Raises:
        InputError: If an argument is out of range.
    """
    check_attacked(images, None)
    whole(steps, "steps", 1, 100_000)
    if not 0 <= overshoot <= 1:
        raise InputError(f"overshoot = {overshoot} must lie in [0, 1].")
    parts = []
    for clean in map(floats, images.split(_BATCH)):
        with torch.no_grad():
            first = network(clean).argmax(1)
        change = torch.zeros_like(clean)
        taken = torch.zeros(len(clean), dtype=torch.int64, device=clean.device)
        active = torch.arange(len(clean), device=clean.device)
        for _ in range(steps):
            change[active] += _nearest_boundary(network, clean[active] + change[active], first[active])
            taken[active] += 1
            with torch.no_grad():
                now = network(clean[active] + (1 + overshoot) * change[active]).argmax(1)
            active = active[now == first[active]]
            if len(active) == 0:
                break
        attacked = clean + (1 + overshoot) * change
        success = torch.ones(len(clean), dtype=torch.bool, device=clean.device)
        success[active] = False
        lengths = (attacked - clean).flatten(1).norm(dim=1) / 2
        parts.append((attacked, lengths, ((clean + 1) / 2).flatten(1).norm(dim=1), success, taken))
    return Fooled(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _nearest_boundary(network: Network, images: Tensor, classes: Tensor) -> Tensor:
    """Return the step to the nearest boundary of the linearized network: ``|f_l| / |w_l|^2 w_l``, l nearest."""
    images = images.detach().requires_grad_(True)
    logits = network(images)
    gradients = torch.stack(
        [torch.autograd.grad(logit.sum(), images, retain_graph=True)[0] for logit in logits.unbind(1)], 1
    ).flatten(2)  # (B, K, D)
    logits, rows = logits.detach(), torch.arange(len(images), device=images.device)
    gaps = logits - logits[rows, classes][:, None]
    slopes = gradients - gradients[rows, classes][:, None]
    squares = slopes.square().sum(2)
    distances = gaps.abs() / squares.sqrt()
    distances[rows, classes] = torch.inf
    nearest = distances.nan_to_num(nan=torch.inf).argmin(1)
    length = gaps[rows, nearest].abs() / squares[rows, nearest].clamp(min=1e-30)
    # On a boundary the gap is 0, and so would be the step: add the smallest one that floating point resolves.
    length = length + 1e-6 / squares[rows, nearest].clamp(min=1e-12).sqrt()
    return (length[:, None] * slopes[rows, nearest]).view_as(images).detach()


def accuracy(network: Network, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that the network classifies correctly; images as in `pgd`, attacked or not."""
    check_attacked(images, labels)
    with torch.no_grad():
        right = [
            int((network(floats(part)).argmax(1) == part_labels.to(part.device)).sum())
            for part, part_labels in zip(images.split(_BATCH), labels.split(_BATCH), strict=True)
        ]
    return sum(right) / len(images)
