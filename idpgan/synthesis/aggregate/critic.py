"""Critics of `idp-gan-aggregate`: of the real images they see only noisy sums.

A critic compares mean embeddings of generated images, (K, D), with the released ones: ``learn(fake)`` moves it towards
telling them apart, and ``score(fake)``, 0-d and differentiable, says how real they look; the generator maximizes it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from idpgan.models.initialize import seeded_init, torch_seed
from idpgan.models.losses import critic_wasserstein, gradient_penalty, interpolate
from idpgan.models.optimizers import Adam
from idpgan.training.method import Saved, Stats

_FLOOR = 1e-5  # of the metric, so that directions without variance do not blow up


class LinearCritic:
    """The witness of a mean-embedding match: ``w = M (target - average of fakes)``, ``score = 2 w . fake``.

    With M = 1 this is DP-MERF (Harder, Adamczewski, Park 2021), whose loss is the squared distance of the means; the
    average over steps makes up for small batches. M = lambda (C + lambda)^-1, C the covariance of the embedding within
    a class (of *public* or of *generated* images), has eigenvalues in (0, 1]: directions that vary much within a class
    count less.

    Args:
        target: (K, P, D) released means, post-processed.
        decay: Weight of the past in the average of the fakes.
    """

    def __init__(self, target: Tensor, decay: float) -> None:
        self.target, self.decay = target, decay
        self.average = torch.zeros_like(target)
        self.metric: Tensor | None = None
        self.steps = 0

    def learn(self, fake: Tensor) -> Stats:
        """Let the average of the fakes follow ``fake``, (K, P, D) without gradient."""
        decay = min(self.decay, self.steps / (self.steps + 5))
        self.steps += 1
        self.average.lerp_(fake, 1 - decay)
        difference = self.target - self.average
        return {"distance": difference.square().sum() / len(difference)}

    @property
    def witness(self) -> Tensor:
        """The direction in which real images lie from generated ones, (K, P, D)."""
        witness = self.target - self.average
        return witness if self.metric is None else witness @ self.metric

    def score(self, fake: Tensor) -> Tensor:
        """Return how far ``fake`` lies along the witness."""
        return 2 * (self.witness * fake).sum()

    def set_metric(self, vectors: Tensor, labels: Tensor, noise: float) -> None:
        """Whiten by the within-class covariance of public or generated images, (N, D) with labels in [0, K).

        ``noise`` is the variance of the noise on a released mean, times the number of images that count as one
        direction.
        """
        centers = torch.zeros(len(self.target), vectors.shape[1], device=vectors.device).index_add_(0, labels, vectors)
        centers /= torch.bincount(labels, minlength=len(self.target)).clamp(min=1)[:, None]
        spread = vectors - centers[labels]
        floor = noise + _FLOOR
        covariance = spread.T @ spread / len(spread)
        covariance.diagonal().add_(floor)
        self.metric = floor * torch.cholesky_inverse(torch.linalg.cholesky(covariance))

    def state(self) -> dict[str, Any]:
        """Return what `load_state` needs."""
        return {"average": self.average, "metric": self.metric, "steps": self.steps}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.average = state["average"].to(self.target)
        self.metric = None if state["metric"] is None else state["metric"].to(self.target)
        self.steps = state["steps"]


class DeepCritic(Saved):
    """A network on noisy group means, trained as WGAN-GP's critic. Fakes come with the same noise and group size.

    A critic that is not linear in the sums sees the noise itself: without equal noise on the fakes it would learn to
    tell noisy from clean.

    Args:
        groups: (K, G, D) released means of G groups per class.
        noise_std: Standard deviation of the noise on a released group mean, per number.
        seed: Of the weights, and of what is drawn while training.
        learning_rate: Of Adam.
    """

    SAVED = ("network", "optimizer", "rng")

    def __init__(self, groups: Tensor, noise_std: float, *, seed: int, learning_rate: float) -> None:
        self.classes, self.per_class, dimensions = groups.shape
        self.groups, self.noise_std = groups, noise_std
        with seeded_init(seed, 7):
            self.network = nn.Sequential(
                nn.Linear(dimensions + self.classes, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2),
                nn.Linear(256, 1),
            ).to(groups.device)  # fmt: skip
        self.scale = 1 / groups.norm(dim=2).mean().clamp(min=1e-6)  # inputs of length about 1
        self.one_hot = torch.eye(self.classes, device=groups.device)
        self.rng = torch.Generator(groups.device).manual_seed(torch_seed(seed, 8))
        self.optimizer = Adam(self.network.parameters(), learning_rate, betas=(0.0, 0.9))

    def learn(self, fake: Tensor) -> Stats:
        """Take one step of WGAN-GP on one group of each class."""
        chosen = torch.randint(self.per_class, (self.classes,), generator=self.rng, device=fake.device)
        real = self.groups[torch.arange(self.classes, device=fake.device), chosen]
        noisy = self._noisy(fake)
        alpha = torch.rand(self.classes, generator=self.rng, device=fake.device)
        penalty = gradient_penalty(self._scores, interpolate(real, noisy, alpha)).mean()
        distance = critic_wasserstein(self._scores(real), self._scores(noisy))
        loss = distance + 10 * penalty
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"critic_loss": loss.detach(), "wasserstein": -distance.detach()}

    def score(self, fake: Tensor) -> Tensor:
        """Return the mean score of ``fake``, as noisy as the groups."""
        return self._scores(self._noisy(fake)).mean()

    def _noisy(self, fake: Tensor) -> Tensor:
        noise = torch.randn(fake.shape, generator=self.rng, device=fake.device)
        return fake + self.noise_std * noise

    def _scores(self, means: Tensor) -> Tensor:
        scores: Tensor = self.network(torch.cat([means * self.scale, self.one_hot], dim=1))
        return scores[:, 0]
