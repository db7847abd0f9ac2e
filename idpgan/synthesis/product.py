"""The released product of a method that trains or releases a generator: what is put around the generator."""

from __future__ import annotations

from torch import Tensor

from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.models.config import ModelConfig
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import LinearScattering
from idpgan.models.varied import VariedGenerator
from idpgan.progress import Progress, silent
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis import teacher as teachers
from idpgan.synthesis.agreed import agreed
from idpgan.synthesis.moments import NormalsNoise
from idpgan.synthesis.move import check_pools, drawn_public, draws_own, move
from idpgan.training.config import ReleaseConfig, RunConfig
from idpgan.training.method import Method


def check_public(split: Split, model: ModelConfig) -> None:
    """Refuse public images that are too few, or of no class, for what `artifact` makes; raises `ConfigError`."""
    if model.drawn.agreed or (model.moved and not draws_own(model)):
        classes = len(split.classes) if model.conditional else 0
        check_pools(split.public, model, max(classes, 1))


def artifact(
    generator: Generator,
    run: RunConfig,
    config: ReleaseConfig,
    *,
    public: Images | None = None,
    noise: NormalsNoise | None = None,
    template: Tensor | None = None,
    teacher: LinearScattering | None = None,
    candidates: int | None = None,
    progress: Progress = silent,
) -> GeneratorArtifact:
    """Return a generator as a release holds it: all of it is post-processing of what was released.

    Args:
        generator: Which was trained or released.
        run: [model] says what is put around it.
        config: [release].
        public: Images that are moved onto the generator's law, or that the teacher agrees with.
        noise: Known noise of the released normal distributions, where public images are moved onto them.
        template: Released, (T, C, H, W), onto which images were registered; None = as they lie.
        teacher: A private classifier that chooses among candidates; None = none does.
        candidates: Images drawn for each one that the teacher chooses.
    """
    law, seed = generator, run.training.seed
    if generator.config.drawn.varied:
        generator = law = VariedGenerator(generator)
    if teacher is not None:
        teacher = teachers.balanced(teacher, law, progress)
    if generator.config.drawn.agreed and teacher is not None and public is not None:
        generator = agreed(law, public, teacher, seed=seed)
    if generator.config.moved:
        if draws_own(generator.config):
            public = drawn_public(generator.config, run.data, generator.image_shape, generator.classes, seed)
        if public is None or noise is None:
            raise RuntimeError("public images are moved onto a law whose noise is known, and one of both is missing.")
        generator = move(generator, public, noise, template, seed=seed)
    if teacher is not None and candidates is not None:
        generator = generator.taught_by(teacher, candidates)
    return GeneratorArtifact(generator, config.samples)


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
        self._to_move = split.public
        check_public(split, self._run.model)

    @property
    def normals_noise(self) -> NormalsNoise:
        """Known noise of the released normal distributions, for `move`; post-processing of released numbers."""
        raise NotImplementedError

    @property
    def template(self) -> Tensor | None:
        """Released template, (T, C, H, W), onto which images were brought, for `move`; None: as they lie."""
        return None

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the generator with public pictures, moved onto its law or agreed with, and its teacher, if any."""
        return artifact(
            self.generator,
            self._run,
            config,
            public=getattr(self, "_to_move", None),
            noise=self.normals_noise if self._run.model.moved else None,
            template=self.template,
            teacher=self.teacher,
            candidates=self.candidates,
            progress=self.progress,
        )
