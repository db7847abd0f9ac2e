"""What methods that release sums share: a template before them, a teacher beside them, one budget.

A method that releases sums of vectors of images may register images first (`synthesis.template`), and may train a
classifier that chooses among what is drawn (`synthesis.teacher`). All of it, and the steps that a method adds, are
releases of Gaussian noise on shares of one budget (`noise_on`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from idpgan.config import Keys, key
from idpgan.data.drawn import are_unlabeled
from idpgan.errors import ConfigError
from idpgan.models.gaussian import count_coefficients
from idpgan.privacy import Event, Relation
from idpgan.privacy.event import rounding_words
from idpgan.privacy.sums import CellSums, Law
from idpgan.private import released_once
from idpgan.synthesis import teacher
from idpgan.synthesis.teacher import TeacherSteps, noise_on
from idpgan.synthesis.template import ROUNDS, TEMPLATE_SHARE
from idpgan.training.plan import RunPlan

KEYS: Keys = {
    **teacher.KEYS,
    "template_share": key(
        float, TEMPLATE_SHARE, "Share of the budget that the template gets, where images are registered.", gt=0, le=0.5
    ),
    "templates": key(
        Literal["one", "class"],
        "one",
        '"one" for all images, or one for each "class": where images of different classes have nothing in common that '
        "could be brought into the same place, as with writing.",
    ),
    "symmetric": key(
        bool,
        False,
        "Whether a mirror image, left for right, is as likely as the image, as with faces in the middle: what that "
        "leaves out of the sums makes noise smaller. Not for writing.",
    ),
}
"""[method] of a method that releases sums, and perhaps a template and a teacher."""


def check_shares(config: Any) -> None:
    """Refuse people in two parts, a teacher without Gaussian noise and zero-out-one, a template without budget."""
    released_once.refuse_shared_people(config)
    method, relation = config.method, config.privacy.relation
    share, law = method.teacher_share, getattr(method, "law", "gaussian")
    if share and (law != "gaussian" or relation is not Relation.ZERO_OUT):
        raise ConfigError(
            f'method.teacher_share = {share:g} needs Gaussian noise and privacy.relation = "{Relation.ZERO_OUT}", '
            f'for which the teacher\'s steps are priced; the config has {law} noise and "{relation}". Change them, '
            "or set method.teacher_share = 0."
        )
    if config.model.drawn.shape and share + method.template_share >= 1:
        raise ConfigError(
            f"method.teacher_share = {share:g} and method.template_share = {method.template_share:g} leave nothing "
            "of the budget for the sums. Lower one of them."
        )
    if method.templates != "one" and not (config.model.drawn.shape and config.model.conditional):
        raise ConfigError(
            f'method.templates = "{method.templates}" brings images into place on the template of their class: set '
            'model.drawing = "handwriting" (or "many-classes", "faces") and model.conditional = true, or '
            'method.templates = "one".'
        )


def template_share(config: Any) -> float:
    """Return the share of the budget for the template; 0 where images are not registered."""
    return float(config.method.template_share) if config.model.drawn.shape else 0.0


@dataclasses.dataclass
class SumsRelease:
    """What is released of the private images at once: a template, sums, a teacher; on one budget with a method's steps.

    Each mechanism has the least noise with which everything together keeps to [privacy]; it is found when it is first
    asked for.

    Attributes:
        plan: Of the run.
        dimensions: Numbers of the vector of an image.
        law: Of the noise on the sums.
        steps_share: Share of the budget for what is neither sums nor template nor teacher.
        steps: Its charges, by the noise multiplier of everything together.
    """

    plan: RunPlan
    dimensions: int
    law: Law = "gaussian"
    steps_share: float = 0.0
    steps: Callable[[float], Sequence[Event]] = lambda multiplier: ()

    def __post_init__(self) -> None:
        self._method, self._privacy = self.plan.config.method, self.plan.config.privacy
        self.template_share = template_share(self.plan.config)
        self.num_templates = self.plan.rows if self._method.templates == "class" else 1

    @property
    def share(self) -> float:
        """Share of the budget for the sums: what the others leave."""
        return float(1 - self._method.teacher_share - (self.template_share + self.steps_share))

    @functools.cached_property
    def sums(self) -> CellSums:
        """The release of the sums, a cell for each class."""
        beside: dict[str, Any] = {}
        if self.share != 1:
            beside = {"factor": 1 / math.sqrt(self.share), "beside": self._beside}
        return CellSums.calibrated(
            self.plan.rows, self.dimensions, self.law, **released_once.terms(self._privacy), **beside
        )

    def _beside(self, multiplier: float) -> tuple[Event, ...]:
        """Return all charges but that of the sums."""
        teacher = (self._teacher(multiplier).event,) if self._method.teacher_share else ()
        template = (self._round(multiplier).event.repeated(ROUNDS),) if self.template_share else ()
        return (*teacher, *template, *self.steps(multiplier))

    @property
    def multiplier(self) -> float:
        """Noise multiplier of everything together."""
        return self.sums.noise_multiplier * math.sqrt(self.share)

    def _round(self, multiplier: float) -> CellSums:
        """Return the release of one round of the template, beside everything together at this multiplier."""
        size = count_coefficients(self.plan.shape.image_shape, self.plan.config.model.latent_dim)
        noise, most = noise_on(self.template_share, multiplier, ROUNDS), released_once.cap_of(self._privacy) or 1
        adjacency = self.plan.unit, self.plan.relation
        return CellSums(self.num_templates, size + 1, "gaussian", noise, *adjacency, most_per_unit=most)

    def _teacher(self, multiplier: float) -> TeacherSteps:
        """Return the steps of a teacher beside everything together at this multiplier."""
        return TeacherSteps.of(self._method, self.plan.unit, self.plan.shape.num_private, multiplier)

    @functools.cached_property
    def template(self) -> CellSums | None:
        """The release of one round of the template; None without."""
        return self._round(self.multiplier) if self.template_share else None

    @functools.cached_property
    def teacher(self) -> TeacherSteps | None:
        """The steps of the teacher; None without one."""
        return self._teacher(self.multiplier) if self._method.teacher_share else None

    @property
    def template_events(self) -> tuple[Event, ...]:
        """The price of all rounds of the template."""
        return () if self.template is None else (self.template.event.repeated(ROUNDS),)

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of the template, of the sums, and of the teacher."""
        teacher = () if self.teacher is None else (self.teacher.event,)
        return (*self.template_events, self.sums.event, *teacher)

    def reason(self, sums: str, events: Sequence[Event]) -> str:
        """Return what a report's reason says was released; ``sums`` names the sums. The teacher is DP-SGD."""
        kind, share = " of each class" if self.num_templates > 1 else "", self._method.teacher_share
        template = f"a template{kind} from {ROUNDS} noisy mean images, " if self.template_share else ""
        teacher = f", and a classifier on {share:g} of the budget, where {rounding_words(events)}" if share else ""
        return f"{template}one release of noisy {sums}{teacher}"


def check(plan: RunPlan) -> None:
    """Refuse a teacher of fewer than two classes, and a template a class where public images have no classes."""
    method = plan.config.method
    if method.teacher_share and plan.classes < 2:
        raise ConfigError(
            f"method.teacher_share = {method.teacher_share:g} trains a classifier, and the generator has "
            f"{plan.classes} classes. Take labeled images of at least 2 classes with model.conditional = true, or set "
            "method.teacher_share = 0."
        )
    if method.templates == "class" and plan.rows > 1 and are_unlabeled(plan.config.data, plan.shape.classes):
        raise ConfigError(
            'method.templates = "class", but the public images have no labels. Say what each class looks like in '
            'data.public_labels, or set method.templates = "one".'
        )
