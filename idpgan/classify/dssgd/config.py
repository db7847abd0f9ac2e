"""Settings of dssgd, known before an image is read; the method is in `method`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field

from idpgan.classify.config import ClassifierConfig
from idpgan.classify.dssgd.sharing import Sharing
from idpgan.data.load import DataShape
from idpgan.errors import ConfigError
from idpgan.methods import METHODS
from idpgan.models.private_classifier import PrivateClassifier, ReluCnn
from idpgan.privacy import Event, Guarantee, Relation, Unit
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.training.config import MOST_STEPS, MethodConfig, PrivacyConfig, TrainingConfig

RAW = Event.non_private("dssgd without noise uploads raw gradients", Unit.IMAGE, Relation.REPLACE_ONE)


class DssgdConfig(MethodConfig):
    """[method] of dssgd.

    Attributes:
        participants: Each holds an equal share of the positions, dealt in turn; never fewer than one image.
        width: Feature maps of the first convolution.
        upload_share: theta_u, share of the parameters that a participant uploads in a round.
        download_share: theta_d, share of the parameters that it takes from the server before; the rest stay its own.
        selection: Without noise: "largest" changes, or a "random" choice among those above `threshold`.
        threshold: tau, of "random" selection, and of the comparisons with noise.
        bound: gamma: every change is clipped to [-bound, bound]; a constant.
        order: "round-robin", "random" (another order each round), or "asynchronous": all start from the same.
        learning_rate: Of local gradient descent.
        local_batch_size: Images of a local step.
    """

    name: Literal["dssgd"] = "dssgd"
    participants: int = Field(30, ge=1, le=10_000)
    width: int = Field(8, ge=1, le=1024)
    upload_share: float = Field(0.1, gt=0, le=1)
    download_share: float = Field(1.0, gt=0, le=1)
    selection: Literal["largest", "random"] = "largest"
    threshold: float = Field(1e-4, ge=0)
    bound: float = Field(0.01, gt=0)
    order: Literal["round-robin", "random", "asynchronous"] = "round-robin"
    learning_rate: float = Field(0.05, gt=0)
    local_batch_size: int = Field(32, ge=1, le=1_000_000)


class DssgdPrivacy(PrivacyConfig):
    """[privacy] of dssgd.

    Attributes:
        epsilon: What a participant spends in a round, over all that it uploads; None = no noise.
    """

    epsilon: float | None = Field(None, gt=0, le=1e9)


class DssgdTraining(TrainingConfig):
    """[training] of dssgd: a step is a round, in which each participant goes once through its images."""

    steps: int = Field(20, ge=1, le=MOST_STEPS)
    tick_steps: int = Field(5, ge=1, le=MOST_STEPS)


class DssgdRun(ClassifierConfig):
    """A whole config file of dssgd; unit image, replace-one: an image lies with one participant."""

    method: DssgdConfig = DssgdConfig()
    privacy: DssgdPrivacy = DssgdPrivacy()
    training: DssgdTraining = DssgdTraining()

    def sharing(self, image_shape: Sequence[int], classes: Sequence[str]) -> Sharing:
        """Return how changes are chosen and uploaded."""
        with torch.device("meta"):
            parameters = sum(weight.numel() for weight in self.classifier(image_shape, classes).parameters())
        return self.sharing_of(parameters)

    def sharing_of(self, parameters: int) -> Sharing:
        """Return how so many changes are chosen and uploaded."""
        section = self.method
        uploads = max(1, math.floor(section.upload_share * parameters))
        return Sharing(
            parameters, uploads, section.bound, section.threshold, section.selection == "largest", self.privacy.epsilon
        )

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`; the paper has no total, so there is no target."""
        return Unit.IMAGE, Relation.REPLACE_ONE, None

    def round_event(self, shape: DataShape) -> Event:
        """Return the price of a round: participants hold disjoint positions, so the costliest one counts."""
        return self.sharing(shape.image_shape, shape.classes).event or RAW

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`."""
        return (self.round_event(shape).repeated(self.training.steps),)

    def claimed(self, shape: DataShape) -> Guarantee | None:
        """See `RunConfig.claimed`: what the paper states for one parameter of one round."""
        epsilon, basis = self.privacy.epsilon, "Shokri and Shmatikov 2015, section 8: per uploaded parameter"
        if epsilon is None:
            return None
        uploads = self.sharing(shape.image_shape, shape.classes).uploads
        return Guarantee(epsilon / uploads, 0.0, Unit.IMAGE, Relation.REPLACE_ONE, basis)

    def reason(self, shape: DataShape, events: Sequence[Event], noise: Sequence[Source]) -> str:
        """See `RunConfig.reason`."""
        reason = METHODS["dssgd"].reason
        return reason if self.privacy.epsilon is None else f"{reason}; noise: {noise[0].name}"

    def public_assumptions(self, shape: DataShape, noise: Sequence[Source]) -> tuple[str, ...]:
        """See `RunConfig.public_assumptions`."""
        return "which positions lie with which participant", "the settings"

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """See `ClassifierConfig.classifier`."""
        return ReluCnn(image_shape, classes, width=self.method.width, seed=self.training.seed)

    def check(self, shape: DataShape) -> None:
        """See `RunConfig.check`."""
        super().check(shape)
        if self.method.participants > shape.num_private:
            raise ConfigError(
                f"method.participants = {self.method.participants} is above the {shape.num_private} private images. "
                "Lower it."
            )

    def step_bytes(self, classifier: PrivateClassifier, num_private: int) -> int:
        """See `ClassifierConfig.step_bytes`: every participant's parameters, and a local batch."""
        _, height, width = classifier.image_shape
        weights = sum(weight.numel() for weight in classifier.parameters())
        batch = 8 * self.method.local_batch_size * self.method.width * height * width
        return 8 * (self.method.participants + 8) * weights + batch

    @property
    def way_out(self) -> str:
        """See `ClassifierConfig.way_out`."""
        return "Lower method.participants, method.width or method.local_batch_size."
