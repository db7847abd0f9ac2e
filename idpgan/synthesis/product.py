"""The released product of a method that trains or releases a generator: what is put around the generator."""

from __future__ import annotations

from torch import Tensor

from idpgan.data.annotations import Annotations
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.models.gaussian import GaussianGenerator
from idpgan.models.generator import Generator
from idpgan.models.private_classifier import LinearScattering
from idpgan.models.varied import VariedGenerator
from idpgan.portraits import annotated
from idpgan.progress import Progress, silent
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis import move
from idpgan.synthesis import teacher as teachers
from idpgan.synthesis.moments import NormalsNoise
from idpgan.training.config import ReleaseConfig, RunConfig


def check_public(split: Split, run: RunConfig) -> Annotations | None:
    """Refuse public images that are too few, or of no class, for what `artifact` makes; raises `ConfigError`.

    Returns:
        Where the parts of portraits that are to be moved lie, if their folder says it.
    """
    model, root = run.model, run.data.public_root
    moves = model.moved and not model.draws_own
    if model.drawn.agreed or moves:
        classes = len(split.classes) if model.conditional else 0
        move.check_pools(split.public, model, max(classes, 1))
    return annotated(root.expanduser(), split.public.images.cpu()) if moves and root else None


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
    annotations: Annotations | None = None,
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
        annotations: Where the parts of the public images lie.
    """
    law, seed = generator, run.training.seed
    if generator.config.drawn.varied:
        generator = law = VariedGenerator(generator)
    if teacher is not None:
        teacher = teachers.balanced(teacher, law, progress)
    if generator.config.drawn.agreed and teacher is not None and public is not None:
        generator = move.agreed(law, public, teacher, seed=seed)
    if generator.config.moved:
        if generator.config.draws_own:
            public = move.drawn_public(generator.config, run.data, generator.image_shape, generator.classes, seed)
        if public is None or noise is None or not isinstance(generator, GaussianGenerator):
            raise RuntimeError("public images are moved onto a normal law whose noise is known, and one is missing.")
        generator = move.move(generator, public, noise, template, seed=seed, annotations=annotations)
    if teacher is not None and candidates is not None:
        generator = generator.taught_by(teacher, candidates)
    return GeneratorArtifact(generator, config.samples)
