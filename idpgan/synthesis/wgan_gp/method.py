"""WGAN-GP (improved WGAN) without any privacy: the reference that the private methods are compared with.

`Gulrajani et al. (2017) <https://arxiv.org/abs/1704.00028>`_, as the base of seed 004. Deviations from that paper:

1. Learning rate 5e-4 instead of 5e-5: on MNIST it is where 1,500 critic steps come furthest (class means, one seed).
2. The generator that is released is an exponential moving average.
3. A conditional critic gets the label of each image by projection (Miyato and Koyama 2018); in a critic step the fakes
   have the labels of the reals, so an interpolate has one label. The generator step draws labels uniformly.
4. Batches are drawn with replacement, so that an index is one call on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor

from idpgan.data.images import to_float
from idpgan.data.load import DataShape, Split, place
from idpgan.models.critic import Critic
from idpgan.models.ema import Ema
from idpgan.models.families import build_generator
from idpgan.models.generator import Generator
from idpgan.models.initialize import torch_seed
from idpgan.models.losses import critic_wasserstein, generator_wasserstein, gradient_penalty, interpolate
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit
from idpgan.privacy.ledger import Budget, Ledger
from idpgan.privacy.noise import Noise, Source
from idpgan.synthesis.product import GivesGenerator
from idpgan.synthesis.wgan_gp import INFO
from idpgan.training import method
from idpgan.training.config import MethodConfig, RunConfig
from idpgan.training.method import Stats

_EVENT = Event.non_private(INFO.reason, Unit.IMAGE, Relation.REPLACE_ONE)
_PROVEN = Guarantee(float("inf"), 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "raw images are read without noise")
_REPORT = PrivacyReport(claimed=None, proven=_PROVEN, audited=None, reason=INFO.reason, private=False)
_RNG_STREAM = 2  # of training.seed; 0 and 1 are the initial weights


class WganGpConfig(MethodConfig):
    """[method] of wgan-gp.

    Attributes:
        critic_steps_per_generator_step: 5 in the paper.
        gradient_penalty: Weight lambda of the penalty, 10 in the paper (seed 004, eq. 5).
        learning_rate: Of Adam, for both networks.
        beta1: Decay of Adam's first moment.
        beta2: Decay of Adam's second moment.
        l2: Weight of the L2 term ``l2 / 2 * ||w||^2`` on both networks (seed 004, section 3.1, without a value).
        ema_decay: Weight of the past in the averaged generator; 0 releases the newest weights.
    """

    name: Literal["wgan-gp"] = "wgan-gp"
    critic_steps_per_generator_step: int = Field(5, ge=1)
    gradient_penalty: float = Field(10.0, ge=0)
    learning_rate: float = Field(5e-4, gt=0)
    beta1: float = Field(0.0, ge=0, lt=1)
    beta2: float = Field(0.9, ge=0, lt=1)
    l2: float = Field(1e-5, ge=0)
    ema_decay: float = Field(0.999, ge=0, lt=1)


class Config(RunConfig):
    """A whole config file of wgan-gp."""

    method: WganGpConfig = WganGpConfig()

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`; nothing is promised, so there is no target."""
        return Unit.IMAGE, Relation.REPLACE_ONE, None

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`."""
        return (_EVENT.repeated(self.training.steps),)

    def report(
        self, shape: DataShape, events: Sequence[Event], proven: Guarantee, noise: Sequence[Source]
    ) -> PrivacyReport:
        """See `RunConfig.report`."""
        return _REPORT


class WganGp(GivesGenerator):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        config: The run's config.
        split: Only its private part is read, without its null records.
        ledger: Made with ``config.ledger_terms()``; `prepare` reads nothing, so it charges nothing.
        device: Where networks, data and random numbers live.

    Attributes:
        generator: The averaged generator, in eval mode.
        newest: The generator that is trained.
        critic: The critic.

    Raises:
        ConfigError: If the images have a shape that no network is built for, or labels are asked for and missing.
    """

    def __init__(self, config: Config, split: Split, *, ledger: Ledger, device: torch.device) -> None:
        config.check(split.shape)
        self.config = config.method
        self.batch_size = config.training.batch_size
        self.device = device
        self._images = place(split.private.existing(), device)
        seed, classes = config.training.seed, split.classes
        self.newest = build_generator(config.model, split.image_shape, len(classes), seed=seed).to(device)
        self.newest.classes = classes if self.newest.num_classes else ()
        self.critic = Critic(config.model, split.image_shape, len(classes), seed=seed).to(device)
        self.ema = Ema(self.newest, self.config.ema_decay)
        self.generator = cast(Generator, self.ema.module)
        self._rng = torch.Generator(device).manual_seed(torch_seed(seed, _RNG_STREAM))
        self._critic_optimizer = self._adam(self.critic)
        self._generator_optimizer = self._adam(self.newest)

    def prepare(self) -> None:
        """Nothing is read once for all."""

    @property
    def noises(self) -> tuple[Noise, ...]:
        """No step draws secret noise."""
        return ()

    def step_event(self) -> Event:
        """Every critic step reads raw images."""
        return _EVENT

    def paid_ahead(self, step: int) -> tuple[Event, ...]:
        """Every step pays for itself."""
        return ()

    def step(self, step: int) -> Stats:
        """See `Method.step`; the generator's turn is after ``critic_steps_per_generator_step`` critic steps."""
        stats = self.critic_step(step)
        if step % self.config.critic_steps_per_generator_step == 0:
            stats |= self.generator_step(step)
        return stats

    def critic_step(self, step: int) -> Stats:
        """Minimize ``E[D(G(z))] - E[D(x)] + lambda E[(||grad D(x^)|| - 1)^2]`` (seed 004, eq. 5) by one Adam step."""
        real, labels = self._real_batch()
        with torch.no_grad():
            fake = self.newest(self._latents(), labels)  # (B, C, H, W)
        alpha = torch.rand(self.batch_size, generator=self._rng, device=self.device)
        penalty = gradient_penalty(lambda images: self.critic(images, labels), interpolate(real, fake, alpha)).mean()
        distance = critic_wasserstein(self.critic(real, labels), self.critic(fake, labels))
        loss = distance + self.config.gradient_penalty * penalty

        self._critic_optimizer.zero_grad()
        loss.backward(inputs=list(self.critic.parameters()))  # not the interpolates, which are leaves too
        self._critic_optimizer.step()
        return {"critic_loss": loss.detach(), "wasserstein": -distance.detach(), "gradient_penalty": penalty.detach()}

    def generator_step(self, step: int) -> Stats:
        """Minimize ``-E[D(G(z))]`` by one Adam step, and move the average."""
        loss = generator_wasserstein(self.critic(*self._fake_batch()))
        self._generator_optimizer.zero_grad()
        loss.backward(inputs=list(self.newest.parameters()))  # leaves no gradient on the critic
        self._generator_optimizer.step()
        self.ema.update(self.newest)
        return {"generator_loss": loss.detach()}

    def privacy(self) -> PrivacyReport:
        """Nothing is claimed, nothing is proven."""
        return _REPORT

    def state(self) -> dict[str, Any]:
        """Return networks, optimizers, average and random state."""
        return {
            "generator": self.newest.state_dict(),
            "critic": self.critic.state_dict(),
            "ema": self.ema.state(),
            "generator_optimizer": self._generator_optimizer.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "rng": self._rng.get_state(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self.newest.load_state_dict(state["generator"])
        self.critic.load_state_dict(state["critic"])
        self.ema.load_state(state["ema"])
        self._generator_optimizer.load_state_dict(state["generator_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._rng.set_state(state["rng"])

    def _adam(self, network: torch.nn.Module) -> torch.optim.Adam:
        """Adam with the L2 term inside the gradient; fused: one call per step, not one per tensor."""
        betas = (self.config.beta1, self.config.beta2)
        return torch.optim.Adam(
            network.parameters(), lr=self.config.learning_rate, betas=betas, weight_decay=self.config.l2, fused=True
        )

    def _latents(self) -> Tensor:
        """Draw (B, latent_dim) standard normal numbers."""
        return torch.randn(self.batch_size, self.newest.latent_dim, generator=self._rng, device=self.device)

    def _real_batch(self) -> tuple[Tensor, Tensor | None]:
        """Draw B private images with replacement: (B, C, H, W) in [-1, 1], and their labels if they are used."""
        index = torch.randint(len(self._images), (self.batch_size,), generator=self._rng, device=self.device)
        batch = self._images.select(index).to(self.device)
        return to_float(batch.images), batch.labels if self.newest.num_classes else None

    def _fake_batch(self) -> tuple[Tensor, Tensor | None]:
        """Generate B images with uniform labels; gradients flow."""
        classes, labels = self.newest.num_classes, None
        if classes:  # uniform: the private class frequencies are not the generator's to know
            labels = torch.randint(classes, (self.batch_size,), generator=self._rng, device=self.device)
        return self.newest(self._latents(), labels), labels


Method: Callable[..., method.Method] = WganGp
