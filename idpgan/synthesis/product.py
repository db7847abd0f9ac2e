"""What a method that trains a generator gives away: the same for all of them."""

from __future__ import annotations

from idpgan.models.generator import Generator
from idpgan.release.generator import GeneratorArtifact
from idpgan.training.config import ReleaseConfig


class GivesGenerator:
    """A method whose product is its attribute ``generator``; see `idpgan.release.artifact.GivesAway`."""

    generator: Generator

    @property
    def product(self) -> Generator:
        """See `Method`."""
        return self.generator

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """See `GivesAway`."""
        return GeneratorArtifact(self.product, config.samples)
