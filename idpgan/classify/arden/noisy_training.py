"""Noisy training of the cloud's part, and how the phone's part comes to its weights.

After Wang, Zhang, Bao, Zhu, Cao, Yu 2018 (ARDEN) and their public code. All of it sees public images, or what is left
of private ones after their noise.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from idpgan.data.images import Images, to_float
from idpgan.models.private_classifier import SplitCnn
from idpgan.privacy.collaborative import FeatureNoise

_BATCH, _RATE = 128, 2e-3  # of the phone's training


def falling(optimizer: torch.optim.Optimizer, peak: float, step: int, steps: int) -> None:
    """Set the learning rate of a step, counted from 1: it falls from ``peak`` to 0 along a line."""
    for group in optimizer.param_groups:
        group["lr"] = peak * (1 - (step - 1) / max(steps, 1))


def fit_phone(network: SplitCnn, public: Images, steps: int, rng: torch.Generator) -> None:
    """Train both parts on labeled public images, without noise: afterwards the phone's part is never changed."""
    optimizer, device = torch.optim.Adam(network.parameters(), _RATE), next(network.parameters()).device
    for step in range(1, steps + 1):
        falling(optimizer, _RATE, step, steps)
        batch = public.select(torch.randint(len(public), (_BATCH,), generator=rng)).to(device)
        loss = cross_entropy(network(to_float(batch.images)), cast(Tensor, batch.labels))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def noisy_loss(
    cloud: nn.Module,
    clean: Tensor,
    nullified: Tensor,
    labels: Tensor,
    channel: FeatureNoise,
    rng: torch.Generator,
    *,
    clean_weight: float,
    radius: float,
) -> Tensor:
    """Return the loss of noisy training on a public batch.

    ``lambda L(clean) + (1 - lambda) (L(noisy) + L(noisy + eta g / |g|))``, g the gradient of L(noisy) in the features.

    Args:
        cloud: Features to logits.
        clean: (B, d) features without noise.
        nullified: (B, d) features of the same images, some pixels nullified.
        labels: (B,).
        channel: The noise, drawn afresh.
        rng: Of it; public noise need not be secret.
        clean_weight: lambda in [0, 1].
        radius: eta, L2, in units of the noise's scale b; 0 leaves the last term out.
    """
    loss = clean_weight * cross_entropy(cloud(clean), labels)
    if clean_weight == 1:
        return loss
    noisy = channel.perturb_public(nullified, rng).requires_grad_(bool(radius))
    random = cross_entropy(cloud(noisy), labels)
    loss = loss + (1 - clean_weight) * random
    if radius:
        (slope,) = torch.autograd.grad(random, noisy, retain_graph=True)
        length = slope.norm(dim=1, keepdim=True).clamp(min=1e-12)
        worst = (noisy + radius * channel.scale * slope / length).detach()
        loss = loss + (1 - clean_weight) * cross_entropy(cloud(worst), labels)
    return loss


def response_loss(logits: Tensor, labels: Tensor, probabilities: tuple[float, float]) -> Tensor:
    """Return the mean negative log-likelihood of labels (B,) that went through a randomized response.

    ``p'(y) = lie + (truth - lie) p(y)``: the forward correction of Patrini et al. 2017, "Making deep neural networks
    robust to label noise".

    Args:
        logits: (B, K), of the true label.
        labels: (B,), as they were released.
        probabilities: truth and lie, see `RandomizedResponse.probabilities`.
    """
    truth, lie = probabilities
    told = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    return -(lie + (truth - lie) * told).log().mean()
