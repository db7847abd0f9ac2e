"""Settings and price of idp-gan-published, known before an image is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import one_hot

from idpgan.data.load import DataShape
from idpgan.errors import ConfigError
from idpgan.models.config import classes_of
from idpgan.models.losses import taylor_sensitivity
from idpgan.models.perturbed import Draw, ImageShape, PixelNoise, first_layer, paper_sensitivity
from idpgan.privacy import Event, Guarantee, RandomizedResponse, Relation, Unit
from idpgan.privacy.guarantee import FLOATING_POINT
from idpgan.privacy.noise import Source
from idpgan.training.config import MethodConfig, PrivacyConfig, RunConfig

ADJACENCY = (Unit.IMAGE, Relation.REPLACE_ONE)
_LEAKED_LABELS = "raw labels reach the critic past the noise (label_path = autograd)"
_INPUT_LABELS = "raw labels are an input of the critic"


class PublishedConfig(MethodConfig):
    """[method] of idp-gan-published.

    Attributes:
        first_layer: "conv" (5 x 5, stride 2) or "linear", of `model.width` maps or neurons.
        features: d = |h_k|, the last hidden features.
        label_input: Whether the critic gets the label as an input too; needs ``privacy.label_epsilon``.
        allocation: "uniform", or "relevance" measured on public images.
        relevance_floor: Least relevance of a pixel, relative to the mean, in (0, 1].
        critic_steps_per_generator_step: 5 in improved WGAN.
        gradient_penalty: Weight of the penalty.
        learning_rate: Of Adam, for both networks; 5e-5 in the paper (table 1).
        beta1: Decay of Adam's first moment.
        beta2: Decay of Adam's second moment.
        l2: Weight of the L2 term ``l2 / 2 ||w||^2`` on both networks.
        ema_decay: Weight of the past in the averaged generator.
    """

    name: Literal["idp-gan-published"] = "idp-gan-published"
    first_layer: Literal["conv", "linear"] = "conv"
    features: int = Field(32, ge=1, le=1024)
    label_input: bool = False
    allocation: Literal["uniform", "relevance"] = "uniform"
    relevance_floor: float = Field(0.1, gt=0, le=1)
    critic_steps_per_generator_step: int = Field(5, ge=1)
    gradient_penalty: float = Field(10.0, ge=0)
    learning_rate: float = Field(5e-5, gt=0)
    beta1: float = Field(0.0, ge=0, lt=1)
    beta2: float = Field(0.9, ge=0, lt=1)
    l2: float = Field(1e-5, ge=0)
    ema_decay: float = Field(0.999, ge=0, lt=1)


class PublishedPrivacy(PrivacyConfig):
    """[privacy] of idp-gan-published: what the noise follows from has no defaults.

    Attributes:
        epsilon1: Budget that the paper gives to the first layer.
        epsilon2: Budget that the paper gives to the loss.
        noise: When pixel noise is drawn: "once", "per_step" or "per_batch".
        sensitivity: Overrides the paper's D0; None is its formula.
        label_path: How private labels reach the critic; see docs/deviations.md, IDP-GAN 11.
        label_epsilon: Labels go once through randomized response of this epsilon, before anything else uses them;
            None leaves them to the noise of the coefficients.
    """

    epsilon1: float = Field(gt=0)
    epsilon2: float = Field(gt=0)
    noise: Draw
    sensitivity: float | None = Field(None, gt=0)
    label_path: Literal["coefficients", "autograd"] = "coefficients"
    label_epsilon: float | None = Field(None, gt=0, le=30)


class PublishedRun(RunConfig):
    """A whole config file of idp-gan-published."""

    method: PublishedConfig = PublishedConfig()
    privacy: PublishedPrivacy

    @model_validator(mode="after")
    def _check_labels(self) -> PublishedRun:
        raw = self.method.label_input and self.privacy.label_epsilon is None
        if raw and not self.model.conditional:
            raise ConfigError("method.label_input = true needs model.conditional = true: there are no labels.")
        if raw and not self.privacy.accept_unsound:
            raise ConfigError(
                "method.label_input = true makes raw labels an input of the critic, which nothing protects. Set "
                "privacy.label_epsilon for one randomized response, or privacy.accept_unsound = true."
            )
        return self

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """Return all charges; the noise follows from the paper's formula, so there is no target.

        With allocation by relevance, which is known only after public images are read, the pixels stand as one read of
        the pure epsilon that they cost at most.
        """
        return planned(self, shape.image_shape, len(shape.classes), shape.num_private)

    def claimed(self, shape: DataShape) -> Guarantee:
        """Return what the paper claims, eps1 + eps2."""
        basis = "Yang, Zhou and Ning, section 2.2.3, Algorithm 1, line 12: eps1 + eps2, whatever the number of epochs"
        return Guarantee(self.privacy.epsilon1 + self.privacy.epsilon2, 0.0, *ADJACENCY, basis)

    def public_assumptions(self, shape: DataShape, noise: Sequence[Source]) -> tuple[str, ...]:
        """Name the noise and the batch size."""
        return f"noise source: {noise[0].name}", f"|L| = {self.training.batch_size}"

    def reason(self, shape: DataShape, events: Sequence[Event], noise: Sequence[Source]) -> str:
        """Say what nothing protects, or how the noise was sized."""
        broken = [event.reason for event in events if event.reason]
        if broken:
            return "; ".join(dict.fromkeys(broken))
        pixels = pixel_noise(self, shape.image_shape)
        times = (
            "once" if pixels.draw == "once" else f"at each of at most {most_accesses(self, shape.num_private)} accesses"
        )
        return (
            f"each of an image's {pixels.num_pixels} numbers, of range 2, gets Laplace noise of scale "
            f"{pixels.scale:.4g} {times}; the paper sizes that noise by its first layer and the batch size, which "
            f"bound no image's influence; {FLOATING_POINT}"
        )

    def check(self, shape: DataShape) -> None:
        """Refuse batches larger than the data, and relevance without labeled public images."""
        super().check(shape)
        most_accesses(self, shape.num_private)
        if self.method.allocation == "relevance" and not (shape.sizes.public and shape.classes):
            raise ConfigError(
                "method.allocation = relevance needs public images with labels: set data.public_share or public_root."
            )

    @property
    def plans_exactly(self) -> bool:
        """Whether no public image has a say in the allocation of the noise."""
        return self.method.allocation == "uniform"


def label_outputs(config: PublishedRun, num_classes: int) -> int:
    """Return how many outputs learn the label: one per attribute of `data.label`, else per class; 0: unconditional."""
    classes = classes_of(config.model, num_classes)
    return len(config.data.attributes) if classes and config.data.attributes else classes


def label_targets(config: PublishedRun, labels: Tensor, num_classes: int) -> Tensor:
    """Return y of the label outputs, float (B, M - 1) of 0 and 1: the attributes' bits, or one 1 at the class."""
    if config.data.attributes:
        return (labels.unsqueeze(1) >> torch.arange(len(config.data.attributes), device=labels.device) & 1).float()
    return one_hot(labels, num_classes).float()


