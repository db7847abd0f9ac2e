"""WGAN-GP (improved WGAN) without any privacy: the reference that the private methods are compared with.

`Gulrajani et al. (2017) <https://arxiv.org/abs/1704.00028>`_, the base of IDP-GAN. What differs:
docs/reference/deviations.md, WGAN-GP 1 to 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.config import key
from idpgan.data.images import to_float
from idpgan.data.load import Split, place
from idpgan.models.checkpoint import build_critic
from idpgan.models.losses import critic_wasserstein, generator_wasserstein, gradient_penalty, interpolate
from idpgan.privacy.event import Event
from idpgan.ranks import Ranks
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis import product
from idpgan.synthesis.networks import AdamSettings, Networks
from idpgan.training import method
from idpgan.training.config import ReleaseConfig, settings
from idpgan.training.distributed import sum_over_ranks
from idpgan.training.method import Stats, refuse_small_shares
from idpgan.training.plan import RunPlan

_RNG_STREAM = 2  # of training.seed; 0 and 1 are the initial weights


Settings = settings(
    "wgan-gp",
    method=[
        {
            "critic_steps_per_generator_step": key(int, 5, "5 in the paper.", ge=1),
            "gradient_penalty": key(float, 10.0, "Weight lambda of the penalty, 10 in the paper.", ge=0),
            "learning_rate": key(float, 5e-4, "Of Adam, for both networks.", gt=0),
            "beta1": key(float, 0.0, "Decay of Adam's first moment.", ge=0, lt=1),
            "beta2": key(float, 0.9, "Decay of Adam's second moment.", ge=0, lt=1),
            "l2": key(
                float,
                1e-5,
                "Weight of the L2 term ``l2 / 2 * ||w||^2`` on both networks (Yang, Zhou and Ning, section 3.1, no "
                "value).",
                ge=0,
            ),
            "ema_decay": key(
                float, 0.999, "Weight of the past in the averaged generator; 0 releases the newest weights.", ge=0, lt=1
            ),
        }
    ],
)


class Plan(RunPlan):
    """The plan of a run of wgan-gp; the critic may be the user's."""

    OWN_CRITIC = "any"


class Method(method.Method):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        split: Only its private part is read, without its null records.
        ledger: Charged by the loop, for reads without a proof.

    Attributes:
        generator: The averaged generator, in eval mode.
        newest: The generator that is trained.
        rows: Images of a batch that this process draws: all of them, or its rank's share.

    Raises:
        ConfigError: If the images have a shape that no network is built for, or labels are asked for and missing.
    """

    SAVED = ("networks",)

    plan: Plan

    def _set_up(self, split: Split) -> None:
        config = self.plan.config
        self.batch_size = config.training.batch_size
        self.rows = self.batch_size
        self._images = place(split.private.existing(least=1), self.device)
        critic = build_critic(config.model, split.image_shape, len(split.classes), seed=config.training.seed)
        self.critic = critic.to(self.device)
        self.networks = Networks(
            config,
            split.shape,
            self.critic,
            device=self.device,
            adam=AdamSettings.of(self.config),
            ema_decay=self.config.ema_decay,
            stream=_RNG_STREAM,
        )
        self.newest, self.generator = self.networks.newest, self.networks.average

    def share_steps(self, ranks: Ranks) -> None:
        """Let each rank take its share of every batch; see `SharesSteps`."""
        refuse_small_shares(self.batch_size, "training.batch_size", ranks)
        self.networks.ranks, self.rows = ranks, ranks.rows(self.batch_size)

    def _mean(self, values: Tensor) -> Tensor:
        """Return the mean of one value per image over the images of all ranks, 0-d; see `sum_over_ranks`."""
        return sum_over_ranks(values.mean() * (self.rows / self.batch_size), self.networks.ranks)

    def step_event(self) -> Event | None:
        """Every critic step reads raw images."""
        return self.plan.raw_read

    def step(self, step: int) -> Stats:
        """Take a critic step; the generator's turn is after ``critic_steps_per_generator_step`` of them."""
        stats = self.critic_step(step)
        if step % self.config.critic_steps_per_generator_step == 0:
            stats |= self.generator_step(step)
        return stats

    def critic_step(self, step: int) -> Stats:
        """Minimize ``E[D(G(z))] - E[D(x)] + lambda E[(||grad D(x^)|| - 1)^2]`` by one Adam step."""
        real, labels = self._real_batch()
        with torch.no_grad():
            fake = self.newest(self.networks.latents(self.rows, self.networks.own_rng()), labels)  # (B, C, H, W)
        alpha = torch.rand(self.rows, generator=self.networks.own_rng(), device=self.device)
        mixed = interpolate(real, fake, alpha)
        penalty = self._mean(gradient_penalty(lambda images: self.critic(images, labels), mixed))
        distance = self._mean(critic_wasserstein(self.critic(real, labels), self.critic(fake, labels)))
        loss = distance + self.config.gradient_penalty * penalty
        self.networks.step_critic(loss)
        return {"critic_loss": loss.detach(), "wasserstein": -distance.detach(), "gradient_penalty": penalty.detach()}

    def generator_step(self, step: int) -> Stats:
        """Minimize ``-E[D(G(z))]`` by one Adam step, and move the average."""
        loss = self._mean(generator_wasserstein(self.critic(*self.networks.fakes(self.batch_size))))
        self.networks.step_generator(loss)
        return {"generator_loss": loss.detach()}

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the averaged generator."""
        return product.artifact(self.generator, self._run, config)

    def critic_scores(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return how real the critic finds images; see `HasCritic`."""
        scores: Tensor = self.critic(images, labels if self.newest.num_classes else None)
        return scores

    def _real_batch(self) -> tuple[Tensor, Tensor | None]:
        """Draw B private images with replacement: (B, C, H, W) in [-1, 1], and their labels if they are used."""
        rng = self.networks.own_rng()
        index = torch.randint(len(self._images), (self.rows,), generator=rng, device=self.device)
        batch = self._images.select(index).to(self.device)
        return to_float(batch.images), batch.labels if self.newest.num_classes else None
