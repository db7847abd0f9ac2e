"""The settings of a release of obfuscated images, from which its report follows: nothing is proven."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pydantic

from idpgan.config import build
from idpgan.methods import METHODS
from idpgan.obfuscate.base import SECRET, load_method
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit
from idpgan.privacy.noise import Source
from idpgan.privacy.plan import Plan, Price
from idpgan.release.images import ImagesArtifact
from idpgan.release.settings import ImagesTable

_PUBLIC = ("number, size and order of the images", "method and options, but for a key")


class ObfuscatedArtifact(ImagesArtifact):
    """Images that went through an obfuscator; see `idpgan.release.artifact.Artifact`."""

    kind: ClassVar[str] = "obfuscated"


@dataclass(frozen=True)
class ObfuscationPlan(Plan):
    """The plan of an obfuscation: one read without a proof. ``method`` is a name in `METHODS`."""

    method: str

    @functools.cached_property
    def price(self) -> Price:
        """One unprotected read."""
        return Price(Unit.IMAGE, Relation.REPLACE_ONE, events=(Event.non_private(METHODS[self.method].reason),))

    def report_of(self, events: Sequence[Event], proven: Guarantee, sources: Sequence[Source]) -> PrivacyReport:
        """Return a report that claims and proves nothing."""
        nothing = Guarantee(math.inf, 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "nothing is proven")
        return PrivacyReport(None, nothing, None, METHODS[self.method].reason, False, _PUBLIC)


class ObfuscationTable(ImagesTable):
    """The settings of a release of obfuscated images; ``method`` is a name in `METHODS`.

    Attributes:
        shape: (C, H, W).
        options: Of the method, its secrets never; one that is left out has its default.
    """

    shape: list[int] = pydantic.Field(min_length=3, max_length=3)

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        build(load_method(self.method).Config, self.options, f"the options of '{self.method}'")
        if SECRET & set(self.options):
            raise ValueError(f"options = {self.options!a} are not the public options of '{self.method}'.")
        return self

    def plan(self) -> ObfuscationPlan:
        """Return the plan, which depends on the method alone."""
        return ObfuscationPlan(self.method)

    def problems(self, described: Mapping[str, Any]) -> list[str]:
        """Compare the number and shape of the images with the settings."""
        if (described["num"], described["image_shape"]) != (self.num, self.shape):
            return [f"the images are not {self.num:,} of shape {self.shape}."]
        return []
