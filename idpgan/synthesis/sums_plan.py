"""What methods that release sums have in common: a template before them, a teacher beside them, one budget.

A method that releases sums of vectors of images may bring images into place first (`synthesis.template`), and may train
a classifier that chooses among what is drawn (`synthesis.teacher`). All of it, and the steps that a method adds, are
releases of Gaussian noise on shares of one budget (`idpgan.private.shares`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from idpgan.data.drawn import are_unlabeled
from idpgan.errors import ConfigError
from idpgan.models.gaussian import count_coefficients
from idpgan.privacy import Event, Relation
from idpgan.privacy.event import rounding_words
from idpgan.privacy.sums import CellSums, Law
from idpgan.private.people import AggregatePrivacy, refuse_shared_people, signal_of
from idpgan.private.shares import Shares, noise_on
from idpgan.synthesis.teacher import TaughtConfig, TeacherSteps
from idpgan.synthesis.template import ROUNDS, TEMPLATE_SHARE
from idpgan.training.config import RunConfig
from idpgan.training.plan import RunPlan, Signal


class SumsConfig(TaughtConfig):
    """[method] of a method that releases sums, and perhaps a template and a teacher.

    Attributes:
        template_share: Share of the budget that the template gets, where images are registered.
        templates: "one" for all images, or one for each "class": where images of different classes have nothing in
            common that could be brought into the same place, as with writing.
        symmetric: Whether a mirror image, left for right, is as likely as the image, as with faces in the middle: what
            that leaves out of the sums makes noise smaller. Not for writing.
    """

    template_share: float = Field(TEMPLATE_SHARE, gt=0, le=0.5)
    templates: Literal["one", "class"] = "one"
    symmetric: bool = False


class SumsRun(RunConfig):
    """A whole config file of a method that releases sums."""

    ABILITIES = frozenset({"move"})

    method: Any
    privacy: AggregatePrivacy

    @model_validator(mode="after")
    def _check_shares(self) -> SumsRun:
        """Refuse people in two parts, a teacher without Gaussian noise and zero-out-one, a template without budget."""
        refuse_shared_people(self)
        method, relation = self.method, self.privacy.relation
        share, law = method.teacher_share, getattr(method, "law", "gaussian")
        if share and (law != "gaussian" or relation is not Relation.ZERO_OUT):
            raise ConfigError(
                f'method.teacher_share = {share:g} needs Gaussian noise and privacy.relation = "{Relation.ZERO_OUT}", '
                f'for which the teacher\'s steps are priced; the config has {law} noise and "{relation}". Change them, '
                "or set method.teacher_share = 0."
            )
        if self.model.drawn.shape and share + method.template_share >= 1:
            raise ConfigError(
                f"method.teacher_share = {share:g} and method.template_share = {method.template_share:g} leave nothing "
                "of the budget for the sums. Lower one of them."
            )
        if method.templates != "one" and not (self.model.drawn.shape and self.model.conditional):
            raise ConfigError(
                f'method.templates = "{method.templates}" brings images into place on the template of their class: set '
                'model.drawing = "handwriting" (or "many-classes", "faces") and model.conditional = true, or '
                'method.templates = "one".'
            )
        return self


class SumsPlan(RunPlan):
    """The plan of a run that releases sums, a template where images are registered, a teacher where it has a share."""

    @functools.cached_property
    def sums(self) -> CellSums:
        """The release of sums, by `calibrated`."""
        raise NotImplementedError

    @property
    def other_share(self) -> float:
        """Share of the budget for what is neither sums nor template nor teacher."""
        return 0.0

    def others(self, multiplier: float) -> tuple[Event, ...]:
        """Return the charges of `other_share`, beside everything together at this multiplier."""
        return ()

    @property
    def shares(self) -> Shares:
        """How the budget is split."""
        return Shares(self.template_share, self.config.method.teacher_share, steps=self.other_share)

    def calibrated(self, cells: int, dimensions: int, law: Law = "gaussian") -> CellSums:
        """Return the release of so many sums with the least noise with which everything keeps to [privacy]."""
        share = self.shares.sums
        beside: dict[str, Any] = {}
        if share != 1:
            beside = {"factor": 1 / math.sqrt(share), "beside": self._beside}
        return CellSums.calibrated(cells, dimensions, law, **self.config.privacy.terms, **beside)

    def _beside(self, multiplier: float) -> tuple[Event, ...]:
        """Return all charges but that of the sums."""
        taught = (self._teacher(multiplier).event,) if self.config.method.teacher_share else ()
        first = (self._round(multiplier).event.repeated(ROUNDS),) if self.template_share else ()
        return (*taught, *first, *self.others(multiplier))

    @property
    def multiplier(self) -> float:
        """Noise multiplier of everything together."""
        return self.sums.noise_multiplier * math.sqrt(self.shares.sums)

    # The template -----------------------------------------------------------------------------------------------

    @property
    def template_share(self) -> float:
        """Share of the budget for the template; 0 without."""
        return self.config.method.template_share if self.config.model.drawn.shape else 0.0

    @property
    def num_templates(self) -> int:
        """Templates that images are brought into place on: one, or one of each class."""
        return self.rows if self.config.method.templates == "class" else 1

    def _round(self, multiplier: float) -> CellSums:
        """Return the release of one round of the template, beside everything together at this multiplier."""
        size = count_coefficients(self.shape.image_shape, self.config.model.latent_dim)
        noise, most = noise_on(self.template_share, multiplier, ROUNDS), self.config.privacy.cap or 1
        return CellSums(self.num_templates, size + 1, "gaussian", noise, self.unit, self.relation, most_per_unit=most)

    @functools.cached_property
    def template(self) -> CellSums | None:
        """The release of one round of the template; None without."""
        return self._round(self.multiplier) if self.template_share else None

    @property
    def template_events(self) -> tuple[Event, ...]:
        """The price of all rounds of the template."""
        return () if self.template is None else (self.template.event.repeated(ROUNDS),)

    @property
    def placed(self) -> str:
        """What a report's reason says of the template, before it names the sums; nothing without."""
        each = " of each class" if self.num_templates > 1 else ""
        return f"a template{each} from {ROUNDS} noisy mean images, " if self.template_share else ""

    # The teacher ------------------------------------------------------------------------------------------------

    def _teacher(self, multiplier: float) -> TeacherSteps:
        """Return the steps of a teacher beside everything together at this multiplier."""
        return TeacherSteps.of(self.config.method, self.unit, self.shape.num_private, multiplier)

    @functools.cached_property
    def teaching(self) -> TeacherSteps | None:
        """The steps of the teacher; None without one."""
        return self._teacher(self.multiplier) if self.config.method.teacher_share else None

    @property
    def candidates(self) -> int | None:
        """Images that the released generator draws for each one that its teacher chooses; None without a teacher."""
        method = self.config.method
        return method.candidates if method.teacher_share else None

    def taught(self, events: Sequence[Event]) -> str:
        """Return what a report's reason says of the teacher, which is trained as DP-SGD is; nothing for no share."""
        share = self.config.method.teacher_share
        return f", and a classifier on {share:g} of the budget, where {rounding_words(events)}" if share else ""

    # All of it --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def events(self) -> tuple[Event, ...]:
        """The price of the template, of the sums, and of the teacher."""
        taught = () if self.teaching is None else (self.teaching.event,)
        return (*self.template_events, self.sums.event, *taught)

    @property
    def signal(self) -> Signal:
        """The figure of the sums."""
        return signal_of(self, self.sums.noise_length, "the release")

    def check_teacher(self) -> None:
        """Refuse a teacher for a generator of fewer than two classes."""
        share, classes = self.config.method.teacher_share, self.classes
        if share and classes < 2:
            raise ConfigError(
                f"method.teacher_share = {share:g} trains a classifier, and the generator has {classes} classes. Take "
                "labeled images of at least 2 classes with model.conditional = true, or set method.teacher_share = 0."
            )

    def check_template(self) -> None:
        """Refuse a template of each class where public images, which are registered to it too, have no classes."""
        data = self.config.data
        if self.num_templates > 1 and are_unlabeled(data, self.shape.classes):
            raise ConfigError(
                'method.templates = "class", but the public images have no labels. Say what each class looks like in '
                'data.public_labels, or set method.templates = "one".'
            )
