"""What the settings of all classifiers have in common: what is refused, and of private ones the price of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field

from idpgan.data.load import DataShape
from idpgan.device import resolve_device
from idpgan.errors import ConfigError, InputError
from idpgan.memory import check_memory
from idpgan.models.config import ModelConfig
from idpgan.models.private_classifier import PrivateClassifier
from idpgan.privacy import Event, Relation, Unit
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.dpsgd import DPSGDPlan, least_noise
from idpgan.privacy.guarantee import FLOATING_POINT
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.training.config import CHOOSE_DELTA, PrivacyConfig, RunConfig
from idpgan.training.loop import no_step_affordable


class ClassifierPrivacy(PrivacyConfig):
    """[privacy] of a classifier; unit image, zero-out-one.

    Attributes:
        epsilon: What the run may spend; the step that would exceed it is not taken.
        delta: Below 1/N.
        noise_multiplier: sigma; None = the least with which ``training.steps`` steps stay within epsilon.
    """

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1, description=CHOOSE_DELTA)
    noise_multiplier: float | None = Field(None, gt=0)


class ClassifierConfig(RunConfig):
    """A whole config file of a classifier, private or not; a method narrows [method]."""

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """Return the network before the first step.

        Raises:
            InputError: If there is none for such images or classes.
        """
        raise NotImplementedError

    def step_bytes(self, classifier: PrivateClassifier, num_private: int) -> int:
        """Return the memory that a step takes at least, its images and weights aside."""
        raise NotImplementedError

    def check(self, shape: DataShape) -> None:
        """See `RunConfig.check`; no generator is built."""
        if self.model != ModelConfig():
            raise ConfigError(
                f"[model] describes a generator, and '{self.method.name}' trains a classifier. Leave [model] out."
            )
        self.stated_delta(shape.num_private)
        try:
            with torch.device("meta"):
                classifier = self.classifier(shape.image_shape, shape.classes)
        except InputError as error:
            raise ConfigError(str(error)) from error
        check_memory(
            self.step_bytes(classifier, shape.num_private),
            f"a step of '{self.method.name}' on {shape.num_private:,} images",
            self.way_out,
            str(resolve_device(self.training.device)),
        )

    @property
    def way_out(self) -> str:
        """What to do where the memory does not suffice, one sentence."""
        raise NotImplementedError

    def misdescribed(self, described: Mapping[str, Any]) -> list[str]:
        """See `RunConfig.misdescribed`."""
        try:
            with torch.device("meta"):
                made = self.classifier(described["image_shape"], described["classes"])
        except (KeyError, InputError):
            return ["the settings train a classifier, which this is not."]
        if (described.get("network"), described.get("options")) != (made.network, made.options()):
            return ["the classifier is not of the run's [method]."]
        return []


class ClassifierRun(ClassifierConfig):
    """A whole config file of a private classifier.

    ``training.batch_size`` is the expected number B of images in a step: each is drawn by a coin of chance
    q = min(1, B / N). From B = N on every image is in every step.
    """

    privacy: ClassifierPrivacy

    def plan(self, num_private: int) -> DPSGDPlan:
        """Return the steps for N private images."""
        terms, batch = self.privacy, min(self.training.batch_size, num_private)
        rate = batch / num_private
        sigma = terms.noise_multiplier or least_noise(terms.epsilon, terms.delta, rate, self.training.steps)
        return DPSGDPlan(sample_rate=rate, clip_norm=self.clip_norm, divisor=batch, noise_multiplier=sigma)

    @property
    def clip_norm(self) -> float:
        """C."""
        raise NotImplementedError

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`."""
        return Unit.IMAGE, Relation.ZERO_OUT, Budget(self.privacy.epsilon, self.privacy.delta)

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`."""
        return (self.plan(shape.num_private).event.repeated(self.training.steps),)

    def reason(self, shape: DataShape, events: Sequence[Event], noise: Sequence[Source]) -> str:
        """See `RunConfig.reason`."""
        batch = min(self.training.batch_size, shape.num_private)
        drawn = "all images in every step" if batch == shape.num_private else "Poisson sampling"
        return f"noisy gradient descent of a classifier, {drawn}; {FLOATING_POINT}; noise: {noise[0].name}"

    def public_assumptions(self, shape: DataShape, noise: Sequence[Source]) -> tuple[str, ...]:
        """See `RunConfig.public_assumptions`."""
        batch = min(self.training.batch_size, shape.num_private)
        return (
            f"the expected number {batch:,} of images in a step, which divides their noisy sum",
            "the settings: epsilon covers no choice of settings by looking at private images",
        )

    def check(self, shape: DataShape) -> None:
        """See `RunConfig.check`."""
        super().check(shape)
        if self.privacy.noise_multiplier is not None:
            event, terms = self.plan(shape.num_private).event, self.privacy
            if compose_epsilon([event], terms.delta) > terms.epsilon:
                raise no_step_affordable(event, Budget(terms.epsilon, terms.delta))
