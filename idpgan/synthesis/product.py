"""What methods that train a generator have in common: what they give away, and steps that cost nothing."""

from __future__ import annotations

from typing import Any

from idpgan.errors import ConfigError
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import LinearScattering
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis.teacher import balanced
from idpgan.training.config import ReleaseConfig
from idpgan.training.method import Method


class GivesGenerator(Method):
    """A method whose product is its attribute ``generator``; see `Method.artifact`.

    Attributes:
        teacher: A private classifier that chooses among the candidates of a released generator; None = none does.
        candidates: Drawn for each image then.
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
            generator = generator.taught_by(balanced(self.teacher, generator), self.candidates)
        return GeneratorArtifact(generator, config.samples)


class ReadsOnce(GivesGenerator):
    """A method whose only private read is that of `prepare`: no step draws secret noise or costs anything."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned, and refuse a release that is less private than this run says.

        Raises:
            ConfigError: If the saved release was made with a fixed noise seed, and this run's noise is secret.
        """
        super().load_state(state)
        if self.noise.private and not state["private_noise"]:
            raise ConfigError("the saved release was made with a fixed noise seed and is not private; start a new run.")

    def state(self) -> dict[str, Any]:
        """Return what `SAVED` names, and whether the release is private."""
        return {**super().state(), "private_noise": self.noise.private}
