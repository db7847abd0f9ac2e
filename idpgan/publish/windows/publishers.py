"""The window publishers: two as published, two sound."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from idpgan.errors import InputError
from idpgan.methods import METHODS
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.noise import Noise
from idpgan.publish.plan import Plan, Publisher, Shape
from idpgan.publish.windows import audits, published, sound
from idpgan.publish.windows.published import SwpOptions
from idpgan.publish.windows.stream import count_windows, window_of


def _published(
    name: str, algorithm: Callable[[Tensor, float, SwpOptions, Noise], Tensor], part: float = 1.0
) -> Publisher:
    def plan(shape: Shape, unit: Unit, epsilon: float, delta: float, options: SwpOptions) -> Plan:
        if delta > 0:
            raise InputError(f"delta = {delta}: '{name}' claims pure privacy; leave delta out.")
        count_windows(shape, window_of(shape, options.window), options.step)
        event = Event.non_private(METHODS[name].reason, unit, Relation.REPLACE_ONE)
        return Plan((event,), lambda images, noise: algorithm(images, epsilon, options, noise), audits.CLAIM)

    return Publisher(SwpOptions, plan, audits.published_entry(name, algorithm, part))


PUBLISHERS = {
    "swp": _published("swp", published.swp),
    "sort-swp": _published("sort-swp", published.sort_swp, part=1 / 3),
    "swp-sound": Publisher(
        sound.SwpSoundOptions,
        sound.plan_swp,
        audits.sound_entry("swp-sound", sound.plan_swp, sound.SwpSoundOptions(window=4)),
    ),
    "sort-swp-sound": Publisher(
        sound.SortSwpSoundOptions,
        sound.plan_sort_swp,
        audits.sound_entry("sort-swp-sound", sound.plan_sort_swp, sound.SortSwpSoundOptions(window=4)),
    ),
}
