r"""dp-GAN: DP-SGD on the critic; the generator learns from the critic alone and costs nothing.

The baseline of Yang, Zhou and Ning (Xie et al. 2018), with the improvements since (`Bie, Kamath, Zhang (2023), "Private
GANs, revisited" <https://arxiv.org/abs/2302.02936>`_): many critic steps per generator step, large batches, an average
of the generator. One critic step reads the records that Poisson sampling at rate q draws, and releases

.. math:: \frac{1}{B} \Big( \sum_{i} \mathrm{clip}_C(g_i) + N(0, (\sigma C)^2 I) \Big)

with B = ``training.batch_size``, a public constant: a step of `privacy.dpsgd.DPSGDPlan`, the Poisson-sampled Gaussian
mechanism of noise multiplier sigma, unit image, zero-out-one; an image and its label are one record.

Sensitivity. Besides the weights, only record i, its label and its own coins enter g_i, as the plan requires:

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
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from idpgan.data.images import to_float
from idpgan.data.load import Split, place
from idpgan.device import resolve_device, sent
from idpgan.errors import ConfigError
from idpgan.memory import check_memory
from idpgan.models.config import ModelConfig
from idpgan.models.dcgan import Critic
from idpgan.models.families import build_critic, critic_bytes
from idpgan.models.generator import Generator
from idpgan.models.own import OwnCritic
from idpgan.models.warp import NODES, move, moves_of
from idpgan.own_code import is_own_code
from idpgan.privacy import Event, check_delta
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.captured_gradients import Batch
from idpgan.privacy.dpsgd import DPSGDPlan, least_noise
from idpgan.privacy.event import rounding_words
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source, box_muller
from idpgan.privacy.tiles import Tiles, rows_at_once, tiled
from idpgan.ranks import Ranks
from idpgan.synthesis.dp_gan.loss import Kind
from idpgan.synthesis.dp_gan.own_critic import loss_of, try_gradients
from idpgan.synthesis.networks import Adam, Networks
from idpgan.synthesis.product import GivesGenerator
from idpgan.training.config import CHOOSE_DELTA, PrivacyConfig, RunConfig, StepsConfig
from idpgan.training.distributed import whole
from idpgan.training.engine import engine_words, opacus_steps, validate_network
from idpgan.training.fit import set_rate
from idpgan.training.loop import no_step_affordable
from idpgan.training.method import Stats, refuse_small_shares
from idpgan.training.plan import RunPlan
from idpgan.training.signal import Signal

_RNG_STREAM = 9  # of training.seed; 0 and 1 are the initial weights
_SCORE_BATCH = 1000
_PACE_GROWTH = 1.5
_MOST_PACE = 256
_ACCURACY_MEMORY = 0.9  # weight of the past in the average accuracy on fakes


class DpGanConfig(StepsConfig):
    """[method] of dp-gan.

    Attributes:
        loss: "non-saturating", "hinge" or "wgan-gp"; see `CriticLoss`. Opacus' hooks do the first two.
        fakes: "paired" with their record under one clip, or "separate", outside of the private sum.
        clip_norm: C, bound on one record's gradient; a constant, never taken from private gradients.
        critic_width: Feature maps of the critic next to the image; noise grows with the number of weights, so it may
            be narrower than the generator. None = ``model.width``.
        gradient_penalty: Weight of the penalty, "wgan-gp" only.
        mismatch: Weight of every drawn image under a wrong class as one more fake (Reed et al. 2016), under the same
            clip: it teaches the critic classes. 0 = none; needs classes.
        augment: Strength of a random motion of every drawn image, by coins of its own; 1 is that of handwriting.
        critic_steps_per_generator_step: At the start, if `adaptive_below` is above 0.
        adaptive_below: Where the critic tells fewer fakes than this share, its steps per generator step grow by half
            (Bie et al. 2023, section 4.3). 0 = fixed pace. Not with "wgan-gp".
        critic_warmup: Critic steps before the first generator step.
        critic_learning_rate: Of Adam.
        critic_decay: Decoupled weight decay of the critic, times its learning rate. It bounds what the noise of
            thousands of steps adds up to: a standard deviation of about ``sqrt(rate / (2 decay))`` per weight.
        generator_learning_rate: Of Adam.
        cooldown: Share of the steps at the end over which both learning rates fall linearly to zero.
        beta1: Decay of Adam's first moment.
        beta2: Decay of Adam's second moment.
        ema_decay: Weight of the past in the averaged generator.
        max_physical_batch: Records whose gradients are in memory at once, halved by itself where that is too many; a
            GPU takes 2,048 unless another number is set. "opacus" takes at most 128, and does not halve it.
    """

    name: Literal["dp-gan"] = "dp-gan"
    loss: Kind = "non-saturating"
    fakes: Literal["paired", "separate"] = "paired"
    clip_norm: float = Field(1.0, gt=0)
    critic_width: int | None = Field(None, ge=1, le=1024)
    gradient_penalty: float = Field(10.0, ge=0)
    mismatch: float = Field(0.0, ge=0)
    augment: float = Field(0.0, ge=0, le=3)
    critic_steps_per_generator_step: int = Field(10, ge=1)
    adaptive_below: float = Field(0.0, ge=0, lt=1)
    critic_warmup: int = Field(0, ge=0)
    critic_learning_rate: float = Field(5e-4, gt=0)
    critic_decay: float = Field(0.0, ge=0)
    generator_learning_rate: float = Field(5e-4, gt=0)
    cooldown: float = Field(0.2, ge=0, le=1)
    beta1: float = Field(0.5, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    ema_decay: float = Field(0.999, ge=0, lt=1)
    max_physical_batch: int = Field(64, ge=1)

    @model_validator(mode="after")
    def _check_pace(self) -> DpGanConfig:
        if self.loss == "wgan-gp" and self.adaptive_below > 0:
            raise ConfigError(
                f"adaptive_below = {self.adaptive_below:g} counts the fakes that score below 0, and scores of "
                'loss = "wgan-gp" have no such threshold. Set adaptive_below = 0, or loss = "non-saturating".'
            )
        if self.loss == "wgan-gp" and self.engine == "opacus":
            raise ConfigError(
                'method.loss = "wgan-gp" differentiates its gradient penalty a second time, and Opacus\' hooks see a '
                'backward pass once. Set method.engine = "idpgan", or method.loss = "non-saturating" or "hinge".'
            )
        return self


class DpGanPrivacy(PrivacyConfig):
    """[privacy] of dp-gan; unit image, zero-out-one.

    Attributes:
        epsilon: What the run may spend; the step that would exceed it is not taken.
        delta: Below 1/N for N private images, usually ``min(1e-5, 1 / (10 N))``; above 0, as the noise is Gaussian.
        sample_rate: q, the chance of each image to be in a critic step. ``training.batch_size`` is the divisor.
        noise_multiplier: sigma; None = the least with which ``training.steps`` critic steps stay within epsilon.
    """

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1, description=CHOOSE_DELTA)
    sample_rate: float = Field(gt=0, le=1)
    noise_multiplier: float | None = Field(None, gt=0)


class DpGanRun(RunConfig):
    """A whole config file of dp-gan."""

    method: DpGanConfig = DpGanConfig()
    privacy: DpGanPrivacy


class DpGanPlan(RunPlan):
    """The plan of a run of dp-gan: critic steps, with the least noise that the charges before them leave room for."""

    OWN_CRITIC = "private"

    @functools.cached_property
    def dpsgd(self) -> DPSGDPlan:
        """The critic's steps."""
        privacy, training = self.config.privacy, self.config.training
        sigma = privacy.noise_multiplier or least_noise(
            privacy.epsilon, privacy.delta, privacy.sample_rate, training.steps, self.given
        )
        return DPSGDPlan(
            sample_rate=privacy.sample_rate,
            clip_norm=self.config.method.clip_norm,
            divisor=training.batch_size,
            noise_multiplier=sigma,
            exact=self.config.method.engine == "idpgan",
        )

    @property
    def critic_model(self) -> ModelConfig:
        """The [model] section as the critic has it."""
        model: ModelConfig = self.config.model
        return model.model_copy(update={"width": self.config.method.critic_width or model.width})

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of all critic steps."""
        return (self.dpsgd.event.repeated(self.config.training.steps),)

    @property
    def signal(self) -> Signal:
        """The figure of all critic steps together, if every record pulled one way in all of them.

        A step adds up q N gradients of norm at most C, and noise of standard deviation sigma C on every weight; over T
        steps the first grows with T, the second with its root.
        """
        rows, privacy = max(self.classes, 1), self.config.privacy
        weights = critic_bytes(self.critic_model, self.shape.image_shape, self.classes) / 4
        noise = self.dpsgd.noise_multiplier * math.sqrt(weights / self.config.training.steps) / privacy.sample_rate
        return Signal(self.shape.num_private / rows, rows, noise, "the DP-SGD steps")

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name the mechanism, and where its noise came from."""
        by = engine_words(self.config.method, events, self.delta)
        return f"DP-SGD on the critic, Poisson sampling; {rounding_words(events)}; noise: {sources[0].name}{by}"

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the sampling rate, the divisor, and the settings."""
        rate, divisor = self.config.privacy.sample_rate, self.config.training.batch_size
        return (
            f"the sampling rate {rate:g} and the divisor {divisor}",
            "the settings: epsilon covers no choice of settings by looking at private images",
        )

    def check(self) -> None:
        """Refuse a divisor that is not about q N, wrong classes without classes, and a step beyond memory or budget."""
        super().check()
        if is_own_code(self.config.model.critic):
            try_gradients(self.critic_model, self.shape.image_shape, self.classes, self.config.method, self.dpsgd)
        method, privacy, size = self.config.method, self.config.privacy, self.config.training.batch_size
        num_private, classes = self.shape.num_private, self.classes
        check_delta(privacy.delta, num_private)
        expected = privacy.sample_rate * num_private
        if not expected / 2 <= size <= 2 * expected:
            raise ConfigError(
                f"training.batch_size = {size} divides the noisy sum of about {expected:.0f} images "
                f"(privacy.sample_rate = {privacy.sample_rate:g} of {num_private}); it must be within a factor of 2 of "
                f"that. Set privacy.sample_rate to about {size / num_private:.4g}, or training.batch_size to "
                f"{max(1, round(expected))}."
            )
        if method.mismatch and classes < 2:
            raise ConfigError(
                f"method.mismatch = {method.mismatch:g} needs at least 2 classes, and the critic has "
                f"{classes}. Set method.mismatch = 0."
            )
        least = min(method.max_physical_batch, size)
        check_memory(
            least * critic_bytes(self.critic_model, self.shape.image_shape, classes),
            f"the gradients of method.max_physical_batch = {least} images, each by itself,",
            "Lower it, or method.critic_width (model.width).",
            str(resolve_device(self.config.training.device)),
        )
        if privacy.noise_multiplier is not None:
            event = self.dpsgd.event
            if compose_epsilon([event], privacy.delta) > privacy.epsilon:
                raise no_step_affordable(event, Budget(privacy.epsilon, privacy.delta))


class DpGan(GivesGenerator):
    """The method as the loop sees it; see `idpgan.training.method.Method`.

    Args:
        split: Only its private part is read, in critic steps.
        ledger: The loop charges it before each critic step.
        noise: Source of coins and noise; None = a fresh one of the operating system.

    Attributes:
        generator: The averaged generator, in eval mode.
        newest: The generator that is trained, in eval mode but for its own steps.
        critic: Covered by the guarantee, but not released.
        dpsgd: The critic's steps.
        pace: Critic steps per generator step.
        UNNOISED: See `idpgan.training.method.Method`.
        extra_loss: A further loss of the generator, which must not read private data. None omits it.

    Raises:
        ConfigError: If config and data do not fit together. No private image has been read then.
    """

    Config, Plan = DpGanRun, DpGanPlan

    UNNOISED = ("critic_loss", "gradient_norm", "clipped_share")
    NOISY_STEPS = True
    SAVED = ("networks", "noise", "frozen_statistics")

    plan: DpGanPlan

    def _set_up(self, split: Split) -> None:
        config, own, self.training = self.plan.config, self.config, self.plan.config.training
        self._images = place(split.private, self.device)
        self.critic = self._build_critic().to(self.device)
        self.networks = Networks(
            config,
            split.shape,
            self.critic,
            device=self.device,
            adam=Adam(own.generator_learning_rate, own.beta1, own.beta2),
            critic_adam=Adam(own.critic_learning_rate, own.beta1, own.beta2, decay=own.critic_decay),
            ema_decay=own.ema_decay,
            stream=_RNG_STREAM,
        )
        self.newest, self.generator = self.networks.newest.eval(), self.networks.average
        self.loss = loss_of(self.critic, own)
        self.dpsgd = self.plan.dpsgd
        self._opacus = opacus_steps(own, self.critic, self.networks.critic_optimizer)
        self._frozen_statistics = False
        self.extra_loss: Callable[[Generator], Tensor] | None = None
        self.pace, self._since, self._accuracy = own.critic_steps_per_generator_step, 0, 1.0

    def _build_critic(self) -> Critic | OwnCritic:
        """Build the critic, and check that its layers do not mix records."""
        shape, seed = self._data, self._run.training.seed
        critic = build_critic(self.plan.critic_model, shape.image_shape, len(shape.classes), seed=seed)
        validate_network(critic, self.config)
        return critic

    def start_from(self, generator: Generator) -> None:
        """Continue from a trained generator of the same layout; its batch statistics stay unchanged."""
        self.networks.start_from(generator)
        self._frozen_statistics = True

    def share_steps(self, ranks: Ranks) -> None:
        """Let each rank take its share of every step; only a record's own rank sees it and draws its coins."""
        refuse_small_shares(self.training.batch_size, "training.batch_size", ranks)
        self.dpsgd, self.networks.ranks = dataclasses.replace(self.dpsgd, ranks=ranks), ranks

    def step_event(self) -> Event:
        """Return the price of one Poisson-sampled Gaussian release; an empty batch is charged too."""
        return self.dpsgd.event

    def step(self, step: int) -> Stats:
        """Take a critic step; after the warm-up a generator's step follows every `pace` of them."""
        stats = self.critic_step(step)
        if step > self.config.critic_warmup and self._since >= self.pace:
            stats |= self.generator_step(step)
        return stats

    # The critic: the only lines that read private images ---------------------------------------------------------

    def critic_step(self, step: int) -> Stats:
        """Clip, sum, add noise, divide by the public divisor, step."""
        set_rate(self.networks.critic_optimizer, self._rate(self.config.critic_learning_rate, step))
        losses, norms = self._private_step()
        self._since += 1
        found = self.dpsgd.statistics(losses, norms)
        return {"critic_loss" if name == "loss" else name: value for name, value in found.items()}

    def _private_step(self) -> tuple[Tensor, Tensor]:
        """Move the critic by the noisy sum; return losses and norms of the records, (B,) each."""
        public = () if self.loss.paired else self._public_fakes()
        if self._opacus is not None:
            records, null = self._records(self.dpsgd.drawn(len(self._images), self.noise))
            batches = [Batch(self.loss.of_records, records, null)]
            batches += [Batch(self.loss.of_fakes, public)] if public else []
            return self._opacus.step(self.dpsgd, self.noise, *batches)[0]
        weights, tiles = dict(self.critic.named_parameters()), self.tiles
        drawn = self.dpsgd.sample(len(self._images), self.noise, tiles)
        result = self.dpsgd.clipped_sum(self.loss.of_record, weights, map(self._records, drawn), tiles)
        sums = result.sums
        if public:
            fakes = self.dpsgd.clipped_sum(self.loss.of_fake, weights, tiled(public, tiles.rows), tiles)
            sums = {name: total + fakes.sums[name] for name, total in sums.items()}
        self.dpsgd.noisy_step(self.networks.critic_optimizer, weights, sums, self.noise)
        return result.losses, result.norms

    def decide_tiles(self, saved: Tiles | None) -> Tiles | None:
        """See `Method`."""
        if self._opacus is not None:
            return None
        zero = torch.zeros(1, *self._data.image_shape, device=self.device)
        label = torch.zeros(1, dtype=torch.int64, device=self.device)
        coins = torch.zeros(1, sum(self._coins), dtype=torch.float64, device=self.device)
        return self.dpsgd.tiles(
            self.loss.of_record,
            dict(self.critic.named_parameters()),
            [zero, label, coins],
            num=len(self._images),
            most=rows_at_once(self.config, self.device),
            way="vmap" if self.config.loss == "wgan-gp" else "capture",  # a penalty is not captured
            prepare=self._prepared,
            saved=saved,
        )

    def _records(self, index: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return what the loss takes of the records at positions ``index``, `EMPTY` for none, and which are null.

        Null records are drawn like others and have coins of their own.
        """
        index = sent(index, self.device)
        batch = self._images.select(index.clamp(min=0)).zeroed_out(index < 0).to(self.device)
        num = len(batch)
        known = torch.zeros(num, dtype=torch.int64, device=self.device) if batch.labels is None else batch.labels
        coins = sent(self.noise.uniform((num, sum(self._coins))), self.device)
        return self._prepared(to_float(batch.images), known, coins), batch.is_null

    @property
    def _coins(self) -> tuple[int, int, int, int]:
        """How many uniform numbers a record has of its own: for a motion, its nodes, a fake, and alpha and a class."""
        latent = self.newest.latent_dim
        return 6, 2 * NODES**2, latent + latent % 2, 2

    @torch.no_grad()
    def _prepared(self, real: Tensor, labels: Tensor, coins: Tensor) -> tuple[Tensor, ...]:
        """Return reals, labels, and a fake, an alpha and a wrong class by each record's own coins; row by row."""
        places, nodes, latent, rest = coins.split(self._coins, 1)
        strength, alpha, fake = self.config.augment, rest[:, 0].float(), real
        if strength and len(real):
            real = move(real, moves_of(places.float(), box_muller(nodes).float(), strength))
        if (self.config.fakes == "paired" or self.config.loss == "wgan-gp") and len(real):
            z = box_muller(latent)[:, : self.newest.latent_dim].float()
            fake = self.newest(z, labels if self.newest.num_classes else None)
        return real, labels, fake, alpha, self._wrong(labels, rest[:, 1]) if self.config.mismatch else labels

    def _wrong(self, labels: Tensor, coins: Tensor) -> Tensor:
        others = self.critic.num_classes - 1
        step = 1 + (coins * others).long().clamp(max=others - 1)
        return (labels + step) % self.critic.num_classes

    def _public_fakes(self) -> tuple[Tensor, Tensor]:
        """Generate this rank's share of exactly B fakes of uniform labels: the fakes and B are public."""
        with torch.no_grad():
            images, labels = self.networks.fakes(self.training.batch_size)
        return images, torch.zeros(len(images), dtype=torch.int64, device=self.device) if labels is None else labels

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
        """Let the critic take more steps where it no longer recognizes fakes."""
        if not self.config.adaptive_below:
            return
        self._accuracy += (1 - _ACCURACY_MEMORY) * (accuracy.item() - self._accuracy)
        if self._accuracy < self.config.adaptive_below:
            self.pace = min(math.ceil(self.pace * _PACE_GROWTH), _MOST_PACE)
            self._accuracy = 1.0  # wait until the new pace has an effect

    def _rate(self, rate: float, step: int) -> float:
        """Return the learning rate of a step: constant, then falling to zero over the cool-down."""
        left = 1 - (step - 1) / self.training.steps
        return rate * min(1.0, left / self.config.cooldown if self.config.cooldown else 1.0)

    def critic_scores(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return scores (B,) on the CPU of any number of images, of uint8 too, from any device; see `HasCritic`."""
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
        """Restore what `state` returned."""
        super().load_state(state)
        self.pace, self._since, self._accuracy = state["pace"]
