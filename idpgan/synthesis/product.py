"""What methods that train a generator share: the released product."""

from __future__ import annotations

import torch
from torch import Tensor

from idpgan.data.load import Split
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import LinearScattering
from idpgan.models.varied import VariedGenerator
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis.agreed import agreed
from idpgan.synthesis.moments import NormalsNoise
from idpgan.synthesis.move import check_pools, drawn_public, draws_own, move
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

    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        self._to_move, model = split.public, self.plan.config.model
        if model.drawn.agreed or (model.moved and not draws_own(model)):
            classes = len(split.classes) if model.conditional else 0
            check_pools(split.public, model, max(classes, 1))

    @property
    def normals_noise(self) -> NormalsNoise:
        """Known noise of the released normal distributions, for `move`; post-processing of released numbers."""
        raise NotImplementedError

    @property
    def template(self) -> Tensor | None:
        """Released template, (T, C, H, W), onto which images were brought, for `move`; None: as they lie."""
        return None

    @property
    def generator_optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """Those whose steps have the gradient of a generated batch."""
        networks = getattr(self, "networks", None)
        return () if networks is None else (networks.generator_optimizer,)

    @property
    def product(self) -> Generator:
        """The generator that is released."""
        return self.generator

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the generator with public pictures, moved onto its law or agreed with, and its teacher, if any."""
        generator = law = self.generator
        if generator.config.drawn.varied:
            generator = law = VariedGenerator(generator)
        teacher = None if self.teacher is None else balanced(self.teacher, law, self.progress)
        if generator.config.drawn.agreed and teacher is not None:
            generator = agreed(law, self._to_move, teacher, seed=self.plan.config.training.seed)
        if generator.config.moved:
            seed, public = self.plan.config.training.seed, self._to_move
            if draws_own(generator.config):
                data = self.plan.config.data
                public = drawn_public(generator.config, data, generator.image_shape, generator.classes, seed)
            generator = move(generator, public, self.normals_noise, self.template, seed=seed)
        if teacher is not None and self.candidates is not None:
            generator = generator.taught_by(teacher, self.candidates)
        return GeneratorArtifact(generator, config.samples)
