"""[[contained]] of a config: releases that a run builds on and that its own release therefore contains.

The config's declarations decide whether they count, never the images. Whoever takes a release as public must declare
that it read none of the people in the private images (``data.public_disjoint``). Otherwise its charges stand first on
the run's ledger, and the total of both is stated wherever the run's own epsilon is. Deciding by a digest of the private
images would itself be a leak, and one changed record would evade it.

Light to import: the command line reads it without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator

from idpgan.config import Section

if TYPE_CHECKING:
    from idpgan.privacy.totals import Part

MOST_EVENTS, MOST_CONTAINED = 20, 20  # a forged longer list may take long to price


class Contained(Section):
    """A release that another one contains, as the contained release states itself; `idpgan train` writes this section.

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
        from idpgan.privacy.totals import Part  # imported here and below, as this module must be light to import

        return tuple(Part.from_json({"delta": 0.0, "events": events}).to_json()["events"])

    @property
    def part(self) -> Part:
        """Its charges."""
        from idpgan.privacy.totals import Part

        return Part.from_json({"delta": self.delta, "events": self.events})
