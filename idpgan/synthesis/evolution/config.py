"""Settings and price of evolution, known before an image is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from idpgan.data.load import DataShape
from idpgan.errors import ConfigError
from idpgan.memory import check_memory
from idpgan.models.config import ModelConfig, classes_of
from idpgan.models.families import generator_bytes
from idpgan.models.scattering import scattering_shape
from idpgan.models.simulators import looks_known
from idpgan.privacy import Event, Relation, Unit
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.synthesis.evolution.embedding import DRAWN as DRAWN_FOR_EMBEDDING
from idpgan.synthesis.evolution.embedding import LEAST_SIDE
from idpgan.synthesis.evolution.nearest import MOST_DIMENSIONS
from idpgan.synthesis.evolution.votes import Votes
from idpgan.synthesis.terms import AggregatePrivacy, refuse_shared_people
from idpgan.training.config import CHOOSE_DELTA, MOST_STEPS, MethodConfig, RunConfig, TrainingConfig
from idpgan.training.signal import Signal


class EvolutionConfig(MethodConfig):
    """[method] of evolution. The number of candidates of a class is ``model.codes``.

    Attributes:
        threshold: Standard deviations of the noise below which a noisy count is set to 0.
        first_variation: How much children differ from their parents after the first iteration; see `model.variation`.
        last_variation: The same after the last iteration but one; in between the strength falls by equal factors.
        lookahead: Variations by `model.variation` of each candidate whose mean embedding stands for it in the vote; 0:
            the candidate itself.
        looks: What the simulator shall begin a class with, for example ``{happiness = "smiling", neutral = "not
            smiling"}``: a look that it knows, or "not" and one. A class that bears the name of a look begins with it;
            any other begins with all kinds of images, and the votes choose.
    """

    name: Literal["evolution"] = "evolution"
    threshold: float = Field(2.0, ge=0, le=100)
    first_variation: float = Field(0.6, gt=0, le=1)
    last_variation: float = Field(0.2, gt=0, le=1)
    lookahead: int = Field(0, ge=0, le=100)
    looks: dict[str, str] | None = None


class EvolutionPrivacy(AggregatePrivacy):
    """[privacy] of evolution; epsilon, delta, unit and relation are one statement on all iterations together.

    Attributes:
        delta: Below 1/N, and above 0: the noise is Gaussian.
    """

    delta: float = Field(gt=0, lt=1, description=CHOOSE_DELTA)


class EvolutionTraining(TrainingConfig):
    """[training] of evolution; it has no batches.

    Attributes:
        steps: Iterations, each of which is a vote: fewer have less noise.
        tick_steps: Iterations between two ticks.
    """

    steps: int = Field(8, ge=1, le=MOST_STEPS)
    tick_steps: int = Field(1, ge=1, le=MOST_STEPS)


class EvolutionRun(RunConfig):
    """A whole config file of evolution."""

    model: ModelConfig = ModelConfig(generator="population", codes=200)
    method: EvolutionConfig = EvolutionConfig()
    privacy: EvolutionPrivacy
    training: EvolutionTraining = EvolutionTraining()

    @model_validator(mode="after")
    def _check_generator(self) -> EvolutionRun:
        if self.model.generator != "population":
            raise ConfigError(
                f"model.generator = {self.model.generator}, but method evolution trains no network: set "
                'model.generator = "population".'
            )
        looks = self.method.looks or {}
        for name, look in looks.items():
            if self.model.simulator == "public":
                raise ConfigError(
                    'method.looks are for what is drawn; with model.simulator = "public" the labels of the public '
                    "images say what a class looks like. Leave looks out."
                )
            known = looks_known(self.model)
            if look.removeprefix("not ") not in known:
                raise ConfigError(
                    f"method.looks: '{look}' (of '{name}') is nothing that model.simulator = "
                    f'"{self.model.simulator}" knows. Known: {", ".join(known) or "none"}.'
                )
        refuse_shared_people(self.privacy.unit, self.data)
        return self

    def looks_of(self, classes: Sequence[str]) -> dict[str, str]:
        """Return the look of each class that has one."""
        known = looks_known(self.model)
        named = {name: name for name in classes if name.removeprefix("not ") in known}
        return named | (self.method.looks or {})

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `RunConfig.ledger_terms`."""
        return self.privacy.unit, self.privacy.relation, Budget(self.privacy.epsilon, self.privacy.delta)

    def planned_events(self, shape: DataShape) -> tuple[Event, ...]:
        """See `RunConfig.planned_events`."""
        return (self.votes(len(shape.classes)).event.repeated(self.training.steps),)

    def reason(self, shape: DataShape, events: Sequence[Event], noise: Sequence[Source]) -> str:
        """See `RunConfig.reason`."""
        return f"a noisy histogram of votes at each iteration; noise: {noise[0].name}"

    def public_assumptions(self, shape: DataShape | None = None, noise: Sequence[Source] = ()) -> tuple[str, ...]:
        """See `RunConfig.public_assumptions`."""
        privacy, simulator, origin = self.privacy, self.model.simulator, self.model.origin
        what = "public images" if simulator == "public" else f"the program that draws {simulator}"
        assumptions = [f"the simulator ({what}) and the embedding, fixed before any private image"]
        if origin is not None:
            assumptions = ["the embedding, learned on images of the released generator that the release contains"]
        if simulator == "public":
            assumptions.append("the public images; the release contains some of them")
        if privacy.unit is Unit.PERSON:
            assumptions.append(f"the cap of {privacy.most_per_person} images of one person")
        return tuple(assumptions)

    def check(self, shape: DataShape) -> None:
        """Refuse what the data cannot give and the machine cannot hold; any image size will do. See `RunConfig`."""
        model, classes = self.model, classes_of(self.model, len(shape.classes))
        if min(shape.image_shape[1:]) < LEAST_SIDE:
            raise ConfigError(
                f"images of {shape.image_shape[2]} x {shape.image_shape[1]} pixels are too small for the embedding: "
                f"each side must be {LEAST_SIDE} or more."
            )
        if model.simulator == "public" and not shape.sizes.public:
            raise ConfigError(
                'model.simulator = "public" needs public images, and there are none. Name a folder of them as '
                "data.public_root, set data.public_share and confirm_public, or take a simulator that draws."
            )
        unknown = sorted(set(self.method.looks or {}) - set(shape.classes if classes else ()))
        if unknown:
            raise ConfigError(
                f"method.looks says what '{unknown[0]}' looks like, but that is no class of the generator "
                f"({', '.join(shape.classes) or 'none'})."
            )
        if self.privacy.unit is Unit.PERSON and not shape.has_people:
            raise ConfigError(
                "privacy.unit = person, but the data set names no identities. Use one with person labels, or "
                "unit = image."
            )
        features = math.prod(scattering_shape(shape.image_shape, 1, 8))
        needed = generator_bytes(model, shape.image_shape, classes) + MOST_DIMENSIONS * shape.num_private
        needed += 4 * 3 * DRAWN_FOR_EMBEDDING * features
        check_memory(needed, f"model.codes = {model.codes:,} of {shape.num_private:,} images", "Lower it.")

    def signal_to_noise(self, shape: DataShape) -> Signal:
        """See `RunConfig.signal_to_noise`: the votes of a class against the noise on them, in one iteration."""
        votes, person = self.votes(len(shape.classes)), self.privacy.unit is Unit.PERSON
        return Signal(
            records=shape.num_private / (self.privacy.most_per_person if person else 1) / votes.rows,
            classes=votes.rows,
            noise=votes.noise_std * math.sqrt(votes.candidates),
            source="the votes",
            record="people" if person else "images",
        )

    def votes(self, num_classes: int) -> Votes:
        """Return one iteration's release, with the least noise that keeps all of them to [privacy]."""
        privacy = self.privacy
        return Votes.calibrated(
            max(classes_of(self.model, num_classes), 1),
            self.model.codes,
            self.training.steps,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            unit=privacy.unit,
            relation=privacy.relation,
            most_per_unit=privacy.most_per_person if privacy.unit is Unit.PERSON else 1,
        )
