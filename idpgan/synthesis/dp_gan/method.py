r"""dp-GAN: DP-SGD on the critic; the generator learns from the critic alone and costs nothing.

That of Xie et al. (2018), with the improvements since (`Bie, Kamath, Zhang (2023), "Private GANs, revisited"
<https://arxiv.org/abs/2302.02936>`_): many critic steps per generator step, large batches, an average of the generator.
It is not the dp-GAN that Yang, Zhou and Ning compare with, which is that of Zhang, Ji and Wang (2018). A critic step is
a private step (`private.steps`) with B = ``training.batch_size``, a public constant.

Sensitivity. Besides the weights, only record i, its label and its own coins enter the gradient g_i:

- ``fakes = "paired"``: g_i is the gradient of the real's *and* a fake's term, clipped together: zeroing out a
  record moves the sum by at most C. The fake has the record's label, latent numbers from the secret noise source (from
  a published seed, removing a record would shift everyone's fakes), and comes from a generator in eval mode (batch
  statistics would carry the others' labels into it).
- ``fakes = "separate"``: g_i holds the real's term only. Exactly B fakes of uniform labels are clipped likewise, for
  balance, and added without noise: given the weights, that part is the same for both neighbors.

Under "wgan-gp" the penalty's interpolate joins record i with a fake of its own and is part of g_i in both variants.

Critic steps are the only private reads; the generator's pace follows the critic's accuracy on *fakes*, which is
post-processing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from idpgan.audit.gradient_canaries import NO_LIMIT, SLOPE, STILL, CanaryNetwork, CanarySteps, Training
from idpgan.data.images import to_float
from idpgan.data.load import Split, place
from idpgan.errors import ConfigError
from idpgan.models import dcgan, families, warp
from idpgan.models.config import ModelConfig
from idpgan.models.generator import Generator
from idpgan.models.own import OwnCritic
from idpgan.own_code import is_own_code
from idpgan.privacy import Event, Noise, check_delta
from idpgan.privacy.dpsgd import ClipNorm, DPSGDPlan, Weights
from idpgan.privacy.noise import Source, box_muller
from idpgan.private.steps import SETTINGS, PrivateSteps, StepsPlan, steps_entry, validate_network
from idpgan.ranks import Ranks
from idpgan.synthesis.dp_gan.loss import Kind, loss_of, try_gradients
from idpgan.synthesis.networks import AdamSettings, Networks
from idpgan.synthesis.product import GivesGenerator
from idpgan.training import distributed, fit
from idpgan.training.config import CHOOSE_DELTA, PrivacyConfig, RunConfig, StepsConfig, TrainingConfig
from idpgan.training.method import Stats, refuse_small_shares
from idpgan.training.plan import Signal

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
    clip_norm: ClipNorm = 1.0
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
        sample_rate: q, the chance of each image to be in a critic step; None = ``training.batch_size``, which is the
            divisor, of the N private images.
        noise_multiplier: sigma; None = the least with which ``training.steps`` critic steps stay within epsilon.
    """

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1, description=CHOOSE_DELTA)
    sample_rate: float | None = Field(None, gt=0, le=1)
    noise_multiplier: float | None = Field(None, gt=0)


class DpGanRun(RunConfig):
    """A whole config file of dp-gan."""

    method: DpGanConfig = DpGanConfig()
    privacy: DpGanPrivacy


