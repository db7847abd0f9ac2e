"""Settings of arden, known before an image is read; the method is in `method`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from idpgan.classify.config import ClassifierConfig
from idpgan.data.load import DataShape, describe
from idpgan.errors import ConfigError
from idpgan.methods import METHODS
from idpgan.models.private_classifier import MOST_FEATURES, PrivateClassifier, SplitCnn
from idpgan.privacy import Event, Guarantee, RandomizedResponse, Relation, Unit
from idpgan.privacy.collaborative import FeatureNoise
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.training.config import MOST_STEPS, MethodConfig, PrivacyConfig, TrainingConfig

ADJACENCY = (Unit.IMAGE, Relation.REPLACE_ONE)
_CLAIM = "Wang, Zhang, Bao, Zhu, Cao, Yu 2018: one feature after nullification, and the label"


class ArdenConfig(MethodConfig):
    """[method] of arden.

    Attributes:
        width: Feature maps of the phone's first convolution.
        features: d, numbers that leave the phone; each costs 2 B / b, so few are better. None: the least number whose
            signs can tell the classes apart.
        nullification: mu, chance of each pixel to be set to black before.
        phone_steps: Of training the phone's part on labeled public images; without these its weights stay random.
        clean_weight: lambda of noisy training on public images, the weight of the loss on features without noise; 1 is
            training without noise.
        radius: eta of noisy training, how far noisy features move on towards a larger loss (L2, in units of b); 0 is
            random noise alone.
        private_weight: Weight of the loss on the perturbed private images, where there are public ones.
        learning_rate: Peak of Adam's; it falls to 0 linearly.
    """

    name: Literal["arden"] = "arden"
    width: int = Field(8, ge=1, le=1024)
    features: int | None = Field(None, ge=1, le=MOST_FEATURES)
    nullification: float = Field(0.05, ge=0, lt=1)
    phone_steps: int = Field(1000, ge=0, le=MOST_STEPS)
    clean_weight: float = Field(0.2, ge=0, le=1)
    radius: float = Field(1.0, ge=0)
    private_weight: float = Field(1.0, gt=0)
    learning_rate: float = Field(2e-3, gt=0)


class ArdenPrivacy(PrivacyConfig):
    """[privacy] of arden.

    Attributes:
        epsilon: What is proven for one training image together with its label.
        label_epsilon: Part of it that the label's randomized response takes; the rest is the image's, and what an image
            costs that is asked about with the same noise.
    """

    epsilon: float = Field(gt=0, le=1e9)
    label_epsilon: float = Field(gt=0, le=30)


class ArdenTraining(TrainingConfig):
    """[training] of arden: steps of the cloud's part."""

    steps: int = Field(1500, ge=1, le=MOST_STEPS)
    batch_size: int = Field(256, ge=1, le=1_000_000)
    tick_steps: int = Field(500, ge=1, le=MOST_STEPS)


class ArdenRun(ClassifierConfig):
    """A whole config file of arden; unit image, replace-one: every image is perturbed by itself."""

    method: ArdenConfig = ArdenConfig()
    privacy: ArdenPrivacy
    training: ArdenTraining = ArdenTraining()

    @model_validator(mode="after")
    def _leave_the_image_something(self) -> ArdenRun:
        if self.privacy.label_epsilon >= self.privacy.epsilon:
            raise ConfigError(
                f"privacy.label_epsilon = {self.privacy.label_epsilon:g} leaves nothing of "
                f"privacy.epsilon = {self.privacy.epsilon:g} for the image. Lower the one or raise the other."
            )
        return self

    @property
    def image_epsilon(self) -> float:
        """What the features of an image cost."""
        return self.privacy.epsilon - self.privacy.label_epsilon

    def num_features(self, num_classes: int) -> int:
        """Return d."""
        return self.method.features or max(1, math.ceil(math.log2(num_classes)))

    def channel(self, num_classes: int) -> FeatureNoise:
        """Return the noise of features."""
        return FeatureNoise(self.num_features(num_classes), self.image_epsilon)

    def response(self, num_classes: int) -> RandomizedResponse:
        """Return the mechanism of the label."""
        return RandomizedResponse(num_classes, self.privacy.label_epsilon, *ADJACENCY)

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`."""
        found = describe(self.data)
        return *ADJACENCY, Budget(self.privacy.epsilon, self.stated_delta(found.num_private if found else 1))

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`: all of it is charged before the first step."""
        classes = len(shape.classes)
        return (self.channel(classes).mechanism.event, self.response(classes).event)

    def claimed(self, shape: DataShape) -> Guarantee:
        """See `RunConfig.claimed`: what the paper states for an image."""
        paper = self.channel(len(shape.classes)).claimed(self.method.nullification) + self.privacy.label_epsilon
        return Guarantee(paper, 0.0, *ADJACENCY, _CLAIM)

    def reason(self, shape: DataShape, events: Sequence[Event], noise: Sequence[Source]) -> str:
        """See `RunConfig.reason`."""
        return METHODS["arden"].reason

    def public_assumptions(self, shape: DataShape, noise: Sequence[Source]) -> tuple[str, ...]:
        """See `RunConfig.public_assumptions`."""
        assumptions = [
            f"noise source: {noise[0].name}",
            "an image that the classifier is asked about is protected only if its phone perturbs it (`perturb`)",
        ]
        if shape.sizes.public:
            assumptions.append("the phone's part was trained on public images, if they are labeled")
        return tuple(assumptions)

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> SplitCnn:
        """See `ClassifierConfig.classifier`."""
        features = self.num_features(max(len(classes), 2))  # fewer are refused by the network
        return SplitCnn(image_shape, classes, width=self.method.width, features=features, seed=self.training.seed)

    def step_bytes(self, classifier: PrivateClassifier, num_private: int) -> int:
        """See `ClassifierConfig.step_bytes`: the released features, and a batch on the phone."""
        _, height, width = classifier.image_shape
        features = self.num_features(len(classifier.classes))
        return 8 * (num_private * features + self.training.batch_size * self.method.width * height * width)

    @property
    def way_out(self) -> str:
        """See `ClassifierConfig.way_out`."""
        return "Lower method.features, method.width or training.batch_size."
