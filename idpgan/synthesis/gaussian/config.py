"""Settings and price of the method gaussian, known before an image is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from idpgan.data.load import DataShape
from idpgan.errors import ConfigError
from idpgan.memory import check_memory
from idpgan.models.config import ModelConfig, classes_of
from idpgan.models.families import generator_bytes
from idpgan.models.generator import MOST_CANDIDATES
from idpgan.privacy import Event, Relation, Unit
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.aggregate.config import signal_of_sums
from idpgan.synthesis.gaussian.moments import CLIP, CONTRAST, COUNT_SHARE, count_moments
from idpgan.synthesis.teacher import (
    beside_sums,
    check_teacher_classes,
    check_teacher_terms,
    teacher_events,
    teacher_reason,
)
from idpgan.synthesis.terms import AggregatePrivacy, refuse_shared_people
from idpgan.training.config import CHOOSE_DELTA, MethodConfig, RunConfig, TrainingConfig
from idpgan.training.signal import Signal


class GaussianConfig(MethodConfig):
    """[method] of gaussian.

    The defaults are statements on photographs, checked on drawn faces and on ORL.

    Attributes:
        contrast: Standard deviation of pixels, on [-1, 1], that is expected without public images.
        clip: Length at which an image's whitened coefficients are cut, in multiples of the expected length: shorter
            means less noise, and less of what makes the image different.
        count_share: Share of the squared norm that the count takes; it sets the weight of first against second
            moments, ``2 t (1 - t)`` against ``(1 - t)^2``.
        teacher_share: Share of the budget that a private classifier gets, which chooses among what the generator draws;
            0 = none. See `idpgan.synthesis.teacher`.
        candidates: Images that the released generator draws for each one that the classifier chooses.
    """

    name: Literal["gaussian"] = "gaussian"
    contrast: float = Field(CONTRAST, gt=0, le=1)
    clip: float = Field(CLIP, gt=0, le=100)
    count_share: float = Field(COUNT_SHARE, gt=0, lt=1)
    teacher_share: float = Field(0.0, ge=0, le=0.95)
    candidates: int = Field(4, ge=1, le=MOST_CANDIDATES)


class GaussianPrivacy(AggregatePrivacy):
    """[privacy] of gaussian; epsilon, delta, unit and relation are one statement. As that of idp-gan-aggregate.

    Attributes:
        delta: Below 1/N, and above 0: the noise is Gaussian.
    """

    delta: float = Field(gt=0, lt=1, description=CHOOSE_DELTA)


class GaussianTraining(TrainingConfig):
    """[training] of gaussian: there is none, the run ends with the release.

    Attributes:
        steps: 0.
    """

    steps: int = Field(0, ge=0, le=0)


class GaussianRun(RunConfig):
    """A whole config file of gaussian."""

    model: ModelConfig = ModelConfig(generator="gaussian", latent_dim=160)
    method: GaussianConfig = GaussianConfig()
    privacy: GaussianPrivacy
    training: GaussianTraining = GaussianTraining()

    @model_validator(mode="after")
    def _check_generator(self) -> GaussianRun:
        if self.model.generator != "gaussian":
            raise ConfigError(
                f"model.generator = {self.model.generator}, but method gaussian trains no network: set "
                'model.generator = "gaussian".'
            )
        refuse_shared_people(self.privacy.unit, self.data)
        check_teacher_terms(self.method.teacher_share, "gaussian", self.privacy.relation)
        return self

    @property
    def candidates(self) -> int | None:
        """See `RunConfig.candidates`."""
        return self.method.candidates if self.method.teacher_share else None

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`."""
        return self.privacy.unit, self.privacy.relation, Budget(self.privacy.epsilon, self.privacy.delta)

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`."""
        sums = self.moment_sums(shape)
        return (sums.event, *teacher_events(self.method.teacher_share, sums))

    def reason(self, shape: DataShape, events: Sequence[Event], noise: Sequence[Source]) -> str:
        """See `RunConfig.reason`."""
        return (
            f"one release of noisy sums of moments{teacher_reason(self.method.teacher_share)}; noise: {noise[0].name}"
        )

    def public_assumptions(self, shape: DataShape, noise: Sequence[Source]) -> tuple[str, ...]:
        """See `RunConfig.public_assumptions`."""
        assumptions = ["the vector of an image: its functions, center, scale and clip, fixed before any private image"]
        if shape.sizes.public:
            assumptions.append("center and scale, learned from public images")
        if self.privacy.unit is Unit.PERSON:
            assumptions.append(f"the cap of {self.privacy.most_per_person} images of one person")
        return tuple(assumptions)

    def check(self, shape: DataShape) -> None:
        """Refuse what the data cannot give and the machine cannot hold; any image size will do. See `RunConfig`."""
        classes = classes_of(self.model, len(shape.classes))
        rows, moments = max(classes, 1), count_moments(shape.image_shape, self.model.latent_dim)
        needed = generator_bytes(self.model, shape.image_shape, classes) + 8 * 4 * rows * moments
        check_teacher_classes(self.method.teacher_share, classes)
        check_memory(needed, f"model.latent_dim = {self.model.latent_dim}", "Lower it.")
        if self.privacy.unit is Unit.PERSON and not shape.has_people:
            raise ConfigError(
                "privacy.unit = person, but the data set names no identities. Use one with person labels, or "
                "unit = image."
            )

    def signal_to_noise(self, shape: DataShape) -> Signal:
        """See `RunConfig.signal_to_noise`."""
        return signal_of_sums(self.moment_sums(shape), self.privacy, shape, classes_of(self.model, len(shape.classes)))

    def moment_sums(self, shape: DataShape) -> CellSums:
        """Return the release, with the least noise that keeps to [privacy]: one cell a class."""
        privacy = self.privacy
        return CellSums.calibrated(
            max(classes_of(self.model, len(shape.classes)), 1),
            count_moments(shape.image_shape, self.model.latent_dim),
            "gaussian",
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            unit=privacy.unit,
            relation=privacy.relation,
            most_per_unit=privacy.most_per_person if privacy.unit is Unit.PERSON else 1,
            **beside_sums(self.method.teacher_share, privacy.unit),
        )
