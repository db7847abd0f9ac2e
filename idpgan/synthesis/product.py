"""What methods that train a generator share: the released product, and steps that cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import ConfigError
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import LinearScattering
from idpgan.privacy import Event
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis.people import PeoplePlan, refuse_people_in_two_parts
from idpgan.synthesis.teacher import balanced
from idpgan.training.config import ReleaseConfig
from idpgan.training.method import Method


class GivesGenerator(Method):
    """A method whose product is its attribute ``generator``; see `Method.artifact`.

    Attributes:
        teacher: A private classifier that chooses among the candidates of a released generator; None = none does.
        candidates: Images drawn for each one that the teacher chooses.
    """

    generator: Generator
    teacher: LinearScattering | None = None
    candidates: int | None = None

    @property
    def product(self) -> Generator:
        """The generator that is released."""
        return self.generator

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the generator, with its teacher where it has one."""
        generator = self.generator
        if self.teacher is not None and self.candidates is not None:
            generator = generator.taught_by(balanced(self.teacher, generator, self.progress), self.candidates)
        return GeneratorArtifact(generator, config.samples)


class ReleasesOnce(GivesGenerator):
    """A method whose `prepare` pays for one release of what is read of the private images, and keeps its result."""

    _released: dict[str, Tensor]

    @property
    def release_events(self) -> Sequence[Event]:
        """The price of the release: all that is planned, where nothing else is."""
        events: Sequence[Event] = self.plan.events
        return events

    def prepare(self) -> None:
        """Release what `release_events` pay for, drop the private images, and go on from what was released."""
        released = self.ledger.release(self.release_events, self._release, noise=self.noise)
        self.noise.ratchet()
        self._take_released(released)

    def _release(self) -> dict[str, Tensor]:
        """Read the private images, and return what is released of them."""
        raise NotImplementedError

    def _take_released(self, released: dict[str, Tensor]) -> None:
        """Take what was released, now or in an earlier part of the run; the private images are no longer needed."""
        self._released = released

    def state(self) -> dict[str, Any]:
        """Return what `SAVED` names, and what was released."""
        return {**super().state(), "prepared": self._released}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from what was released, and put back what `SAVED` names."""
        self._take_released(state["prepared"])
        super().load_state(state)


class ReadsOnce(ReleasesOnce):
    """A method whose only private read is the release of `prepare`: no step draws secret noise or costs anything.

    Args:
        split: The private part is read in `prepare` and dropped there; the public part is read freely.
        ledger: Charged once, together with what that read releases.
        noise: Source of noise and coins; None = the operating system's.
    """

    plan: PeoplePlan

    def _set_up(self, split: Split) -> None:
        refuse_people_in_two_parts(self.plan.unit, split)
        self._private: Images | None = split.private
        self._public = split.public

    def _take_private(self) -> Images:
        """Hand the private images over, once."""
        private, self._private = self._private, None
        if private is None:
            raise RuntimeError("the private images were dropped after the release.")
        return private

    def _take_released(self, released: dict[str, Tensor]) -> None:
        super()._take_released(released)
        self._private = None

    def state(self) -> dict[str, Any]:
        """Return what was released, what `SAVED` names, and whether the release is private."""
        return {**super().state(), "private_noise": self.noise.private}

    def load_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned, and refuse a release that is less private than this run says.

        Raises:
            ConfigError: If the saved release was made with a fixed noise seed, and this run's noise is secret.
        """
        super().load_state(state)
        if self.noise.private and not state["private_noise"]:
            raise ConfigError("the saved release was made with a fixed noise seed and is not private; start a new run.")
