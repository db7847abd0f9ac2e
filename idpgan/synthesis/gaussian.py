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
from typing import Any, cast

import torch
from torch import Tensor

from idpgan.audit.cases import AuditCase, asked_of
from idpgan.audit.entry import Entry, Request, RunFacts
from idpgan.config import key
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.device import check_memory
from idpgan.models import checkpoint
from idpgan.models.config import ModelConfig
from idpgan.models.gaussian import GaussianGenerator
from idpgan.models.private_classifier import LinearScattering
from idpgan.privacy import Event
from idpgan.privacy.noise import Source
from idpgan.privacy.sums import CellSums
from idpgan.private import released_once
from idpgan.private.released_once import ReleasedOnce
from idpgan.release.generator import GeneratorArtifact
from idpgan.synthesis import moments, move, product, sums, sums_audit
from idpgan.synthesis.teacher import TEACHER, fit_teacher, teacher_of
from idpgan.synthesis.template import release_template
from idpgan.training.config import DELTA_ABOVE_ZERO, ReleaseConfig, settings
from idpgan.training.method import ReleasedSums
from idpgan.training.plan import RunPlan, Signal


def _check_generator(config: Any) -> None:
    released_once.refuse_other_generator(config, "gaussian")


Settings = settings(
    "gaussian",
    method=[sums.KEYS],
    privacy=[released_once.KEYS, DELTA_ABOVE_ZERO],
    training=[{"steps": key(int, 0, "0: the run ends with the release, and nothing is trained.", ge=0, le=0)}],
    model=ModelConfig(generator="gaussian", latent_dim=160),
    checks=[sums.check_shares, _check_generator],
    dropped=moments.DROPPED,
    abilities={"move"},
)


def dimensions(plan: RunPlan) -> int:
    """Return the numbers of an image's vector of moments."""
    model, drawn, symmetric = plan.config.model, plan.config.model.drawn, plan.config.method.symmetric
    size, light = plan.shape.image_shape, drawn.light
    return moments.count_moments(size, model.latent_dim, drawn.shape, symmetric=symmetric, light=light)


def assumptions(plan: RunPlan) -> tuple[str, ...]:
    """Return what a release of moments takes as public: the map of an image, and what public images have set of it."""
    learned = ("center, scale and covariance, learned from public images",) if plan.shape.sizes.public else ()
    fixed = "the vector of an image: its functions, center, scale and clip, fixed before any private image"
    return (fixed, *learned, *move.assumed(plan.config.model), *released_once.capped(plan.config))


def check(plan: RunPlan) -> None:
    """Refuse what the data cannot give and the machine cannot hold for a release of moments; any image size will do."""
    model, image_shape = plan.config.model, plan.shape.image_shape
    needed = checkpoint.generator_bytes(model, image_shape, plan.classes) + 8 * 4 * plan.rows * dimensions(plan)
    sums.check(plan)
    move.check(plan)
    check_memory(needed, f"model.latent_dim = {model.latent_dim}", "Lower it.")
    released_once.check_people(plan)


class Plan(RunPlan):
    """What a run of gaussian costs: a template where images are registered, and sums of moments, one cell a class."""

    reads_public = True

    @functools.cached_property
    def release(self) -> sums.SumsRelease:
        """All that is released."""
        return sums.SumsRelease(self, dimensions(self))

    @property
    def start_events(self) -> tuple[Event, ...]:
        """The price of the release, at which another method may start."""
        return self.release.events

    @property
    def events(self) -> tuple[Event, ...]:
        """The price of the release, with which the run ends."""
        return self.start_events

    @property
    def signal(self) -> Signal:
        """The figure of the sums."""
        sums = self.release.sums
        return released_once.signal_of(self, sums.noise_length, "the release", sums.noise_std)

    def reason(self, events: Sequence[Event], sources: Sequence[Source]) -> str:
        """Name what was released, and where its noise came from."""
        return f"{self.release.reason('sums of moments', events)}; noise: {sources[0].name}"

    def assumptions(self, sources: Sequence[Source]) -> tuple[str, ...]:
        """See `assumptions`."""
        return assumptions(self)

    def check(self) -> None:
        """See `check`."""
        check(self)


