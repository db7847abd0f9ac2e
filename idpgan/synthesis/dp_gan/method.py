r"""dp-GAN: DP-SGD on the critic; the generator learns from the critic alone and costs nothing.

The baseline of seed 004 (Xie et al. 2018), with what made it good since (`Bie, Kamath, Zhang (2023), "Private GANs,
revisited" <https://arxiv.org/abs/2302.02936>`_): many critic steps per generator step, large batches, an average of
the generator. One critic step reads the records that independent coins of chance q choose, and releases

.. math:: \frac{1}{B} \Big( \sum_{i} \mathrm{clip}_C(g_i) + N(0, (\sigma C)^2 I) \Big)

with B = ``training.batch_size``, a public constant. That is the Poisson-sampled Gaussian mechanism of noise multiplier
sigma, unit image, zero-out-one (Abadi et al. 2016); an image and its label are one record.

Sensitivity. Whatever enters g_i besides the weights is record i, its label, or a coin of its own:

- ``fakes = "paired"``: g_i is the gradient of the real's *and* a fake's term, clipped together: zeroing out a
  record moves the sum by at most C. The fake has the record's label, latent numbers from the secret noise source (from
  a published seed, removing a record would shift everyone's fakes), and comes from a generator in eval mode (batch
  statistics would carry the others' labels into it).
- ``fakes = "separate"``: g_i holds the real's term only. Exactly B fakes of uniform labels are clipped likewise, for
  balance, and added without noise: given the weights, that part is the same for both neighbors.

Under "wgan-gp" the penalty's interpolate joins record i with a fake of its own and is part of g_i in both variants.

An empty batch is a step like any other: noise, charge, step. Critic steps are the only private reads; the generator's
pace follows the critic's accuracy on *fakes*, which is post-processing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from idpgan.data.images import to_float
from idpgan.data.load import Split, place
from idpgan.models.augment import NODES, move, moves_of
from idpgan.models.critic import Critic
from idpgan.models.ema import Ema
from idpgan.models.families import build_generator
from idpgan.models.generator import Generator
from idpgan.models.initialize import torch_seed
from idpgan.models.validate import validate_private_critic
from idpgan.privacy import Event, Ledger, Noise, PrivacyReport
from idpgan.synthesis.dp_gan.config import Config, DpGanConfig, DpGanPrivacy, least_noise
from idpgan.synthesis.dp_gan.noisy_optimizer import NoisyOptimizer
from idpgan.synthesis.dp_gan.per_example import (
    ClippedSum,
    CriticLoss,
    clipped_sum,
    halving_on_out_of_memory,
    poisson_sample,
)
from idpgan.synthesis.product import GivesGenerator
from idpgan.training import method
from idpgan.training.method import Stats

__all__ = ["Config", "DpGan", "DpGanConfig", "DpGanPrivacy", "Method", "least_noise"]

_RNG_STREAM = 9  # of training.seed; 0 and 1 are the initial weights
_SCORE_BATCH = 1000
_PACE_GROWTH = 1.5
_MOST_PACE = 256
_ACCURACY_MEMORY = 0.9  # weight of the past in the average accuracy on fakes


class DpGan(GivesGenerator):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        config: The run's config.
        split: Only its private part is read, in critic steps.
        ledger: The loop charges it before each critic step.
        device: Where networks and data live.
        noise: Source of coins and noise. None = AES-256-CTR on the CPU, the GPU's Philox on a GPU.

    Attributes:
        generator: The averaged generator, in eval mode.
        newest: The generator that is trained, in eval mode but for its own steps.
        critic: The critic; covered by the guarantee, but not released.
        pace: Critic steps per generator step.
        UNNOISED: See `idpgan.training.method.Method`.
        extra_loss: What the generator minimizes besides, of itself; it must read nothing private. None = nothing.

    Raises:
        ConfigError: If config and data do not fit together. No private image has been read then.
    """

    UNNOISED = ("critic_loss", "gradient_norm", "clipped_share")

    def __init__(
        self, config: Config, split: Split, *, ledger: Ledger, device: torch.device, noise: Noise | None = None
    ) -> None:
        self.config, self.privacy_config, self.training = config.method, config.privacy, config.training
        self._run, self._data = config, split.shape
        self.ledger, self.device = ledger, device
        config.check(split.shape)
        seed, classes = config.training.seed, split.classes
        self.newest = build_generator(config.model, split.image_shape, len(classes), seed=seed).to(device).eval()
        self.newest.classes = classes if self.newest.num_classes else ()
        self.critic = Critic(config.critic_model, split.image_shape, len(classes), seed=seed).to(device)
        validate_private_critic(self.critic)
        self.loss = CriticLoss(
            self.critic,
            self.config.loss,
            penalty=self.config.gradient_penalty,
            paired=self.config.fakes == "paired",
            mismatch=self.config.mismatch,
        )
        self.noise = noise or (Noise.philox(device) if device.type == "cuda" else Noise.system())
        self._images = place(split.private, device)
        self._event = config.step_event()
        self._rng = torch.Generator(device).manual_seed(torch_seed(seed, _RNG_STREAM))
        self._physical_batch = self.config.max_physical_batch
        self._frozen_statistics = False
        self.extra_loss: Callable[[Generator], Tensor] | None = None
        self.pace, self._since, self._accuracy = self.config.critic_steps_per_generator_step, 0, 1.0
        self._start_training()

    def _start_training(self) -> None:
        """Make average and optimizers for the networks as they stand."""
        self.ema = Ema(self.newest, self.config.ema_decay)
        self.generator = cast(Generator, self.ema.module)
        self._critic_optimizer = NoisyOptimizer(
            self._adam(self.critic, self.config.critic_learning_rate, self.config.critic_decay),
            noise_multiplier=self._event.noise_multiplier or 0.0,
            clip_norm=self.config.clip_norm,
            divisor=self.training.batch_size,
            noise=self.noise,
        )
        self._generator_optimizer = self._adam(self.newest, self.config.generator_learning_rate)

    def start_from(self, generator: Generator) -> None:
        """Go on from a trained generator of the same layout; its batch statistics stay as they are."""
        self.newest.load_state_dict(generator.state_dict())
        self._frozen_statistics = True
        self._start_training()

    def prepare(self) -> None:
        """Nothing is read once for all."""

    @property
    def noises(self) -> tuple[Noise, ...]:
        """The source of coins, latent numbers and noise."""
        return (self.noise,)

    def step_event(self) -> Event:
        """One Poisson-sampled Gaussian release, of empty batches too."""
        return self._event

    def paid_ahead(self, step: int) -> tuple[Event, ...]:
        """Every step pays for itself."""
        return ()

    def step(self, step: int) -> Stats:
        """See `Method.step`; after the warm-up a generator's step follows every `pace` critic steps."""
        stats = self.critic_step(step)
        if step > self.config.critic_warmup and self._since >= self.pace:
            stats |= self.generator_step(step)
        return stats

    # The critic: the only lines that read private images ---------------------------------------------------------

    def critic_step(self, step: int) -> Stats:
        """Clip, sum, add noise, divide by the public divisor, step."""
        *records, null = self._records()
        weights = dict(self.critic.named_parameters())
        result, self._physical_batch = halving_on_out_of_memory(
            functools.partial(self._clipped, self.loss.of_record, weights, records, null), self._physical_batch
        )
        sums = result.sums
        if not self.loss.paired:
            fakes, self._physical_batch = halving_on_out_of_memory(
                functools.partial(self._clipped, self.loss.of_fake, weights, self._public_fakes(), None),
                self._physical_batch,
            )
            sums = {name: total + fakes.sums[name] for name, total in sums.items()}
        self._set_rate(self._critic_optimizer, self.config.critic_learning_rate, step)
        self._critic_optimizer.noisy_step(sums.values())
        self._since += 1
        return _statistics(result, self.config.clip_norm)

    def _clipped(
        self, loss: Callable[..., Tensor], weights: Any, records: Any, null: Tensor | None, physical_batch: int
    ) -> ClippedSum:
        clip_norm = self.config.clip_norm
        return clipped_sum(loss, weights, records, clip_norm=clip_norm, physical_batch=physical_batch, null=null)

    def _records(self) -> tuple[Tensor, ...]:
        """Draw the step's records: reals, labels, and a fake, an alpha and a wrong class by each one's own coins.

        Null records are drawn like others and have coins of their own, so that nobody else's coins depend on them. The
        last tensor, bool (B,), says which they are.
        """
        index = poisson_sample(len(self._images), self.privacy_config.sample_rate, self.noise)
        batch = self._images.select(index).to(self.device)
        num, strength = len(batch), self.config.augment
        real = to_float(batch.images)  # (B, C, H, W)
        if strength:
            uniform, normal = self._uniform(num, 6), self._normal(num, 2 * NODES**2)
            real = move(real, moves_of(uniform, normal, strength)) if num else real
        labels = batch.labels if self.newest.num_classes else None
        if self.config.fakes == "paired" or self.config.loss == "wgan-gp":
            with torch.no_grad():
                fake = self.newest(self._normal(num, self.newest.latent_dim), labels) if num else real
            alpha = self._uniform(num)
        else:
            fake, alpha = real, real.new_zeros(num)  # not looked at
        known = torch.zeros(num, dtype=torch.int64, device=self.device) if labels is None else labels
        null = torch.zeros_like(known, dtype=torch.bool) if batch.null is None else batch.null
        return real, known, fake, alpha, self._wrong(known) if self.config.mismatch else known, null

    def _wrong(self, labels: Tensor) -> Tensor:
        """Return another class for each record, by a coin of its own."""
        others = self.critic.num_classes - 1
        step = 1 + (self._uniform(len(labels)) * others).long().clamp(max=others - 1)
        return (labels + step) % self.critic.num_classes

    def _public_fakes(self) -> tuple[Tensor, Tensor]:
        """Generate exactly B fakes of uniform labels: nothing about them depends on private images or their number."""
        with torch.no_grad():
            images, labels = self._fakes()
        return images, torch.zeros(len(images), dtype=torch.int64, device=self.device) if labels is None else labels

    def _uniform(self, *shape: int) -> Tensor:
        return self.noise.uniform(shape).float().to(self.device)

    def _normal(self, *shape: int) -> Tensor:
        return self.noise.normal(shape).float().to(self.device)

    # What follows is post-processing of the critic ---------------------------------------------------------------

    def generator_step(self, step: int) -> Stats:
        """Raise the scores of fakes by one Adam step, move the average, and set the pace."""
        self._since = 0
        self._set_rate(self._generator_optimizer, self.config.generator_learning_rate, step)
        self.newest.train(not self._frozen_statistics)
        images, labels = self._fakes()
        scores = self.critic(images, labels)
        loss = self.loss.of_generator(scores)
        if self.extra_loss is not None:
            loss = loss + self.extra_loss(self.newest)
        self._generator_optimizer.zero_grad()
        loss.backward(inputs=list(self.newest.parameters()))  # leaves nothing on the critic
        self._generator_optimizer.step()
        self.newest.eval()  # critic steps need fakes that do not depend on each other
        self.ema.update(self.newest)
        accuracy = (scores.detach() < 0).float().mean()
        self._set_pace(accuracy)
        return {"generator_loss": loss.detach(), "fake_accuracy": accuracy, "pace": torch.tensor(float(self.pace))}

    def _set_pace(self, accuracy: Tensor) -> None:
        """Let the critic take more steps where it cannot tell fakes any more."""
        if not self.config.adaptive_below:
            return
        self._accuracy += (1 - _ACCURACY_MEMORY) * (accuracy.item() - self._accuracy)
        if self._accuracy < self.config.adaptive_below:
            self.pace = min(math.ceil(self.pace * _PACE_GROWTH), _MOST_PACE)
            self._accuracy = 1.0  # wait until the new pace shows

    def _fakes(self) -> tuple[Tensor, Tensor | None]:
        """Generate B images with uniform labels; gradients flow."""
        size, classes, labels = self.training.batch_size, self.newest.num_classes, None
        if classes:  # uniform: the private class frequencies are not the generator's to know
            labels = torch.randint(classes, (size,), generator=self._rng, device=self.device)
        z = torch.randn(size, self.newest.latent_dim, generator=self._rng, device=self.device)
        return self.newest(z, labels), labels

    def _set_rate(self, optimizer: torch.optim.Optimizer, rate: float, step: int) -> None:
        """Set the learning rate: constant, then falling to zero over the cool-down."""
        left = 1 - (step - 1) / self.training.steps
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, left / self.config.cooldown if self.config.cooldown else 1.0)

    def _adam(self, network: torch.nn.Module, rate: float, decay: float = 0.0) -> torch.optim.AdamW:
        betas = (self.config.beta1, self.config.beta2)
        return torch.optim.AdamW(network.parameters(), lr=rate, betas=betas, weight_decay=decay, fused=True)

    def critic_scores(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Score images as the critic stands: for white-box attacks and audits, on the curator's side.

        Args:
            images: (B, C, H, W), uint8 or float in [-1, 1].
            labels: (B,) int64 if the critic is conditional; ignored otherwise.

        Returns:
            (B,) on the CPU; higher means more real.
        """
        parts = []
        with torch.no_grad():
            for start in range(0, len(images), _SCORE_BATCH):
                part = images[start : start + _SCORE_BATCH].to(self.device)
                part = to_float(part) if part.dtype == torch.uint8 else part
                known = labels is not None and self.critic.num_classes
                of_part = labels[start : start + _SCORE_BATCH].to(self.device) if labels is not None and known else None
                parts.append(self.critic(part, of_part).cpu())
        return torch.cat(parts) if parts else torch.zeros(0)

    def privacy(self) -> PrivacyReport:
        """Report the budget as claimed, and what the ledger proves for the steps that were taken."""
        proven = self.ledger.proven(self.privacy_config.delta)
        return self._run.report(self._data, self.ledger.events, proven, (self.noise.source,))

    def state(self) -> dict[str, Any]:
        """Return networks, optimizers, average, random state and the state of the noise source."""
        return {
            "generator": self.newest.state_dict(),
            "critic": self.critic.state_dict(),
            "ema": self.ema.state(),
            "generator_optimizer": self._generator_optimizer.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "rng": self._rng.get_state(),
            "noise": self.noise.state(),
            "pace": [self.pace, self._since, self._accuracy],
            "physical_batch": self._physical_batch,
            "frozen_statistics": self._frozen_statistics,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        self.newest.load_state_dict(state["generator"])
        self.critic.load_state_dict(state["critic"])
        self.ema.load_state(state["ema"])
        self._generator_optimizer.load_state_dict(state["generator_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        self._rng.set_state(state["rng"])
        self.noise.load_state(state["noise"])
        self.pace, self._since, self._accuracy = state["pace"]
        self._physical_batch = state["physical_batch"]
        self._frozen_statistics = state["frozen_statistics"]


def _statistics(result: ClippedSum, clip_norm: float) -> Stats:
    """Average over the records of a step that counted, for the curator; nothing where there are none."""
    counted = result.norms.isfinite() & result.losses.isfinite()
    if not bool(counted.any()):
        return {}
    norms = result.norms[counted]
    return {
        "critic_loss": result.losses[counted].double().mean(),
        "gradient_norm": norms.mean(),
        "clipped_share": (norms > clip_norm).float().mean(),
    }


Method: Callable[..., method.Method] = DpGan
