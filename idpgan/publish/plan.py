"""What a publisher is: its options, a plan made before an image is read, and its audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pydantic
from torch import Tensor

from idpgan.audit.entry import Entry
from idpgan.config import Section
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Unit
from idpgan.privacy.noise import Noise

Shape = tuple[int, int]


class Options(Section):
    """Options of a publisher: strict types, unknown keys refused. This one has none."""

    model_config = pydantic.ConfigDict(strict=True)


def no_notes(images: Tensor) -> tuple[str, ...]:
    """Return no notes."""
    return ()


@dataclass(frozen=True)
class Plan:
    """One release of any number of images, fixed by public numbers alone.

    Attributes:
        events: What it costs. Every image is a record of its own, so the batch costs what one image costs.
        release: Maps images (N, m, n) in [0, 1] and a source of noise to released ones, of the same shape, not
            clamped, float64 or the dtype of the images.
        claim: What the claimed epsilon rests on.
        notes: Maps the images to what a curator has to know of them, one sentence each; not to be given away.
    """

    events: tuple[Event, ...]
    release: Callable[[Tensor, Noise], Tensor]
    claim: str = "asked for"
    notes: Callable[[Tensor], tuple[str, ...]] = no_notes

    @property
    def law(self) -> str:
        """What happens to the numbers that are released: the kinds of the events, in words."""
        return " and ".join(f"{e.count} x {e.kind}" if e.count > 1 else e.kind for e in self.events)


def each_channel(plan: Plan, channels: int) -> Plan:
    """Return the plan that releases every channel of images (N, C, m, n) by a plan for (N, m, n).

    A unit of a color image is the same pixel, column or image of all its channels: the releases of its C channels
    compose, so every charge stands C times. Each channel gets noise of its own.
    """

    def release(images: Tensor, noise: Noise) -> Tensor:
        return plan.release(images.flatten(0, 1), noise).unflatten(0, images.shape[:2])

    def notes(images: Tensor) -> tuple[str, ...]:
        return plan.notes(images.flatten(0, 1))

    events = tuple(event.repeated(channels * event.count) for event in plan.events)
    return Plan(events, release, plan.claim, notes)


@dataclass(frozen=True)
class Publisher:
    """All of a publisher but its row of ``idpgan methods``, which `idpgan.methods` holds.

    Attributes:
        options: Class of its options, all with defaults.
        plan: Makes the plan from the image shape (m, n), the unit, epsilon, delta and the options; raises `InputError`
            where no plan keeps to them. It reads no image.
        audit: The case of ``idpgan audit``.
    """

    options: type[Options]
    plan: Callable[[Shape, Unit, float, float, Any], Plan]
    audit: Entry
