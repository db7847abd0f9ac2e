"""What methods that train a generator share: the released product."""

from __future__ import annotations

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
