"""What a release of obfuscated images was made with: that nothing is proven of it follows from that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import pydantic

from idpgan.config import Section, build
from idpgan.data.labels import LONGEST_CLASS_NAME
from idpgan.errors import InputError
from idpgan.files import printable
from idpgan.obfuscate.base import SECRET
from idpgan.obfuscate.registry import METHODS, load_method
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.release.images import ImagesArtifact

_PUBLIC = ("number, size and order of the images", "method and options, but for a key")


class ObfuscatedArtifact(ImagesArtifact):
    """Images that went through an obfuscator; see `idpgan.release.artifact.Artifact`."""

    kind: ClassVar[str] = "obfuscated"


class Obfuscation(Section):
    """The settings of a release of obfuscated images; see `idpgan.release.settings.Settings`.

    Attributes:
        data: Name of the data, for the card.
        method: Name in `METHODS`.
        num: N, the number of images: public.
        shape: (C, H, W).
        options: Of the method, all of them but its secrets.
    """

    data: str = pydantic.Field(min_length=1, max_length=LONGEST_CLASS_NAME)
    method: str
    num: int = pydantic.Field(ge=1)
    shape: list[int] = pydantic.Field(min_length=3, max_length=3)
    options: dict[str, Any]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not printable(self.data):
            raise ValueError(f"data = {self.data!a} must be one printable line.")
        config = build(load_method(self.method).Config, self.options, f"the options of '{self.method}'")
        if config.model_dump(mode="json", exclude=set(SECRET)) != self.options:
            raise ValueError(f"options = {self.options!a} are not the public options of '{self.method}'.")
        return self

    @classmethod
    def from_release(cls, table: Any, described: Mapping[str, Any], document: Mapping[str, Any]) -> Self:
        """Return what a config.json says; see `idpgan.release.artifact.Kind`."""
        said = build(cls, table, "config.json")
        for problem in said.problems(described):
            raise InputError(problem)
        return said

    @property
    def num_private(self) -> int:
        """See `Settings`."""
        return self.num

    @property
    def num_public(self) -> int:
        """No image is public."""
        return 0

    @property
    def num_classes(self) -> int:
        """Images have no labels."""
        return 0

    @property
    def num_pixels(self) -> int:
        """See `Settings`."""
        return math.prod(self.shape)

    @property
    def delta(self) -> float:
        """There is no guarantee that could state one."""
        return 0.0

    @property
    def plans_exactly(self) -> bool:
        """There is one event: the images were read."""
        return True

    def to_json(self) -> dict[str, Any]:
        """See `Settings`."""
        return self.model_dump(mode="json")

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `Settings`."""
        return Unit.IMAGE, Relation.REPLACE_ONE, None

    def planned_events(self) -> tuple[Event, ...]:
        """See `Settings`."""
        return (Event.non_private(METHODS[self.method].reason),)

    def report(self, events: Sequence[Event], proven: Guarantee, noise: Sequence[Source]) -> PrivacyReport:
        """See `Settings`."""
        nothing = Guarantee(math.inf, 0.0, Unit.IMAGE, Relation.REPLACE_ONE, "nothing is proven")
        return PrivacyReport(None, nothing, None, METHODS[self.method].reason, False, _PUBLIC)

    def problems(self, described: Mapping[str, Any]) -> list[str]:
        """See `Settings`."""
        if (described["num"], described["image_shape"]) != (self.num, self.shape):
            return [f"the images are not {self.num:,} of shape {self.shape}."]
        return []
