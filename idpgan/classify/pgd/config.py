"""Settings of pgd, known before an image is read; the method is in `method`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from idpgan.classify.config import ClassifierConfig
from idpgan.data.load import DataShape
from idpgan.methods import METHODS
from idpgan.models.private_classifier import PrivateClassifier, ReluCnn
from idpgan.privacy import Event, Guarantee, PrivacyReport, Relation, Unit
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.training.config import MOST_STEPS, MethodConfig, TrainingConfig

EVENT = Event.non_private(METHODS["pgd"].reason, Unit.IMAGE, Relation.REPLACE_ONE)
_PROVEN = Guarantee(float("inf"), 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "raw images are read without noise")
REPORT = PrivacyReport(claimed=None, proven=_PROVEN, audited=None, reason=METHODS["pgd"].reason, private=False)


class PgdConfig(MethodConfig):
    """[method] of pgd.

    Attributes:
        width: Feature maps of the first convolution.
        radius: Bound on the change of a pixel, in units of the pixel range; 0 is plain training.
        warmup_share: Share of the steps over which the radius grows from 0: trained at 0.3 from the start, a network
            may settle for one class.
        attack_steps: Of each attack.
        step_size: Of an attack, in units of the pixel range; None = ``2.5 radius / attack_steps``.
        learning_rate: Peak of Adam's; it falls to 0 along a cosine.
    """

    name: Literal["pgd"] = "pgd"
    width: int = Field(16, ge=1, le=1024)
    radius: float = Field(0.3, ge=0, le=1)
    warmup_share: float = Field(0.2, ge=0, le=1)
    attack_steps: int = Field(10, ge=1, le=1000)
    step_size: float | None = Field(None, gt=0, le=1)
    learning_rate: float = Field(2e-3, gt=0)


class PgdTraining(TrainingConfig):
    """[training] of pgd."""

    steps: int = Field(5000, ge=1, le=MOST_STEPS)
    batch_size: int = Field(100, ge=1, le=1_000_000)
    tick_steps: int = Field(500, ge=1, le=MOST_STEPS)


class Config(ClassifierConfig):
    """A whole config file of pgd."""

    method: PgdConfig = PgdConfig()
    training: PgdTraining = PgdTraining()

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`; nothing is promised, so there is no target."""
        return Unit.IMAGE, Relation.REPLACE_ONE, None

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`."""
        return (EVENT.repeated(self.training.steps),)

    def report(
        self, shape: DataShape, events: Sequence[Event], proven: Guarantee, noise: Sequence[Source]
    ) -> PrivacyReport:
        """See `RunConfig.report`."""
        return REPORT

    def classifier(self, image_shape: Sequence[int], classes: Sequence[str]) -> PrivateClassifier:
        """See `ClassifierConfig.classifier`."""
        return ReluCnn(image_shape, classes, width=self.method.width, seed=self.training.seed)

    def step_bytes(self, classifier: PrivateClassifier, num_private: int) -> int:
        """See `ClassifierConfig.step_bytes`: what the layers keep of a batch for its gradient."""
        _, height, width = classifier.image_shape
        return 8 * self.training.batch_size * self.method.width * height * width

    @property
    def way_out(self) -> str:
        """See `ClassifierConfig.way_out`."""
        return "Lower training.batch_size or method.width."
