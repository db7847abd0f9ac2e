"""Config and plan of diffusion: the sums that it starts at, a teacher perhaps, and steps of DP-SGD, from one budget."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator

from idpgan.device import resolve_device
from idpgan.errors import ConfigError
from idpgan.memory import check_memory
from idpgan.models.config import ModelConfig
from idpgan.models.diffusion import ResidualNetwork
from idpgan.models.families import batch_bytes
from idpgan.privacy import Event, Relation, Unit
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.privacy.event import rounding_words
from idpgan.privacy.noise import Source
from idpgan.private.people import GaussianPrivacy
from idpgan.private.shares import noise_on
from idpgan.synthesis.gaussian import GaussianPlan, MomentsConfig
from idpgan.synthesis.sums_plan import SumsRun
from idpgan.training.config import RunConfig, TrainingConfig

_RATE = 2e-3  # of Adam, where noise is no matter
_QUIET = 0.03  # noise of all steps together, in clip norms, up to which it is none
_DRAWS = ((20_000, 1), (5_000, 2), (0, 4))  # by least number of private images: few of them cost little time
MODEL = ModelConfig(generator="diffusion", latent_dim=160, width=32)


class DiffusionConfig(MomentsConfig):
    """[method] of diffusion.

    Attributes:
        start_share: Share of the budget for the sums of moments at which the diffusion starts, as with `gaussian`; the
            teacher has its own, and the steps get the rest.
        draws: K, noisy copies of an image inside its one clipped gradient. None = 1 from 20,000 private images on, 2
            from 5,000 on, else 4: where images are few, copies cost little time.
        clip_norm: C, bound on one image's gradient; a constant, never taken from private gradients.
        learning_rate: Of Adam. None = 2e-3, less in proportion where the noise of all steps together is longer than
            0.03 clip norms.
        cooldown: Share of the steps at the end over which the learning rate falls linearly to zero.
        ema_decay: Weight of the past in the averaged network, which is released.
        max_physical_batch: Images whose gradients are in memory at once, halved by itself where that is too many; a GPU
            takes 2,048 unless another number is set.
    """

    name: Literal["diffusion"] = "diffusion"
    start_share: float = Field(0.5, gt=0, lt=1)
    draws: int | None = Field(None, ge=1, le=1000)
    clip_norm: float = Field(0.2, gt=0)
    learning_rate: float | None = Field(None, gt=0)
    cooldown: float = Field(0.5, ge=0, le=1)
    ema_decay: float = Field(0.98, ge=0, lt=1)
    max_physical_batch: int = Field(128, ge=1)


class DiffusionPrivacy(GaussianPrivacy):
    """[privacy] of diffusion; unit image, zero-out-one.

    Attributes:
        epsilon: Of everything together.
        delta: Below 1/N for N private images, usually ``min(1e-5, 1 / (10 N))``; above 0, as the noise is Gaussian.
        unit: DP-SGD protects one image.
        relation: How neighbors differ; Poisson sampling is accounted under this one.
        most_per_person: Without effect.
    """

    epsilon: float = Field(gt=0)
    unit: Literal[Unit.IMAGE] = Unit.IMAGE
    relation: Literal[Relation.ZERO_OUT] = Relation.ZERO_OUT


class DiffusionTraining(TrainingConfig):
    """[training] of diffusion.

    Attributes:
        steps: Steps of the network.
        batch_size: Expected number of images in a step, each drawn by a coin; all of them up to so many.
    """

    steps: int = Field(400, ge=1, le=1_000_000)
    batch_size: int = Field(2048, ge=1, le=1_000_000)
    tick_steps: int = Field(50, ge=1)


def refuse_other_generators(config: RunConfig) -> None:
    """Refuse a generator that does not draw by diffusion."""
    if config.model.generator != "diffusion":
        raise ConfigError(
            f'model.generator = "{config.model.generator}", but method {config.method.name} trains a denoiser: set '
            'model.generator = "diffusion".'
        )


class DiffusionRun(SumsRun):
    """A whole config file of diffusion."""

    model: ModelConfig = MODEL
    method: DiffusionConfig = DiffusionConfig()
    privacy: DiffusionPrivacy
    training: DiffusionTraining = DiffusionTraining()

    @model_validator(mode="after")
    def _check_parts(self) -> DiffusionRun:
        refuse_other_generators(self)
        shares = ["start_share", "teacher_share", *(["template_share"] if self.model.shape else [])]
        if sum(getattr(self.method, share) for share in shares) >= 1:
            given = ", ".join(f"method.{share} = {getattr(self.method, share):g}" for share in shares)
            raise ConfigError(
                f"{given} leave nothing of the budget for the steps. Lower one of them, or take method gaussian, which "
                "has no steps."
            )
        return self


class DiffusionPlan(GaussianPlan):
    r"""The plan of a run of diffusion: perhaps a template, sums of moments, perhaps a teacher, and T steps of DP-SGD.

    All of them are calibrated together: at a noise multiplier m of everything, the sums have ``m / sqrt(start_share)``,
    and the steps the noise that `idpgan.private.shares` derives for a share of the squared signal. The ledger
    charges the events themselves, and m is the least with which they stay within (epsilon, delta).
    """

    SOURCES = 2

    @property
    def other_share(self) -> float:
        """Share of the budget for the steps."""
        method = self.config.method
        return float(1 - method.start_share - method.teacher_share - self.template_share)

    def others(self, multiplier: float) -> tuple[Event, ...]:
        """Return the charge of all steps."""
        return (self._steps(multiplier).event.repeated(self.config.training.steps),)

    def _steps(self, multiplier: float) -> DPSGDPlan:
        training, num = self.config.training, max(self.shape.num_private, 1)
        rate = min(1.0, training.batch_size / num)
        noise = noise_on(self.other_share, multiplier, training.steps, rate)
        return DPSGDPlan(rate, self.config.method.clip_norm, max(1, round(rate * num)), noise)

    @functools.cached_property
    def dpsgd(self) -> DPSGDPlan:
        """The steps."""
        return self._steps(self.multiplier)

    @property
    def start_events(self) -> tuple[Event, ...]:
        """The price of the template, of the sums, and of the teacher."""
        teacher = () if self.teaching is None else (self.teaching.event,)
        return (*self.template_events, self.sums.event, *teacher)

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of what the steps start from, and of all steps."""
        return (*self.start_events, self.dpsgd.event.repeated(self.config.training.steps))

    @property
    def draws(self) -> int:
        """K."""
        given, num = self.config.method.draws, self.shape.num_private
        return given or next(draws for least, draws in _DRAWS if num >= least)

    @property
    def learning_rate(self) -> float:
        """Of Adam before the cool-down, by public numbers."""
        given, steps, plan = self.config.method.learning_rate, self.config.training.steps, self.dpsgd
        noise = plan.noise_multiplier * math.sqrt(self.num_weights / steps) / plan.divisor
        return given or _RATE * min(1.0, _QUIET / max(noise, 1e-12))

    @property
    def num_weights(self) -> int:
        """Weights that the steps move."""
        with torch.device("meta"):
            network = ResidualNetwork(self.shape.image_shape, self.config.model.width, self.classes, seed=0)
        return sum(weight.numel() for weight in network.parameters())

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name both parts, and where their noise came from."""
        first, rounding = super().reason(events, sources[:1]), rounding_words(events)
        return f"{first}; then DP-SGD on the denoiser, Poisson sampling; {rounding}; noise: {sources[1].name}"

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name what both parts take as public."""
        plan = self.dpsgd
        return (
            *super().assumptions(sources[:1]),
            f"the sampling rate {plan.sample_rate:g} and the divisor {plan.divisor}",
            "the settings: epsilon covers no choice of settings by looking at private images",
        )

    def check(self) -> None:
        """Refuse what the data cannot give and the machine cannot hold; any image size will do."""
        super().check()
        least = min(self.config.method.max_physical_batch, self.config.training.batch_size)
        check_memory(
            least * (4 * self.num_weights + self.draws * batch_bytes(self.config.model, self.shape.image_shape, 1)),
            f"the gradients of method.max_physical_batch = {least} images, each by itself,",
            "Lower it, or model.width.",
            str(resolve_device(self.config.training.device)),
        )