def num_outputs(config: PublishedRun, num_classes: int) -> int:
    """Return M: one real/fake output, and those of the label."""
    return 1 + label_outputs(config, num_classes)


def pixel_noise(config: PublishedRun, image_shape: ImageShape) -> PixelNoise:
    """Return the noise that the paper's formula gives, allotted uniformly."""
    with torch.device("meta"):
        layer = first_layer(config.method.first_layer, config.model, image_shape)
    formula = float(paper_sensitivity(layer, image_shape))
    sensitivity = config.privacy.sensitivity or formula
    return PixelNoise(
        image_shape, sensitivity / (config.privacy.epsilon1 * config.training.batch_size), config.privacy.noise
    )


def coefficient_scale(config: PublishedRun, num_classes: int) -> float:
    """Return the scale of the noise on one coefficient of one record, ``DF / (eps2 |L|)``."""
    bound = taylor_sensitivity(num_outputs(config, num_classes), config.method.features)
    return bound / (config.privacy.epsilon2 * config.training.batch_size)


def most_accesses(config: PublishedRun, num_private: int) -> int:
    """Return ceil(T |L| / N), the most often that an image can be drawn; a batch larger than the data is refused."""
    steps, batch_size = config.training.steps, config.training.batch_size
    if batch_size > num_private:
        raise ConfigError(
            f"training.batch_size = {batch_size} (|L|) exceeds the {num_private} private images: a batch would hold an "
            f"image twice. Set it to {num_private} at most."
        )
    return math.ceil(steps * batch_size / num_private)


def planned(
    config: PublishedRun, image_shape: ImageShape, num_classes: int, num_private: int, pixels: PixelNoise | None = None
) -> tuple[Event, ...]:
    """Return all charges of a run: pixels first, then labels.

    ``pixels`` is the noise with its allocation, once that is known.
    """
    accesses = most_accesses(config, num_private)
    uniform = pixel_noise(config, image_shape)
    if pixels is None and config.method.allocation == "relevance" and uniform.draw != "per_batch":
        repeats = 1 if uniform.draw == "once" else accesses
        cost: tuple[Event, ...] = (Event("exponential", *ADJACENCY, pure_epsilon=uniform.pure_epsilon, count=repeats),)
    else:
        cost = (pixels or uniform).events(accesses)
    return cost + label_events(config, num_classes, accesses)


def label_events(config: PublishedRun, num_classes: int, accesses: int) -> tuple[Event, ...]:
    """Return what the label of one image pays (docs/deviations.md, IDP-GAN 11, 12, 18)."""
    classes, privacy = classes_of(config.model, num_classes), config.privacy
    if classes == 0:
        return ()
    if privacy.label_epsilon is not None:
        return (RandomizedResponse(classes, privacy.label_epsilon, *ADJACENCY).event,)
    if config.method.label_input or privacy.label_path == "autograd":
        return (Event.non_private(_INPUT_LABELS if config.method.label_input else _LEAKED_LABELS, *ADJACENCY),)
    # Another label changes d coefficients of the old class's output and d of the new one's, each by at most 1; where
    # the outputs are attributes, it may change all of them.
    changed = label_outputs(config, num_classes) if config.data.attributes else 2
    count = changed * config.method.features * accesses
    return (Event("laplace", *ADJACENCY, coefficient_scale(config, num_classes), count),)