class DpGanPlan(StepsPlan):
    """The plan of a run of dp-gan: critic steps, with the least noise that the charges before them leave room for."""

    OWN_CRITIC = "private"

    @functools.cached_property
    def dpsgd(self) -> DPSGDPlan:  # type: ignore[override]  # found when it is asked for
        """The critic's steps."""
        return self.steps_at(self.sample_rate, self.config.training.batch_size)

    @property
    def sample_rate(self) -> float:
        """q, as set, or that at which the expected number of images in a step is its divisor."""
        expected = min(1.0, self.config.training.batch_size / max(self.shape.num_private, 1))
        return self.config.privacy.sample_rate or expected

    @property
    def critic_model(self) -> ModelConfig:
        """The [model] section as the critic has it."""
        model: ModelConfig = self.config.model
        return model.model_copy(update={"width": self.config.method.critic_width or model.width})

    @property
    def signal(self) -> Signal:
        """The figure of all critic steps together, if every record pulled one way in all of them.

        A step adds up q N gradients of norm at most C, and noise of standard deviation sigma C on every weight; over T
        steps the first grows with T, the second with its root.
        """
        rows = max(self.classes, 1)
        weights = families.critic_bytes(self.critic_model, self.shape.image_shape, self.classes) / 4
        noise = self.dpsgd.noise_multiplier * math.sqrt(weights / self.config.training.steps) / self.sample_rate
        return Signal(self.shape.num_private / rows, rows, noise, "the DP-SGD steps")

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name the mechanism, and where its noise came from."""
        return self.reason_of("DP-SGD on the critic, Poisson sampling", events, sources[0])

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the sampling rate, the divisor, and the settings."""
        rate, divisor = self.sample_rate, self.config.training.batch_size
        return f"the sampling rate {rate:g} and the divisor {divisor}", SETTINGS

    def check(self) -> None:
        """Refuse a divisor that is not about q N, wrong classes without classes, and a step beyond memory or budget."""
        super().check()
        if is_own_code(self.config.model.critic):
            try_gradients(self.critic_model, self.shape.image_shape, self.classes, self.config.method, self.dpsgd)
        method, privacy, size = self.config.method, self.config.privacy, self.config.training.batch_size
        num_private, classes = self.shape.num_private, self.classes
        check_delta(privacy.delta, num_private)
        expected = self.sample_rate * num_private
        if not expected / 2 <= size <= 2 * expected:
            raise ConfigError(
                f"training.batch_size = {size} divides the noisy sum of about {expected:.0f} images "
                f"(privacy.sample_rate = {self.sample_rate:g} of {num_private}); it must be within a factor of 2 of "
                f"that. Leave privacy.sample_rate out, set it to about {size / num_private:.4g}, or "
                f"training.batch_size to {max(1, round(expected))}."
            )
        if method.mismatch and classes < 2:
            raise ConfigError(
                f"method.mismatch = {method.mismatch:g} needs at least 2 classes, and the critic has "
                f"{classes}. Set method.mismatch = 0."
            )
        each = families.critic_bytes(self.critic_model, self.shape.image_shape, classes)
        self.check_gradients(each, "Lower it, or method.critic_width (model.width).")
        self.refuse_no_step()


class DpGan(PrivateSteps, GivesGenerator):
    """The method as the loop sees it; see `PrivateSteps`.

    Attributes:
        generator: The averaged generator, in eval mode.
        newest: The generator that is trained, in eval mode but for its own steps.
        critic: Covered by the guarantee, but not released.
        pace: Critic steps per generator step.
        extra_loss: A further loss of the generator, which must not read private data. None omits it.

    Raises:
        ConfigError: If config and data do not fit together. No private image has been read then.
    """

    Config, Plan = DpGanRun, DpGanPlan

    UNNOISED = ("critic_loss", "gradient_norm", "clipped_share")
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
            adam=AdamSettings(own.generator_learning_rate, own.beta1, own.beta2),
            critic_adam=AdamSettings(own.critic_learning_rate, own.beta1, own.beta2, decay=own.critic_decay),
            ema_decay=own.ema_decay,
            stream=_RNG_STREAM,
        )
        self.newest, self.generator = self.networks.newest.eval(), self.networks.average
        self.loss = loss_of(self.critic, own)
        latent = self.newest.latent_dim
        # Of a record: those of a motion, its nodes, a fake, and alpha and a class.
        self._coins = 6, 2 * warp.NODES**2, latent + latent % 2, 2
        self.coins = sum(self._coins)
        self.way = "vmap" if own.loss == "wgan-gp" else "capture"  # a penalty is not captured
        self.train_privately(self.critic, self.networks.critic_optimizer)
        self._frozen_statistics = False
        self.extra_loss: Callable[[Generator], Tensor] | None = None
        self.pace, self._since, self._accuracy = own.critic_steps_per_generator_step, 0, 1.0

    def _build_critic(self) -> dcgan.Critic | OwnCritic:
        """Build the critic, and check that its layers do not mix records."""
        shape, seed = self._data, self._run.training.seed
        critic = families.build_critic(self.plan.critic_model, shape.image_shape, len(shape.classes), seed=seed)
        validate_network(critic, self.config)
        return critic

    def start_from(self, generator: Generator) -> None:
        """Continue from a trained generator of the same layout; its batch statistics stay unchanged."""
        self.networks.start_from(generator)
        self._frozen_statistics = True

    def share_steps(self, ranks: Ranks) -> None:
        """See `PrivateSteps`: each rank generates its share of the fakes too."""
        refuse_small_shares(self.training.batch_size, "training.batch_size", ranks)
        super().share_steps(ranks)
        self.networks.ranks = ranks

    def step(self, step: int) -> Stats:
        """Take a critic step; after the warm-up a generator's step follows every `pace` of them."""
        stats = self.critic_step(step)
        if step > self.config.critic_warmup and self._since >= self.pace:
            stats |= self.generator_step(step)
        return stats

    def critic_step(self, step: int) -> Stats:
        """Take a private step."""
        fit.set_rate(self.networks.critic_optimizer, self.rate(self.config.critic_learning_rate, step))
        found = self.private_step()
        self._since += 1
        return {"critic_loss" if name == "loss" else name: value for name, value in found.items()}

    # A record's loss: a function of that record, its coins and the weights ----------------------------------------

    def record_loss(self, weights: Weights, *record: Tensor) -> Tensor:
        """Return all terms that one record has a part in."""
        return self.loss.of_record(weights, *record)

    def batch_loss(self, network: nn.Module, *records: Tensor) -> Tensor:
        """Return all terms that each record has a part in."""
        return self.loss.of_records(network, *records)

    @torch.no_grad()
    def prepared(self, images: Tensor, labels: Tensor, *coins: Tensor) -> tuple[Tensor, ...]:
        """Return reals, labels, and a fake, an alpha and a wrong class by each record's own coins; row by row."""
        places, nodes, latent, rest = coins[0].split(self._coins, 1)
        strength, alpha, fake, wrong = self.config.augment, rest[:, 0].float(), images, labels
        if strength and len(images):
            images = warp.move(images, warp.moves_of(places.float(), box_muller(nodes).float(), strength))
        if (self.config.fakes == "paired" or self.config.loss == "wgan-gp") and len(images):
            z = box_muller(latent)[:, : self.newest.latent_dim].float()
            fake = self.newest(z, labels if self.newest.num_classes else None)
        if self.config.mismatch:
            others = self.critic.num_classes - 1
            wrong = (labels + 1 + (rest[:, 1] * others).long().clamp(max=others - 1)) % self.critic.num_classes
        return images, labels, fake, alpha, wrong

    def public_part(self) -> tuple[Any, Any, Sequence[Tensor]] | None:
        """Generate this rank's share of exactly B fakes of uniform labels, unless paired: they and B are public."""
        if self.loss.paired:
            return None
        with torch.no_grad():
            images, labels = self.networks.fakes(self.training.batch_size)
        if labels is None:
            labels = torch.zeros(len(images), dtype=torch.int64, device=self.device)
        return self.loss.of_fake, self.loss.of_fakes, (images, labels)

    # What follows is post-processing of the critic ---------------------------------------------------------------

    def generator_step(self, step: int) -> Stats:
        """Raise the scores of fakes by one Adam step, move the average, and set the pace."""
        self._since = 0
        fit.set_rate(self.networks.generator_optimizer, self.rate(self.config.generator_learning_rate, step))
        self.newest.train(not self._frozen_statistics)
        ranks, size = self.networks.ranks, self.training.batch_size
        images, labels = self.networks.fakes(size)
        scores = self.critic(images, labels)
        loss = distributed.sum_over_ranks(self.loss.of_generator(scores) * ranks.weight(size), ranks)
        if self.extra_loss is not None:
            loss = loss + self.extra_loss(self.newest)
        self.networks.step_generator(loss)
        self.newest.eval()  # critic steps need fakes that do not depend on each other
        accuracy = distributed.sum_over_ranks((scores.detach() < 0).float().mean() * ranks.weight(size), ranks)
        if self.config.adaptive_below:  # let the critic take more steps where it no longer recognizes fakes
            self._accuracy += (1 - _ACCURACY_MEMORY) * (accuracy.item() - self._accuracy)
            if self._accuracy < self.config.adaptive_below:
                self.pace = min(math.ceil(self.pace * _PACE_GROWTH), _MOST_PACE)
                self._accuracy = 1.0  # wait until the new pace has an effect
        return {"generator_loss": loss.detach(), "fake_accuracy": accuracy, "pace": torch.tensor(float(self.pace))}

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


