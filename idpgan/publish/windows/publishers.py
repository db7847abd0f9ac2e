"""The window publishers: two as published, two sound."""

from __future__ import annotations

from idpgan.publish.plan import Algorithm, Publisher, as_published
from idpgan.publish.windows import audits, published
from idpgan.publish.windows.published import SwpOptions
from idpgan.publish.windows.sound import SortSwpSoundOptions, SwpSoundOptions, plan_windows


def _published(name: str, algorithm: Algorithm, part: float = 1.0) -> Publisher:
    plan = as_published(name, algorithm, audits.CLAIM)
    return Publisher(SwpOptions, plan, audits.published_entry(name, algorithm, part))


def _sound(name: str, options: type[SwpSoundOptions]) -> Publisher:
    return Publisher(options, plan_windows, audits.sound_entry(name, options(window=4)))


PUBLISHERS = {
    "swp": _published("swp", published.swp),
    "sort-swp": _published("sort-swp", published.sort_swp, part=1 / 3),
    "swp-sound": _sound("swp-sound", SwpSoundOptions),
    "sort-swp-sound": _sound("sort-swp-sound", SortSwpSoundOptions),
}
