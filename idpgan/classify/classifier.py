"""What all classifiers share: checks of the plan, the price of a private step, and the released product."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from idpgan.data.load import Split, place
from idpgan.device import resolve_device
from idpgan.errors import ConfigError, InputError
from idpgan.memory import check_memory
from idpgan.models.config import ModelConfig
from idpgan.models.initialize import without_weights
from idpgan.models.private_classifier import PrivateClassifier, log_odds
from idpgan.privacy import Event, guarantee
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.privacy.noise import Source
from idpgan.private.steps import SETTINGS, StepsPlan
from idpgan.release.classifier import ClassifierArtifact
from idpgan.training.config import CHOOSE_DELTA, PrivacyConfig, ReleaseConfig, RunConfig
from idpgan.training.method import Method
from idpgan.training.plan import RunPlan


class ClassifierPlan(RunPlan):
    """The plan of a run of a classifier, private or not.

    Attributes:
        WAY_OUT: What to do where the memory does not suffice, one sentence.
    """

    WAY_OUT: ClassVar[str]

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """Return the network before the first step.

        Raises:
            InputError: If no network is built for such images or classes.
        """
        raise NotImplementedError

    def step_bytes(self, classifier: PrivateClassifier) -> int:
        """Return the least memory that a step takes besides its images and weights."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse a section [model], images without a network, and a step that does not fit in memory."""
        self.refuse_idle_public()
        self.check_precision()
        config, shape, name = self.config, self.shape, self.config.method.name
        if config.model != ModelConfig():
            raise ConfigError(f"[model] describes a generator, and '{name}' trains a classifier. Leave [model] out.")
        guarantee.check_delta(self.delta, shape.num_private)
        try:
            with without_weights():
                classifier = self.classifier(shape.image_shape, shape.classes)
        except InputError as error:
            raise ConfigError(str(error)) from error
        check_memory(
            self.step_bytes(classifier),
            f"a step of '{name}' on {shape.num_private:,} images",
            self.WAY_OUT,
            str(resolve_device(config.training.device)),
        )

    def misdescribed(self, described: Mapping[str, Any]) -> list[str]:
        """Compare the described network with that of [method]."""
        try:
            with without_weights():
                made = self.classifier(described["image_shape"], described["classes"])
        except (KeyError, InputError):
            return ["the settings train a classifier, which this is not."]
        if (described.get("network"), described.get("options")) != (made.network, made.options()):
            return ["the classifier is not of the run's [method]."]
        return []


class ClassifierPrivacy(PrivacyConfig):
    """[privacy] of a classifier; unit image, zero-out-one.

    Attributes:
        epsilon: What the run may spend; the step that would exceed it is not taken.
        delta: Below 1/N for N private images, usually ``min(1e-5, 1 / (10 N))``; above 0, as the noise is Gaussian.
        noise_multiplier: sigma; None = the least with which ``training.steps`` steps stay within epsilon.
    """

    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1, json_schema_extra={"hint": CHOOSE_DELTA})
    noise_multiplier: float | None = Field(None, gt=0)


class ClassifierRun(RunConfig):
    """A whole config file of a private classifier, whose [method] has a ``clip_norm``.

    ``training.batch_size`` is the expected number B of images in a step: each image is drawn with probability
    q = min(1, B / N). For B >= N every image is in every step.
    """

    method: Any
    privacy: ClassifierPrivacy


class ClassifierSteps(StepsPlan, ClassifierPlan):
    """The plan of a run of a private classifier: steps of DP-SGD."""

    @functools.cached_property
    def dpsgd(self) -> DPSGDPlan:  # type: ignore[override]  # found when it is asked for
        """The steps."""
        batch = min(self.config.training.batch_size, self.shape.num_private)
        return self.steps_at(batch / self.shape.num_private, batch)

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Say how images are drawn."""
        everything = self.config.training.batch_size >= self.shape.num_private
        drawn = "all images in every step" if everything else "Poisson sampling"
        return self.reason_of(f"noisy gradient descent of a classifier, {drawn}", events, sources[0])

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the divisor and the settings."""
        batch = min(self.config.training.batch_size, self.shape.num_private)
        return f"the expected number {batch:,} of images in a step, which divides their noisy sum", SETTINGS

    def check(self) -> None:
        """Refuse what no classifier supports, and noise with which not even one step is within the budget."""
        super().check()
        self.refuse_no_step()


class GivesClassifier(Method):
    """A method that releases a classifier, and lets attackers query it.

    Attributes:
        newest: The network that is trained; it has no layer that differs between training and use.
        NULL_RECORDS: Whether null records are read like any other; otherwise at least one record must not be null.
    """

    newest: PrivateClassifier
    NULL_RECORDS: ClassVar[bool] = True

    plan: ClassifierPlan

    def _set_up(self, split: Split) -> None:
        self._images = place(split.private if self.NULL_RECORDS else split.private.existing(least=1), self.device)
        self.newest = self._build().to(self.device)

    def _build(self) -> Any:
        return self.plan.classifier(self._data.image_shape, self._data.classes).eval()

    @property
    def product(self) -> PrivateClassifier:
        """The released classifier."""
        return self.newest

    def artifact(self, config: ReleaseConfig) -> ClassifierArtifact:
        """Return the classifier as a release holds it."""
        return ClassifierArtifact(self.product)

    def critic_scores(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the log-odds of an image's class, or of the likeliest one; see `HasCritic`."""
        logits = self.product.logits(images)
        return log_odds(logits, logits.argmax(1) if labels is None else labels)

    def seeded(self, stream: int = 1) -> torch.Generator:
        """Return random numbers of ``training.seed`` that are not privacy noise; stream 0 makes the initial weights."""
        seed: int = self._run.training.seed
        return torch.Generator().manual_seed((seed + stream * 0x9E3779B97F4A7C15) % 2**63)
