r"""dp-GAN: DP-SGD on the critic; the generator learns from the critic alone and costs nothing.

The baseline of Yang, Zhou and Ning (Xie et al. 2018), with what made it good since (`Bie, Kamath, Zhang (2023),
"Private GANs, revisited" <https://arxiv.org/abs/2302.02936>`_): many critic steps per generator step, large batches, an
average of the generator. One critic step reads the records that independent coins of chance q choose, and releases

.. math:: \frac{1}{B} \Big( \sum_{i} \mathrm{clip}_C(g_i) + N(0, (\sigma C)^2 I) \Big)

with B = ``training.batch_size``, a public constant: a step of `privacy.dpsgd.DPSGDPlan`, the Poisson-sampled Gaussian
mechanism of noise multiplier sigma, unit image, zero-out-one; an image and its label are one record.

Sensitivity. Whatever enters g_i besides the weights is record i, its label, or a coin of its own, as the plan asks:

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

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from idpgan.data.images import to_float
from idpgan.data.load import Split, place
from idpgan.models.dcgan import Critic
from idpgan.models.generator import Generator
from idpgan.models.validate import validate_private_critic
from idpgan.models.warp import NODES, move, moves_of
from idpgan.privacy import Event, Ledger, Noise
from idpgan.privacy.dpsgd import ClippedSum, RecordLoss, Way, Weights
from idpgan.ranks import Ranks
from idpgan.synthesis.dp_gan.config import DpGanRun
from idpgan.synthesis.dp_gan.loss import CriticLoss
from idpgan.synthesis.networks import Adam, Networks, set_rate
from idpgan.synthesis.product import GivesGenerator
from idpgan.training.distributed import whole
from idpgan.training.method import Stats, refuse_small_shares

_RNG_STREAM = 9  # of training.seed; 0 and 1 are the initial weights
_SCORE_BATCH = 1000
_PACE_GROWTH = 1.5
_MOST_PACE = 256
_ACCURACY_MEMORY = 0.9  # weight of the past in the average accuracy on fakes


class DpGan(GivesGenerator):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        split: Only its private part is read, in critic steps.
        ledger: The loop charges it before each critic step.
        noise: Source of coins and noise. None = AES-256-CTR on the CPU, the GPU's Philox on a GPU.

    Attributes:
        generator: The averaged generator, in eval mode.
        newest: The generator that is trained, in eval mode but for its own steps.
        critic: Covered by the guarantee, but not released.
        plan: The critic's steps.
        pace: Critic steps per generator step.
        UNNOISED: See `idpgan.training.method.Method`.
        extra_loss: What the generator minimizes besides, of itself; it must read nothing private. None = nothing.

    Raises:
        ConfigError: If config and data do not fit together. No private image has been read then.
    """

    Config = DpGanRun

    UNNOISED = ("critic_loss", "gradient_norm", "clipped_share")
    NOISY_STEPS = True
    SAVED = ("networks", "noise", "physical_batch", "way", "frozen_statistics")

    def __init__(
        self, config: DpGanRun, split: Split, *, ledger: Ledger, device: torch.device, noise: Noise | None = None
    ) -> None:
        super().__init__(config, split, ledger=ledger, device=device, noise=noise)
        self.training = config.training
        self._images = place(split.private, device)
        self.critic = self._build_critic().to(device)
        betas = (self.config.beta1, self.config.beta2)
        self.networks = Networks(
            config,
            split.shape,
            self.critic,
            device=device,
            adam=Adam(self.config.generator_learning_rate, *betas),
            critic_adam=Adam(self.config.critic_learning_rate, *betas, decay=self.config.critic_decay),
            ema_decay=self.config.ema_decay,
            stream=_RNG_STREAM,
        )
        self.newest, self.generator = self.networks.newest.eval(), self.networks.average
        self.loss = CriticLoss(
            self.critic,
            self.config.loss,
            penalty=self.config.gradient_penalty,
            paired=self.config.fakes == "paired",
            mismatch=self.config.mismatch,
        )
        self.plan = config.plan
        self._physical_batch = self.config.max_physical_batch
        self._way: Way = "vmap" if self.config.loss == "wgan-gp" else "ghost"  # a penalty is not captured
        self._frozen_statistics = False
        self.extra_loss: Callable[[Generator], Tensor] | None = None
        self.pace, self._since, self._accuracy = self.config.critic_steps_per_generator_step, 0, 1.0

    def new_noise(self, device: torch.device) -> Noise:
        """Return AES-256-CTR on the CPU, the GPU's Philox on a GPU."""
        return Noise.philox(device) if device.type == "cuda" else Noise.system()

    def _build_critic(self) -> Critic:
        """Build the critic, and see that no layer of it mixes records."""
        shape = self._data
        critic = Critic(self._run.critic_model, shape.image_shape, len(shape.classes), seed=self._run.training.seed)
        validate_private_critic(critic)
        return critic

    def start_from(self, generator: Generator) -> None:
        """Go on from a trained generator of the same layout; its batch statistics stay as they are."""
        self.networks.start_from(generator)
        self._frozen_statistics = True

    def share_steps(self, ranks: Ranks) -> None:
        """See `SharesSteps`. The coins of a record are its rank's own, as no other rank sees that record."""
        refuse_small_shares(self.training.batch_size, "training.batch_size", ranks)
        self.plan, self.networks.ranks = dataclasses.replace(self.plan, ranks=ranks), ranks

    def step_event(self) -> Event:
        """Return the price of one Poisson-sampled Gaussian release; an empty batch is charged too."""
        return self.plan.event

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
        result = self._clipped_sum(self.loss.of_record, weights, records, null)
        sums = result.sums
        if not self.loss.paired:
            fakes = self._clipped_sum(self.loss.of_fake, weights, self._public_fakes())
            sums = {name: total + fakes.sums[name] for name, total in sums.items()}
        set_rate(self.networks.critic_optimizer, self._rate(self.config.critic_learning_rate, step))
        self.plan.noisy_step(self.networks.critic_optimizer, weights, sums, self.noise)
        self._since += 1
        return _statistics(result, self.plan.clip_norm)

    def _clipped_sum(
        self, loss: RecordLoss, weights: Weights, records: Sequence[Tensor], null: Tensor | None = None
    ) -> ClippedSum:
        """Clip and sum, from now on with as many records in memory as sufficed, and in the way that worked."""
        result = self.plan.clipped_sum(
            loss, weights, records, physical_batch=self._physical_batch, null=null, way=self._way
        )
        self._physical_batch, self._way = result.physical_batch, result.way
        return result

    def _records(self) -> tuple[Tensor, ...]:
        """Draw the step's records: reals, labels, and a fake, an alpha and a wrong class by each one's own coins.

        Null records are drawn like others and have coins of their own, so that nobody else's coins depend on them. The
        last tensor, bool (B,), says which they are.
        """
        index = self.plan.sample(len(self._images), self.noise)
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
        others = self.critic.num_classes - 1
        step = 1 + (self._uniform(len(labels)) * others).long().clamp(max=others - 1)
        return (labels + step) % self.critic.num_classes

    def _public_fakes(self) -> tuple[Tensor, Tensor]:
        """Generate this rank's share of exactly B fakes of uniform labels: all of it, and B, is public."""
        with torch.no_grad():
            images, labels = self.networks.fakes(self.training.batch_size)
        return images, torch.zeros(len(images), dtype=torch.int64, device=self.device) if labels is None else labels

    def _uniform(self, *shape: int) -> Tensor:
        return self.noise.uniform(shape).float().to(self.device)

    def _normal(self, *shape: int) -> Tensor:
        return self.noise.normal(shape).float().to(self.device)

    # What follows is post-processing of the critic ---------------------------------------------------------------

    def generator_step(self, step: int) -> Stats:
        """Raise the scores of fakes by one Adam step, move the average, and set the pace."""
        self._since = 0
        set_rate(self.networks.generator_optimizer, self._rate(self.config.generator_learning_rate, step))
        self.newest.train(not self._frozen_statistics)
        ranks, size = self.networks.ranks, self.training.batch_size
        images, labels = self.networks.fakes(size)
        scores = self.critic(images, labels)
        loss = whole(self.loss.of_generator(scores) * ranks.weight(size), ranks)
        if self.extra_loss is not None:
            loss = loss + self.extra_loss(self.newest)
        self.networks.step_generator(loss)
        self.newest.eval()  # critic steps need fakes that do not depend on each other
        accuracy = whole((scores.detach() < 0).float().mean() * ranks.weight(size), ranks)
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

    def _rate(self, rate: float, step: int) -> float:
        """Return the learning rate of a step: constant, then falling to zero over the cool-down."""
        left = 1 - (step - 1) / self.training.steps
        return rate * min(1.0, left / self.config.cooldown if self.config.cooldown else 1.0)

    def critic_scores(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """See `HasCritic`: (B,) on the CPU; any number of images, of uint8 too, from any device."""
        parts = []
        with torch.no_grad():
            for start in range(0, len(images), _SCORE_BATCH):
                part = images[start : start + _SCORE_BATCH].to(self.device)
                part = to_float(part) if part.dtype == torch.uint8 else part
                known = labels is not None and self.critic.num_classes
                of_part = labels[start : start + _SCORE_BATCH].to(self.device) if labels is not None and known else None
                parts.append(self.critic(part, of_part).cpu())
        return torch.cat(parts) if parts else torch.zeros(0)

    def state(self) -> dict[str, Any]:
        """Return what `SAVED` names, and the generator's pace."""
        return {**super().state(), "pace": [self.pace, self._since, self._accuracy]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        super().load_state(state)
        self.pace, self._since, self._accuracy = state["pace"]


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
