"""What all classifiers share: checks of the plan, the price of private steps, and the released product.

``training.batch_size`` of a private one is the expected number B of images in a step: each image is drawn with
probability q = min(1, B / N). For B >= N every image is in every step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from idpgan.config import Keys
from idpgan.device import check_memory, resolve_device
from idpgan.errors import ConfigError, InputError
from idpgan.models.config import ModelConfig
from idpgan.models.initialize import without_weights
from idpgan.models.private_classifier import PrivateClassifier, log_odds
from idpgan.privacy import Event, guarantee
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.privacy.noise import Source
from idpgan.private import steps
from idpgan.release.classifier import ClassifierArtifact
from idpgan.training.config import ReleaseConfig, RunConfig
from idpgan.training.method import Method
from idpgan.training.plan import RunPlan

Build = Callable[[Sequence[int], Sequence[str]], PrivateClassifier]
"""Image shape and classes -> the network before the first step; `InputError` where there is none for such images."""

PRIVACY: Keys = {**steps.BUDGET, "noise_multiplier": steps.NOISE_MULTIPLIER}
"""Keys of [privacy] of a private classifier; unit image, zero-out-one."""


# Any classifier ------------------------------------------------------------------------------------------------------


def check(plan: RunPlan, build: Build, step_bytes: Callable[[PrivateClassifier], int], way_out: str) -> None:
    """Refuse a section [model], images without a network, and a step that does not fit in memory.

    Args:
        step_bytes: The least memory that a step takes besides its images and weights.
        way_out: What to do where the memory does not suffice, one sentence.
    """
    plan.refuse_idle_public()
    plan.check_precision()
    config, shape, name = plan.config, plan.shape, plan.config.method.name
    if config.model != ModelConfig():
        raise ConfigError(f"[model] describes a generator, and '{name}' trains a classifier. Leave [model] out.")
    guarantee.check_delta(plan.delta, shape.num_private)
    try:
        with without_weights():
            network = build(shape.image_shape, shape.classes)
    except InputError as error:
        raise ConfigError(str(error)) from error
    what, device = f"a step of '{name}' on {shape.num_private:,} images", str(resolve_device(config.training.device))
    check_memory(step_bytes(network), what, way_out, device)


def misdescribed(build: Build, described: Mapping[str, Any]) -> list[str]:
    """Return where a described network is not that of [method]; see `RunPlan.misdescribed`."""
    try:
        with without_weights():
            network = build(described["image_shape"], described["classes"])
    except (KeyError, InputError):
        return ["the settings train a classifier, which this is not."]
    if (described.get("network"), described.get("options")) != (network.network, network.options()):
        return ["the classifier is not of the run's [method]."]
    return []


def artifact(self: Method, config: ReleaseConfig) -> ClassifierArtifact:
    """Return the product of a classifier's method as a release holds it; each such method has it by this name."""
    return ClassifierArtifact(self.product)


def critic_scores(self: Method, images: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return the log-odds of an image's class, or of the likeliest one, for attacks; see `HasCritic`."""
    logits = self.product.logits(images)
    return log_odds(logits, logits.argmax(1) if labels is None else labels)


def seeded(config: RunConfig, stream: int = 1) -> torch.Generator:
    """Return random numbers of ``training.seed`` that are not privacy noise; stream 0 makes the initial weights."""
    return torch.Generator().manual_seed((config.training.seed + stream * 0x9E3779B97F4A7C15) % 2**63)


# Private ones --------------------------------------------------------------------------------------------------------


class StepsPlan(RunPlan):
    """The plan of a classifier whose steps are those of DP-SGD; a method adds its network and what a step takes.

    Attributes:
        WAY_OUT: What to do where the memory of a step does not suffice, one sentence.
    """

    WAY_OUT: ClassVar[str]

    @property
    def batch(self) -> int:
        """The expected number of images in a step, which divides their noisy sum."""
        return min(self.config.training.batch_size, self.shape.num_private)

    @functools.cached_property
    def dpsgd(self) -> DPSGDPlan:
        """The steps."""
        return steps.steps_at(self, self.batch / self.shape.num_private, self.batch)

    @property
    def events(self) -> tuple[Event, ...]:
        """The price of all steps."""
        return (self.dpsgd.event.repeated(self.config.training.steps),)

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Say how images are drawn."""
        everything = self.config.training.batch_size >= self.shape.num_private
        drawn = "all images in every step" if everything else "Poisson sampling"
        return steps.reason_of_steps(self, f"noisy gradient descent of a classifier, {drawn}", events, sources[0])

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the divisor and the settings."""
        return f"the expected number {self.batch:,} of images in a step, which divides their noisy sum", steps.SETTINGS

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """Return the network before the first step; `InputError` where there is none for such images."""
        raise NotImplementedError

    def step_bytes(self, network: PrivateClassifier) -> int:
        """Return the least memory that a step takes besides its images and weights."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse what no classifier supports, and noise with which not even one step is within the budget."""
        check(self, self.classifier, self.step_bytes, self.WAY_OUT)
        steps.refuse_no_step(self, self.dpsgd)

    def misdescribed(self, described: Mapping[str, Any]) -> list[str]:
        """Compare the described network with that of [method]."""
        return misdescribed(self.classifier, described)
