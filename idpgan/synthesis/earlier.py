"""Methods that went with 0.4.0, as far as the price of what they released follows from its settings: nothing trains.

The proofs are in the code of commit 1aef30f1: `synthesis/local_channel.py`, and `synthesis/hybrid.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from idpgan.errors import ConfigError
from idpgan.privacy import DiscreteLaplace, Event, Grid, RandomizedResponse, Relation, RoundedGaussian, Unit
from idpgan.privacy.accounting import calibrate
from idpgan.privacy.noise import Source
from idpgan.privacy.plan import Budget
from idpgan.private.people import AggregatePrivacy
from idpgan.synthesis.aggregate.config import AggregateConfig, AggregatePlan, AggregateRun, AggregateTraining
from idpgan.synthesis.dp_gan.config import DpGanConfig, DpGanPlan, DpGanPrivacy, DpGanRun
from idpgan.synthesis.wgan_gp import WganGpConfig
from idpgan.training.config import MethodConfig, PrivacyConfig, RunConfig
from idpgan.training.plan import RunPlan

# idp-gan-local: every image and its label went through a channel of its own, once ------------------------------------

_LOCAL = (Unit.IMAGE, Relation.REPLACE_ONE)


class LocalConfig(WganGpConfig):
    """[method] of idp-gan-local: k coefficients in a public basis, each clamped, or clipped together in a norm."""

    name: Literal["idp-gan-local"] = "idp-gan-local"  # type: ignore[assignment]  # the same section, another method
    projection: Literal["pixels", "dct", "public-pca"] = "pixels"
    coefficients: int | None = Field(None, ge=1)
    bound: Literal["clamp", "l1", "l2"] = "clamp"
    clip_norm: float | None = Field(None, gt=0)


class LocalPrivacy(PrivacyConfig):
    """[privacy] of idp-gan-local; the label's randomized response takes ``label_epsilon`` of ``epsilon``."""

    epsilon: float = Field(gt=0)
    delta: float | None = Field(None, ge=0, lt=1)
    label_epsilon: float | None = Field(None, gt=0, le=30)


class LocalRun(RunConfig):
    """A whole config file of idp-gan-local."""

    method: LocalConfig = LocalConfig()
    privacy: LocalPrivacy

    @property
    def raw_labels(self) -> bool:
        """Whether labels were used without protection."""
        return self.model.conditional and self.privacy.label_epsilon is None

    @model_validator(mode="after")
    def _check(self) -> LocalRun:
        label, method = self.privacy.label_epsilon, self.method
        if label is not None and not (self.model.conditional and label < self.privacy.epsilon):
            raise ConfigError(f"privacy.label_epsilon = {label:g} is not part of epsilon, or there are no labels.")
        if (method.projection == "pixels") != (method.coefficients is None):
            raise ConfigError(f"method.coefficients = {method.coefficients} does not fit to method.projection.")
        return self


class LocalPlan(RunPlan):
    """The price of a run of idp-gan-local."""

    @property
    def budget(self) -> Budget | None:
        """What was asked for; raw labels have none."""
        return None if self.config.raw_labels else super().budget

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The least noise that keeps the image and its label within the budget."""
        privacy, pixels = self.config.privacy, math.prod(self.shape.image_shape)
        size = self.config.method.coefficients or pixels
        if size > pixels:
            raise ConfigError(f"method.coefficients = {size} must lie in 1 .. {pixels}, the numbers of an image.")
        labels: tuple[Event, ...] = ()
        if privacy.label_epsilon is not None and self.classes:
            labels = (RandomizedResponse(self.classes, privacy.label_epsilon, *_LOCAL).event,)
        found = calibrate(lambda noise: (self._image(size, noise), *labels), privacy.epsilon, self.delta)
        unpaid = (Event.non_private("raw labels are an input of the critic", *_LOCAL),)
        return (self._image(size, found), *labels, *(unpaid if self.config.raw_labels else ()))

    def _image(self, size: int, noise_multiplier: float) -> Event:
        """Return the price of an image: replacing it moves each coefficient, or the norm of all, by at most 2."""
        bound = self.config.method.bound
        length, norm = (1, 1) if bound == "clamp" else (size, 1 if bound == "l1" else 2)
        grid = Grid.fine(2.0, length, norm=norm)
        if norm == 2:
            far = grid.l2(2.0, length)
            return RoundedGaussian(far, math.ceil(noise_multiplier * far), *_LOCAL).event
        steps = grid.l1(2.0, length)
        return DiscreteLaplace(steps, math.ceil(noise_multiplier * steps), *_LOCAL).event.repeated(size // length)

    @property
    def claimed(self) -> None:
        """No paper claims anything of this method."""

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the noise, and what public images had set."""
        method, learned = self.config.method, "basis and bounds of the coefficients were computed from public images"
        plain = method.projection == "pixels" and (method.bound == "clamp" or method.clip_norm)
        return f"noise source: {sources[0].name}", *((learned,) if self.shape.sizes.public and not plain else ())


