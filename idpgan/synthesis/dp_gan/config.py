"""Settings and price of dp-gan, known before an image is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from idpgan.data.load import DataShape
from idpgan.device import resolve_device
from idpgan.errors import ConfigError
from idpgan.memory import check_memory
from idpgan.models.config import ModelConfig, classes_of
from idpgan.models.families import critic_bytes
from idpgan.privacy import Event, Relation, Unit, check_delta
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.dpsgd import DPSGDPlan, least_noise
from idpgan.privacy.guarantee import FLOATING_POINT
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.training.config import CHOOSE_DELTA, MethodConfig, PrivacyConfig, RunConfig
from idpgan.training.loop import no_step_affordable
from idpgan.training.signal import Signal


class DpGanConfig(MethodConfig):
    """[method] of dp-gan.

    Attributes:
        loss: "non-saturating" or "wgan-gp".
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
            (Bie et al. 2023, section 4.3). 0 = fixed pace. "non-saturating" only.
        critic_warmup: Critic steps before the first generator step.
        critic_learning_rate: Of Adam.
        critic_decay: Decoupled weight decay of the critic, times its learning rate. It bounds what the noise of
            thousands of steps adds up to: a standard deviation of about ``sqrt(rate / (2 decay))`` per weight.
        generator_learning_rate: Of Adam.
        cooldown: Share of the steps at the end over which both learning rates fall linearly to zero.
        beta1: Decay of Adam's first moment.
        beta2: Decay of Adam's second moment.
        ema_decay: Weight of the past in the averaged generator.
        max_physical_batch: Records whose gradients are in memory at once; halved by itself where that is too many.
    """

    name: Literal["dp-gan"] = "dp-gan"
    loss: Literal["non-saturating", "wgan-gp"] = "non-saturating"
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
        return self


class DpGanPrivacy(PrivacyConfig):
    """[privacy] of dp-gan; unit image, zero-out-one.

    Attributes:
        epsilon: What the run may spend; the step that would exceed it is not taken.
        delta: Below 1/N.
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

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`."""
        return Unit.IMAGE, Relation.ZERO_OUT, Budget(self.privacy.epsilon, self.privacy.delta)

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`."""
        return (self.step_event().repeated(self.training.steps),)

    def reason(self, shape: DataShape, events: Sequence[Event], noise: Sequence[Source]) -> str:
        """See `RunConfig.reason`."""
        return f"DP-SGD on the critic, Poisson sampling; {FLOATING_POINT}; noise: {noise[0].name}"

    def public_assumptions(self, shape: DataShape, noise: Sequence[Source]) -> tuple[str, ...]:
        """See `RunConfig.public_assumptions`."""
        return (
            f"the sampling rate {self.privacy.sample_rate:g} and the divisor {self.training.batch_size}",
            "the settings: epsilon covers no choice of settings by looking at private images",
        )

    def check(self, shape: DataShape) -> None:
        """See `RunConfig.check`."""
        super().check(shape)
        _check_divisor(self, shape.num_private)
        classes = classes_of(self.model, len(shape.classes))
        if self.method.mismatch and classes < 2:
            raise ConfigError(
                f"method.mismatch = {self.method.mismatch:g} needs at least 2 classes, and the critic has "
                f"{classes}. Set method.mismatch = 0."
            )
        least = min(self.method.max_physical_batch, self.training.batch_size)
        check_memory(
            least * critic_bytes(self.critic_model, shape.image_shape, classes),
            f"the gradients of method.max_physical_batch = {least} images, each by itself,",
            "Lower it, or method.critic_width (model.width).",
            str(resolve_device(self.training.device)),
        )
        if self.privacy.noise_multiplier is not None:
            event, privacy = self.step_event(), self.privacy
            if compose_epsilon([event], privacy.delta) > privacy.epsilon:
                raise no_step_affordable(event, Budget(privacy.epsilon, privacy.delta))

    def signal_to_noise(self, shape: DataShape) -> Signal:
        """See `RunConfig.signal_to_noise`: of all critic steps together, if every record pulled one way in all of them.

        A step adds up q N gradients of norm at most C, and noise of standard deviation sigma C on every weight; over T
        steps the first grows with T, the second with its root.
        """
        classes = classes_of(self.model, len(shape.classes))
        weights = critic_bytes(self.critic_model, shape.image_shape, classes) / 4
        steps, event = self.training.steps, self.step_event()
        noise = (event.noise_multiplier or 0.0) * math.sqrt(weights / steps) / self.privacy.sample_rate
        return Signal(shape.num_private / max(classes, 1), max(classes, 1), noise, "the DP-SGD steps")

    @property
    def critic_model(self) -> ModelConfig:
        """The [model] section as the critic has it."""
        return self.model.model_copy(update={"width": self.method.critic_width or self.model.width})

    @property
    def plan(self) -> DPSGDPlan:
        """The critic's steps."""
        privacy = self.privacy
        return DPSGDPlan(
            sample_rate=privacy.sample_rate,
            clip_norm=self.method.clip_norm,
            divisor=self.training.batch_size,
            noise_multiplier=privacy.noise_multiplier
            or least_noise(privacy.epsilon, privacy.delta, privacy.sample_rate, self.training.steps),
        )

    def step_event(self) -> Event:
        """Return the price of one critic step."""
        return self.plan.event


def _check_divisor(config: DpGanRun, num_private: int) -> None:
    """Refuse a divisor that is not about q N, and a delta that means nothing for N images."""
    check_delta(config.privacy.delta, num_private)
    expected, size = config.privacy.sample_rate * num_private, config.training.batch_size
    if not expected / 2 <= size <= 2 * expected:
        raise ConfigError(
            f"training.batch_size = {size} divides the noisy sum of about {expected:.0f} images (privacy.sample_rate "
            f"= {config.privacy.sample_rate:g} of {num_private}); it must be within a factor of 2 of that. Set "
            f"privacy.sample_rate to about {size / num_private:.4g}, or training.batch_size to "
            f"{max(1, round(expected))}."
        )