# The audit: a critic whose gradient is the canary ---------------------------------------------------------------------


class _CanaryGan(DpGan):
    def _build_critic(self) -> Any:
        return CanaryNetwork(len(self._images), SLOPE * self.config.clip_norm)


def canaries(section: DpGanConfig, sample_rate: float, noise_multiplier: float, count: int) -> CanarySteps:
    """Return the critic steps as an audit plays them: by a section's loss, fakes, engine and clip norm."""
    still = {"critic_learning_rate": STILL, "critic_decay": 0.0, "augment": 0.0, "mismatch": 0.0}

    def make(split: Split, dpsgd: DPSGDPlan, steps: int, noise: Noise, device: torch.device) -> Training:
        config = DpGanRun(
            model=ModelConfig(width=1, latent_dim=1, conditional=False),
            method=section.model_copy(update={**still, "max_physical_batch": 512}),
            privacy=DpGanPrivacy(epsilon=NO_LIMIT, delta=0.5 / len(split.private), sample_rate=sample_rate),
            training=TrainingConfig(steps=steps, batch_size=dpsgd.divisor),
        )
        # the loss falls where the score rises
        return _CanaryGan.of_canaries(config, split, dpsgd, noise, device).seen_gradients(lambda gradient: -gradient)

    code = (
        "played through the critic steps of dp-gan, with a critic whose gradient is the canary; left out were "
        "augmentation and wrong classes (functions of one record and its own coins) and the generator's steps "
        "(post-processing)"
    )
    return CanarySteps(code, make, sample_rate, noise_multiplier, count, section.clip_norm)


AUDIT = steps_entry("dp-gan", canaries, DpGanConfig(), sample_rate=0.3, steps=50)  # nearly Gaussian
