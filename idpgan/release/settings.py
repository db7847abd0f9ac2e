"""What the numbers of a release follow from: the settings of what made it, and what is public of its data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import pydantic

from idpgan.config import Section, build
from idpgan.data.config import WHERE_FILES_LIE
from idpgan.data.faces import count_public
from idpgan.data.images import LONGEST_CLASS_NAME
from idpgan.data.load import DataShape
from idpgan.errors import InputError
from idpgan.files import printable
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit
from idpgan.privacy.ledger import Budget
from idpgan.privacy.noise import Source
from idpgan.training.config import RunConfig
from idpgan.training.contained import names_origin, with_total


class Settings(Protocol):
    """All that charges, delta and report follow from.

    `idpgan.release.folder.write_release` writes them, and `idpgan.release.verify` derives every number from them again.
    """

    @property
    def data(self) -> str:
        """Name of the data, one printable line."""

    @property
    def method(self) -> str:
        """Name of the method."""

    @property
    def num_private(self) -> int:
        """N >= 1, the number of private records: public."""

    @property
    def num_public(self) -> int:
        """Number of public images, which nothing protects."""

    @property
    def num_classes(self) -> int:
        """Number of public classes; 0 = no labels."""

    @property
    def num_pixels(self) -> int:
        """Numbers in one record, each of which may have a price of its own."""

    @property
    def delta(self) -> float:
        """Where epsilon is stated, below 1/N; 0 is pure. Settings that ask for 1/N or more raise an `InputError`."""

    @property
    def plans_exactly(self) -> bool:
        """Whether `planned_events` are the very events; else they are an upper bound."""

    def to_json(self) -> dict[str, Any]:
        """Return what config.json says: JSON values, all of them public."""

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """Return unit and relation of all events, and the target that their epsilon keeps to."""

    def planned_events(self) -> tuple[Event, ...]:
        """Return what is charged if all is done that was planned."""

    def report(self, events: Sequence[Event], proven: Guarantee, noise: Sequence[Source]) -> PrivacyReport:
        """Return what is said of the privacy of these charges, which prove ``proven``, for these sources of noise."""

    def problems(self, described: Mapping[str, Any]) -> list[str]:
        """Return what of an artifact's description does not follow from the settings, one sentence each."""


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run of `idpgan train`; ``shape`` is what is public about the data."""

    config: RunConfig
    shape: DataShape

    @classmethod
    def of(cls, config: RunConfig, shape: DataShape) -> Self:
        """Return the settings as they are released: the config calls the classes as the shape does."""
        data, declared = config.data, config.data.classes
        if declared and declared != shape.classes:
            public = dict(zip(declared, shape.classes, strict=True))
            labels = data.public_labels and {public[name]: look for name, look in data.public_labels.items()}
            data = data.model_copy(update={"classes": shape.classes, "public_labels": labels})
        return cls(config.model_copy(update={"data": data}), shape)

    @property
    def data(self) -> str:
        """See `Settings`."""
        return self.config.data.name

    @property
    def method(self) -> str:
        """See `Settings`."""
        return self.config.method.name

    @property
    def num_private(self) -> int:
        """See `Settings`."""
        return self.shape.num_private

    @property
    def num_public(self) -> int:
        """See `Settings`."""
        return self.shape.sizes.public

    @property
    def num_classes(self) -> int:
        """See `Settings`."""
        return len(self.shape.classes)

    @property
    def num_pixels(self) -> int:
        """See `Settings`."""
        return math.prod(self.shape.image_shape)

    @property
    def delta(self) -> float:
        """See `Settings`."""
        return self.config.stated_delta(self.num_private)

    @property
    def plans_exactly(self) -> bool:
        """See `Settings`."""
        return self.config.plans_exactly

    def to_json(self) -> dict[str, Any]:
        """Return the config without where files lie on the curator's machine."""
        public = self.config.to_json()
        public["data"] = {key: value for key, value in public["data"].items() if key not in WHERE_FILES_LIE}
        return public

    def ledger_terms(self) -> tuple[Unit, Relation, Budget | None]:
        """See `Settings`."""
        return self.config.ledger_terms()

    def planned_events(self) -> tuple[Event, ...]:
        """See `Settings`."""
        return self.config.planned_events(self.shape)

    def report(self, events: Sequence[Event], proven: Guarantee, noise: Sequence[Source]) -> PrivacyReport:
        """See `Settings`."""
        return with_total(self.config.report(self.shape, events, proven, noise), self.config, self.shape, events)

    def problems(self, described: Mapping[str, Any]) -> list[str]:
        """See `Settings`."""
        problems, config = self.config.misdescribed(described), self.config
        if not names_origin(config):
            problems.append(
                "a released generator is in the release, and contained does not have the charges that it states: the "
                "total is unknown."
            )
        if (config.data.public_share or config.data.public) and not self.num_public:
            problems.append("num_public = 0, but the settings have public images.")
        elif config.data.public and self.num_public != count_public(config.data):
            problems.append(
                f"num_public = {self.num_public:,}, but {count_public(config.data):,} public ones are drawn."
            )
        taken = self.num_private + (self.num_public if config.data.public_share else 0)
        if config.data.num_images is not None and taken > config.data.num_images:
            problems.append(f"{taken:,} images are of the run, but data.num_images = {config.data.num_images:,}.")
        return problems


class ImagesSettings(Section):
    """What `Settings` of a release have in common that holds one image for each private one.

    Attributes:
        data: Name of the data, for the card.
        method: Name of the method.
        num: N, the number of images: public.
        shape: Of each image.
        options: Of the method; one that is left out has its default.
    """

    data: str = pydantic.Field(min_length=1, max_length=LONGEST_CLASS_NAME)
    method: str
    num: int = pydantic.Field(ge=1)
    shape: list[int] = pydantic.Field(min_length=2, max_length=3)
    options: dict[str, Any]

    @pydantic.model_validator(mode="after")
    def _check_data(self) -> Self:
        if not printable(self.data):
            raise ValueError(f"data = {self.data!a} must be one printable line.")
        return self

    @classmethod
    def from_release(cls, table: Any, described: Mapping[str, Any], document: Mapping[str, Any]) -> Self:
        """Return what a config.json says; see `idpgan.release.artifact.Kind`."""
        said = build(cls, table, "config.json")
        for problem in said.problems(described):  # before a plan is made for a shape that nothing here has
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
    def plans_exactly(self) -> bool:
        """The events are those of the plan."""
        return True

    def problems(self, described: Mapping[str, Any]) -> list[str]:
        """See `Settings`."""
        raise NotImplementedError