class Local:
    """What is left of idp-gan-local."""

    Settings, Plan = LocalRun, LocalPlan


# hybrid: a release of sums at a share of epsilon, then critic steps of dp-gan with what it left, on one ledger --------


class HybridConfig(MethodConfig):
    """[method] of hybrid; its first ``aggregate_steps`` read nothing private."""

    name: Literal["hybrid"] = "hybrid"
    share: float = Field(0.1, gt=0, lt=1)
    aggregate_steps: int = Field(2000, ge=1)
    aggregate_batch_size: int = Field(250, ge=1)
    match: float = Field(100.0, ge=0)
    aggregate: AggregateConfig = AggregateConfig()
    dp_gan: DpGanConfig = DpGanConfig(critic_warmup=300)


class HybridPrivacy(PrivacyConfig):
    """[privacy] of hybrid, of both parts together."""

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    sample_rate: float | None = Field(None, gt=0, le=1)


class HybridRun(RunConfig):
    """A whole config file of hybrid."""

    ABILITIES = frozenset({"move"})

    method: HybridConfig = HybridConfig()
    privacy: HybridPrivacy

    @model_validator(mode="after")
    def _check(self) -> HybridRun:
        if self.method.dp_gan.looks_at_public or self.training.steps <= self.method.aggregate_steps:
            raise ConfigError("hybrid had no public start, and more training.steps than method.aggregate_steps.")
        return self


class HybridPlan(RunPlan):
    """The price of a run of hybrid: those of both parts."""

    SOURCES = 2

    @functools.cached_property
    def first(self) -> AggregatePlan:
        """The release of sums."""
        config, privacy = self.config, self.config.privacy
        steps = {"steps": config.method.aggregate_steps, "batch_size": config.method.aggregate_batch_size}
        delta = 0.0 if config.method.aggregate.law == "laplace" else privacy.delta  # Laplace noise is pure
        part = AggregateRun(
            data=config.data,
            model=config.model.model_copy(update={"critic": "dcgan"}),
            method=config.method.aggregate,
            privacy=AggregatePrivacy(epsilon=config.method.share * privacy.epsilon, delta=delta),
            training=AggregateTraining(**(config.training.model_dump() | steps)),
        )
        return AggregatePlan(part, self.shape)

    @functools.cached_property
    def second(self) -> DpGanPlan:
        """The critic steps."""
        config, privacy = self.config, self.config.privacy
        part = DpGanRun(
            data=config.data,
            model=config.model.model_copy(update={"moved": 0, "origin": None}),
            method=config.method.dp_gan,
            privacy=DpGanPrivacy(epsilon=privacy.epsilon, delta=privacy.delta, sample_rate=privacy.sample_rate),
            training=config.training.model_copy(
                update={"steps": config.training.steps - config.method.aggregate_steps}
            ),
        )
        return DpGanPlan(part, self.shape, self.first.events)

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of the release, then of the critic steps."""
        return (*self.first.events, *self.second.events)

    @property
    def candidates(self) -> int | None:
        """Images that the released generator draws for each one that its teacher chooses; None without a teacher."""
        return self.first.candidates

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name what both parts took as public."""
        second = self.second
        second.reads_public = True
        return (*self.first.assumptions(sources[:1]), *second.assumptions(sources[1:]))


class Hybrid:
    """What is left of hybrid."""

    Settings, Plan = HybridRun, HybridPlan
