"""What all classifiers share: checks of the plan, the price of private steps, and the released product.

``training.batch_size`` of a private one is the expected number B of images in a step: each image is drawn with
probability q = min(1, B / N). For B >= N every image is in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from idpgan.config import Keys, key
from idpgan.device import resolve_device
from idpgan.errors import ConfigError, InputError
from idpgan.memory import check_memory
from idpgan.models.config import ModelConfig
from idpgan.models.initialize import without_weights
from idpgan.models.private_classifier import PrivateClassifier, log_odds
from idpgan.privacy import Event, guarantee
from idpgan.privacy.dpsgd import DPSGDPlan
from idpgan.privacy.noise import Source
from idpgan.private import steps
from idpgan.training.config import CHOOSE_DELTA, RunConfig
from idpgan.training.plan import RunPlan

Build = Callable[[Sequence[int], Sequence[str]], PrivateClassifier]
"""Image shape and classes -> the network before the first step; `InputError` where there is none for such images."""

PRIVACY: Keys = {
    "epsilon": key(float, ..., "What the run may spend; the step that would exceed it is not taken.", gt=0),
    "delta": key(
        float,
        ...,
        "Below 1/N for N private images, usually ``min(1e-5, 1 / (10 N))``; above 0, as the noise is Gaussian.",
        gt=0,
        lt=1,
        hint=CHOOSE_DELTA,
    ),
    "noise_multiplier": key(
        float | None,
        None,
        "sigma; None = the least with which ``training.steps`` steps stay within epsilon.",
        gt=0,
    ),
}
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


def scores(network: PrivateClassifier, images: Tensor, labels: Tensor | None) -> Tensor:
    """Return the log-odds of an image's class, or of the likeliest one, for attacks; see `HasCritic`."""
    logits = network.logits(images)
    return log_odds(logits, logits.argmax(1) if labels is None else labels)


def seeded(config: RunConfig, stream: int = 1) -> torch.Generator:
    """Return random numbers of ``training.seed`` that are not privacy noise; stream 0 makes the initial weights."""
    return torch.Generator().manual_seed((config.training.seed + stream * 0x9E3779B97F4A7C15) % 2**63)


# Private ones --------------------------------------------------------------------------------------------------------


def dpsgd_of(plan: RunPlan) -> DPSGDPlan:
    """Return the steps of DP-SGD of a run."""
    batch = min(plan.config.training.batch_size, plan.shape.num_private)
    return steps.steps_at(plan, batch / plan.shape.num_private, batch)


def reason(plan: RunPlan, events: Sequence[Event], sources: Sequence[Source]) -> str:
    """Say how images are drawn."""
    everything = plan.config.training.batch_size >= plan.shape.num_private
    drawn = "all images in every step" if everything else "Poisson sampling"
    return steps.reason_of_steps(plan, f"noisy gradient descent of a classifier, {drawn}", events, sources[0])


def assumptions(plan: RunPlan) -> tuple[str, ...]:
    """Name the divisor and the settings."""
    batch = min(plan.config.training.batch_size, plan.shape.num_private)
    return f"the expected number {batch:,} of images in a step, which divides their noisy sum", steps.SETTINGS
