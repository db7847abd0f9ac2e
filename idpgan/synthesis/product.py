"""What methods that train a generator have in common: what they give away, and steps that cost nothing."""

from __future__ import annotations

from idpgan.models.generator import Generator
from idpgan.models.private_classifier import LinearScattering
from idpgan.privacy import Event, Noise
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis.teacher import balanced
from idpgan.training.config import ReleaseConfig


class GivesGenerator:
    """A method whose product is its attribute ``generator``; see `idpgan.release.artifact.GivesAway`.

    Attributes:
        teacher: A private classifier that chooses among the candidates of a released generator; None = none does.
        candidates: Drawn for each image then.
    """

    generator: Generator
    teacher: LinearScattering | None = None
    candidates: int | None = None

    @property
    def product(self) -> Generator:
        """See `Method`."""
        return self.generator

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """See `GivesAway`."""
        generator = self.generator
        if self.teacher is not None and self.candidates is not None:
            generator = generator.taught_by(balanced(self.teacher, generator), self.candidates)
        return GeneratorArtifact(generator, config.samples)


class ReadsOnce:
    """A method whose only private read is that of `prepare`: no step draws secret noise or costs anything."""

    @property
    def noises(self) -> tuple[Noise, ...]:
        """See `Method`."""
        return ()

    def step_event(self) -> None:
        """See `Method`."""

    def paid_ahead(self, step: int) -> tuple[Event, ...]:
        """See `Method`."""
        return ()
