r"""Gaussian: noisy first and second moments of low frequencies, released once, and images drawn from them.

The only private read is `prepare`: for every class the sum of ``v(x)`` (`moments`: count, mean and second moments of
DCT coefficients in one vector of norm at most 1) over its images, plus rounded Gaussian noise on everything at once
(`privacy.sums.CellSums`). With `Drawing.shape` above 0 it begins with a template (`template`), every image is brought
into place on it, and v(x) holds texture and displacement together; a generated texture is bent back by a generated
displacement. What follows is linear algebra on the released sums (`moments`), and costs nothing: the run
ends with the release, without any training. The images are blurred, but as private as those of any sound method; a
generator that is trained for hours has to be better than this baseline.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from pydantic import Field, model_validator
from torch import Tensor

from idpgan.audit.cases import AuditCase, asked_of
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import ConfigError
from idpgan.memory import check_memory
from idpgan.models.config import ModelConfig
from idpgan.models.families import build_generator, generator_bytes
from idpgan.models.gaussian import GaussianGenerator
from idpgan.models.generator import Generator
from idpgan.privacy import Event
from idpgan.privacy.noise import Source
from idpgan.privacy.sums import CellSums
from idpgan.private.people import GaussianPrivacy, capped, check_people
from idpgan.private.released_once import ReleasedOnce
from idpgan.progress import counted
from idpgan.synthesis.agreed import check_agreed
from idpgan.synthesis.moments import (
    CLIP,
    CONTRAST,
    COUNT_SHARE,
    MomentMap,
    NormalsNoise,
    count_moments,
    estimate_normals,
    noise_of_normals,
    private_moments,
)
from idpgan.synthesis.move import assumed, check_moved
from idpgan.synthesis.product import GivesGenerator
from idpgan.synthesis.sums_audit import AUDITED_CLASSES, SUMS_RELATIONS, SUMS_UNITS, privacy_of, sums_case
from idpgan.synthesis.sums_plan import SumsConfig, SumsPlan, SumsRun
from idpgan.synthesis.teacher import TEACHER, fit_teacher, teacher_of
from idpgan.synthesis.template import release_template
from idpgan.training.config import TrainingConfig
from idpgan.training.method import ReleasedSums


class MomentsConfig(SumsConfig):
    """[method] of a method that releases moments.

    The defaults are statements on photographs, checked on drawn faces and on ORL.

    Attributes:
        contrast: Standard deviation of pixels, on [-1, 1], that is expected without public images.
        clip: Length at which an image's whitened coefficients are cut, in multiples of the expected length: shorter
            means less noise, and less of what makes the image different.
        count_share: Share of the squared norm that the count takes; it sets the weight of first against second
            moments, ``2 t (1 - t)`` against ``(1 - t)^2``.
    """

    contrast: float = Field(CONTRAST, gt=0, le=1)
    clip: float = Field(CLIP, gt=0, le=100)
    count_share: float = Field(COUNT_SHARE, gt=0, lt=1)


class GaussianConfig(MomentsConfig):
    """[method] of gaussian."""

    name: Literal["gaussian"] = "gaussian"


class GaussianTraining(TrainingConfig):
    """[training] of gaussian: zero steps, since the run ends with the release.

    Attributes:
        steps: 0: the run ends with the release, and nothing is trained.
    """

    steps: int = Field(0, ge=0, le=0)


class GaussianRun(SumsRun):
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
        return self


class GaussianPlan(SumsPlan):
    """The plan of a run of gaussian: a template where images are registered, and sums of moments, one cell a class."""

    reads_public = True

    @property
    def dimensions(self) -> int:
        """Numbers of an image's vector."""
        model, drawn = self.config.model, self.config.model.drawn
        asked = {"symmetric": self.config.method.symmetric, "light": drawn.light}
        return count_moments(self.shape.image_shape, model.latent_dim, drawn.shape, **asked)

    @functools.cached_property
    def sums(self) -> CellSums:
        """The release, with the least noise that keeps to [privacy]."""
        return self.calibrated(self.rows, self.dimensions)

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name what was released, and where its noise came from."""
        return f"{self.placed}one release of noisy sums of moments{self.taught(events)}; noise: {sources[0].name}"

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """Name the map of an image to its vector, and which of its constants public images have set."""
        learned = ("center, scale and covariance, learned from public images",) if self.shape.sizes.public else ()
        fixed = "the vector of an image: its functions, center, scale and clip, fixed before any private image"
        return (fixed, *learned, *assumed(self.config.model), *capped(self.config))

    def check(self) -> None:
        """Refuse what the data cannot give and the machine cannot hold; any image size will do."""
        model, image_shape = self.config.model, self.shape.image_shape
        needed = generator_bytes(model, image_shape, self.classes) + 8 * 4 * self.rows * self.dimensions
        self.check_teacher()
        self.check_template()
        check_moved(self)
        check_agreed(self)
        check_memory(needed, f"model.latent_dim = {model.latent_dim}", "Lower it.")
        check_people(self)


class GaussianMoments(ReleasedOnce, GivesGenerator):
    """The method as the loop sees it, which has no steps; see `ReleasedOnce`. The sums are exact integers on the CPU.

    Attributes:
        generator: In eval mode.

    Raises:
        ConfigError: If the config asks for what the data does not have. No private image has been read then.
    """

    took = "7 seconds on one core for 7,620 faces of 48 x 48, 4 minutes with a teacher"
    taught = "a small network 83.8 % at epsilon 1 and 86.6 % at 10, by aligned faces with a teacher: smiling or not"

    generator: GaussianGenerator

    plan: GaussianPlan

    def _set_up(self, split: Split) -> None:
        super()._set_up(split)
        config = self.plan.config
        self.generator = cast(GaussianGenerator, self._built(split)).to(self.device).eval()
        self.generator.classes = split.classes if self.generator.num_classes else ()
        own = self.config
        self.moments = MomentMap(
            split.image_shape,
            config.model.latent_dim,
            shape=config.model.drawn.shape,
            contrast=own.contrast,
            clip=own.clip,
            count_share=own.count_share,
            symmetric=own.symmetric,
            light=config.model.drawn.light,
        )
        self.teaching, self.candidates = self.plan.teaching, self.plan.candidates

    def _built(self, split: Split) -> Generator:
        """Return the generator before anything is released, its weights frozen."""
        seed, classes = self._run.training.seed, len(split.classes)
        return build_generator(self._run.model, split.image_shape, classes, seed=seed).requires_grad_(False)

    def _release(self) -> dict[str, Tensor]:
        """Find the template, fix center and scale by public images, then sum the vectors of the private ones."""
        private, cap = self._take_private(), self._run.privacy.cap
        if self.plan.template is not None:
            self.moments.set_template(release_template(self.plan.template, self.moments, private, cap, self.noise))
        if len(self._public):
            self.moments.learn_public(self._public)
        vectors = private_moments(private, self.moments, conditional=bool(self.generator.num_classes), cap=cap)
        vectors = counted(vectors, self.progress, "features of images", len(private), lambda part: len(part[0]))
        sums = self.sums.release(vectors, self.noise)
        released = {"sums": sums, "center": self.moments.center, "variance": self.moments.variance}
        if self.moments.covariance is not None:
            released["covariance"] = self.moments.covariance
        if self.moments.template is not None:
            released["template"] = self.moments.template
        if self.teaching is not None:
            asked: Any = {"device": self.device, "noise": self.noise, "progress": self.progress}
            released[TEACHER] = fit_teacher(self.teaching, private, cap, **asked).cpu()
        return released

    def _take_released(self, released: dict[str, Tensor]) -> None:
        """Make the generator of what was released."""
        super()._take_released(released)
        if "template" in released:
            self.moments.template = released["template"].view(-1, *self.generator.image_shape)
        self.moments.set_public(released["center"], released["variance"], released.get("covariance"))
        normals = estimate_normals(released["sums"], self.moments, self.sums.noise_std)
        self.generator.set_moments(normals.mean, normals.factor)
        if TEACHER in released:
            shape, classes = self.generator.image_shape, self.generator.classes
            self.teacher = teacher_of(released[TEACHER], shape, classes).to(self.device)

    @property
    def sums(self) -> CellSums:
        """The mechanism of the release."""
        return self.plan.sums

    @property
    def normals_noise(self) -> NormalsNoise:
        """See `GivesGenerator`."""
        return noise_of_normals(self._released["sums"], self.moments, self.sums.noise_std)

    @property
    def template(self) -> Tensor | None:
        """See `GivesGenerator`."""
        return self.moments.template

    @property
    def released_sums(self) -> ReleasedSums | None:
        """The sums of moments, one row a class; None where none were released."""
        if "sums" not in self._released:
            return None

        def vectors(images: Images) -> tuple[Tensor, Tensor]:
            conditional = bool(self.generator.num_classes)
            found = private_moments(images, self.moments, conditional=conditional, cap=None)
            of_each, rows, _ = zip(*found, strict=True)
            return torch.cat(of_each), torch.cat(rows)

        return ReleasedSums(self._released["sums"], self.sums.noise_std, vectors)


Settings, Plan, Method = GaussianRun, GaussianPlan, GaussianMoments


# The audit: the sums of a small release, or those of a run -----------------------------------------------------------


def _audit(request: Request) -> AuditCase:
    dimensions = count_moments((1, 8, 8), 10)
    sums = CellSums.calibrated(AUDITED_CLASSES, dimensions, "gaussian", **privacy_of(request).terms)
    return sums_case("gaussian", sums, request)


def _audit_of_run(config: GaussianRun, facts: RunFacts) -> AuditCase:
    plan = GaussianPlan(config, facts.shape)
    parts: Any = {"template": plan.template_events, "teaching": plan.teaching}
    return sums_case("gaussian", plan.sums, asked_of(config), facts.claimed, **parts)


AUDIT = Entry(_audit, SUMS_UNITS, SUMS_RELATIONS, delta=1e-5, of_run=_audit_of_run)
