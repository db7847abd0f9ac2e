"""[[contained]] of a config: releases that a run builds on and that its own release therefore contains.

Whether they count is decided by what the config declares, never by images: whoever takes a release as public has to say
that it read nobody of the private images (``data.public_disjoint``), or its charges stand on the run's ledger before
all others, and the total of both is stated wherever the run's own epsilon is. A digest of private images that decided
this would be a leak itself, and one changed record would get around it.

Light: the command line reads it without PyTorch.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

from idpgan.config import Section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from idpgan.data.load import DataShape
    from idpgan.privacy.composition import Part
    from idpgan.privacy.event import Event
    from idpgan.privacy.guarantee import Guarantee, PrivacyReport
    from idpgan.training.config import RunConfig


MOST_EVENTS, MOST_CONTAINED = 20, 20  # a forged list may be long to price


class Contained(Section):
    """A release that another one contains, as it states itself; `idpgan train` writes it.

    Attributes:
        method: Its method.
        num_private: Private images that it was made from; None: nothing says so.
        num_public: Images that it called public, drawn ones aside: nothing protects them.
        delta: Where it states its epsilon.
        events: All that it charged, see `idpgan.privacy.Event`; more than 20 kinds as one of its epsilon and delta.
    """

    method: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
    num_private: Annotated[int, Field(ge=1)] | None = None
    num_public: int = Field(0, ge=0)
    delta: float = Field(ge=0, lt=1)
    events: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=MOST_EVENTS)

    @field_validator("events")
    @classmethod
    def _check_events(cls, events: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        from idpgan.privacy.composition import Part  # here, as below: this module is light

        return tuple(Part.from_json({"delta": 0.0, "events": events}).to_json()["events"])

    @property
    def part(self) -> Part:
        """Its charges."""
        from idpgan.privacy.composition import Part

        return Part.from_json({"delta": self.delta, "events": self.events})


def names_origin(config: RunConfig) -> bool:
    """Whether the generator that a config builds on, if any, is among the releases that it says to contain."""
    origin = config.model.origin
    if origin is None:
        return True
    said = (origin.num_private, origin.unit, origin.relation)
    return any((each.num_private, *map(str, each.part.pair)) == said for each in config.contained)


def counted(config: RunConfig) -> tuple[Part, ...]:
    """Return the charges of contained releases that may have read the private images: none where all is declared."""
    return () if config.data.public_disjoint else tuple(each.part for each in config.contained)


def total_of(config: RunConfig, events: Sequence[Event], num_private: int) -> Guarantee | None:
    """Return what a run's charges and those of contained releases prove together; None where none of those counts.

    Raises:
        InputError: If their deltas together are not below 1/N.
    """
    from idpgan.privacy.composition import Part, total
    from idpgan.privacy.guarantee import check_delta

    parts = counted(config)
    if not parts:
        return None
    unit, relation, _ = config.ledger_terms()
    own = Part(tuple(events), config.stated_delta(num_private))
    found = total(own, parts, unit, relation, _most_per_person(config))
    check_delta(found.delta, num_private, "privacy.delta together with that of the contained releases")
    return found


def with_total(report: PrivacyReport, config: RunConfig, shape: DataShape, events: Sequence[Event]) -> PrivacyReport:
    """Return a run's report with what its release contains, the total, and what is declared of both."""
    found = total_of(config, events, shape.num_private)
    return dataclasses.replace(
        report,
        private=report.private and (found is None or found.finite),
        public_assumptions=(*report.public_assumptions, *_declared(config, shape)),
        contained=() if found is None else tuple(part.proven for part in counted(config)),
        total=found,
    )


def _most_per_person(config: RunConfig) -> int:
    most: int = getattr(config.privacy, "most_per_person", 1)
    return most


def _declared(config: RunConfig, shape: DataShape) -> list[str]:
    """Say what the config declares of public images and of contained releases, one phrase each."""
    from idpgan.privacy.guarantee import Unit

    data, phrases = config.data, []
    person = config.ledger_terms()[0] is Unit.PERSON
    if shape.sizes.public and not data.public_share and data.public is None:
        disjoint = data.public_disjoint or (person and data.confirm_public)
        shown = ", and that nobody of the private ones is on them" if disjoint else ""
        phrases.append(f"that the images of data.public_root are public{shown}: the word of whoever made this release")
    for each in config.contained:
        proven, what = each.part.proven, f"the contained release of method {each.method}"
        if data.public_disjoint:
            phrases.append(
                f"that nobody of the private images is among the {each.num_private or 'unknown'} images of {what} "
                f"(data.public_disjoint): its {proven} is not counted"
            )
        elif person and proven.unit is Unit.IMAGE:
            phrases.append(f"the cap of {_most_per_person(config)} images of one person in {what} too")
        if each.num_public and not data.public_disjoint:
            phrases.append(f"that the {each.num_public:,} public images of {what} are none of the private ones")
    return phrases


def images_per_person(config: RunConfig) -> int | None:
    """Return the cap on a person's images that a contained release must keep to; None where there is none."""
    from idpgan.privacy.guarantee import Unit

    capped = config.ledger_terms()[0] is Unit.PERSON and any(part.pair[0] is Unit.IMAGE for part in counted(config))
    return _most_per_person(config) if capped else None