class Method(ReleasedOnce):
    """The method as the loop sees it, which has no steps; see `ReleasedOnce`. The sums are exact integers on the CPU.

    Args:
        generator: Of another method that starts at the moments, whose ``plan.release`` and budget these are; None =
            one of the moments alone.

    Attributes:
        generator: In eval mode.
        moments: Maps an image to its vector.
        teacher: A private classifier that chooses among what the generator draws; None = none does.

    Raises:
        ConfigError: If the config asks for what the data does not have. No private image has been read then.
    """

    took = "7 seconds on one core for 7,620 faces of 48 x 48, 100 seconds with a teacher"
    taught = "a small network 83.8 % at epsilon 1 and 86.6 % at 10, by aligned faces with a teacher: smiling or not"

    plan: Plan
    generator: GaussianGenerator
    teacher: LinearScattering | None = None

    def _set_up(self, split: Split, generator: GaussianGenerator | None = None) -> None:
        super()._set_up(split)
        model = self._run.model
        self._annotations = product.check_public(split, self._run)
        if generator is None:
            seed, classes = self._run.training.seed, len(split.classes)
            made = checkpoint.build_generator(model, split.image_shape, classes, seed=seed).requires_grad_(False)
            generator = cast(GaussianGenerator, made)
        self.generator = generator.to(self.device).eval()
        self.generator.classes = split.classes if self.generator.num_classes else ()
        self.moments = moments.MomentMap(
            split.image_shape,
            model.latent_dim,
            shape=model.drawn.shape,
            symmetric=self.config.symmetric,
            light=model.drawn.light,
        )

    @property
    def release_events(self) -> tuple[Event, ...]:
        """The price of the release."""
        return self.plan.start_events

    def _release(self) -> dict[str, Tensor]:
        """Find the template, fix center and scale by public images, then sum the vectors of the private ones."""
        release, private, cap = self.plan.release, self._take_private(), released_once.cap_of(self._run.privacy)
        if release.template is not None:
            template = release_template(
                release.template, self.moments, private, cap, self.noise, self.kept, self.progress
            )
            self.moments.set_template(template)
        if len(self._public):
            self.moments.learn_public(self._public)
        vectors = functools.partial(
            moments.private_moments, private, self.moments, conditional=bool(self.generator.num_classes), cap=cap
        )
        fixed, num = self.moments.fixed, len(private)
        noisy = self.kept.released(release.sums, vectors, num, self.noise, fixed=fixed, progress=self.progress)
        released = {"sums": noisy, "center": self.moments.center, "variance": self.moments.variance}
        if self.moments.covariance is not None:
            released["covariance"] = self.moments.covariance
        if self.moments.template is not None:
            released["template"] = self.moments.template
        return released | fit_teacher(release.teacher, private, cap, self)

    def _take_released(self, released: dict[str, Tensor]) -> None:
        """Make the generator of what was released."""
        super()._take_released(released)
        if not released and not self.release_events:  # of a method that starts at other moments
            return
        if "template" in released:
            self.moments.template = released["template"].view(-1, *self.generator.image_shape)
        self.moments.set_public(released["center"], released["variance"], released.get("covariance"))
        normals = moments.estimate_normals(released["sums"], self.moments, self.plan.release.sums.noise_std)
        self.generator.set_moments(normals.mean, normals.factor)
        if TEACHER in released:
            shape, classes = self.generator.image_shape, self.generator.classes
            self.teacher = teacher_of(released[TEACHER], shape, classes).to(self.device)

    def artifact(self, config: ReleaseConfig) -> GeneratorArtifact:
        """Return the generator with public pictures that are moved onto its law or agreed with, and its teacher."""
        noise = None
        if self._run.model.moved:
            noise = moments.noise_of_normals(self._released["sums"], self.moments, self.plan.release.sums.noise_std)
        return product.artifact(
            self.generator,
            self._run,
            config,
            public=self._public,
            noise=noise,
            template=self.moments.template,
            teacher=self.teacher,
            candidates=self.plan.candidates,
            annotations=self._annotations,
            progress=self.progress,
        )

    @property
    def released_sums(self) -> ReleasedSums | None:
        """The sums of moments, one row a class; None where none were released."""
        if "sums" not in self._released:
            return None

        def vectors(images: Images) -> tuple[Tensor, Tensor]:
            conditional = bool(self.generator.num_classes)
            batches = moments.private_moments(images, self.moments, conditional=conditional, cap=None)
            of_images, rows, _ = zip(*batches, strict=True)
            return torch.cat(of_images), torch.cat(rows)

        return ReleasedSums(self._released["sums"], self.plan.release.sums.noise_std, vectors)


# The audit: the sums of a small release, or those of a run -----------------------------------------------------------


def _audit(request: Request) -> AuditCase:
    terms = sums_audit.terms_of(request)
    released = CellSums.calibrated(sums_audit.CLASSES, moments.count_moments((1, 8, 8), 10), "gaussian", **terms)
    return sums_audit.sums_case("gaussian", released, request)


def _audit_of_run(config: Any, facts: RunFacts) -> AuditCase:
    release = Plan(config, facts.shape).release
    return sums_audit.sums_case("gaussian", release.sums, asked_of(config), facts.claimed, beside=release)


AUDIT = Entry(_audit, sums_audit.UNITS, sums_audit.RELATIONS, delta=1e-5, of_run=_audit_of_run)
