"""The charges of a release that a run builds on, or that drew the run's public images, as their files state them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idpgan.config import build
from idpgan.errors import InputError
from idpgan.files import MOST_TEXT_BYTES, parse_json, read_plain
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport
from idpgan.release.statement import PRIVACY, Settings, Statement, read_report
from idpgan.training.config import MOST_EVENTS, Contained

KEY = "contained"  # key in the manifest of drawn images
_TOLERANCE = 1e-6  # the rounding of another machine


def contained_in(stated: Statement, settings: Settings) -> tuple[Contained, ...]:
    """Return a release and all releases that it contains, as a config that builds on it must name them.

    A release that does not protect its private images, say with noise of a fixed seed, counts as a read without noise.
    """
    events, proven = stated.events, stated.report.proven
    if not stated.report.private:
        events = (Event.non_private("the release says that it is not private", stated.unit, stated.relation),)
    elif len(events) > MOST_EVENTS:  # a price for each number of an image
        kind = "approximate" if proven.delta else "pure"
        events = (Event(kind, stated.unit, stated.relation, pure_epsilon=proven.epsilon, delta=proven.delta or None),)
    run = settings.run
    released = Contained(
        method=settings.method,
        num_private=settings.num_private,
        num_public=0 if run is not None and run.data.public is not None else settings.num_public,
        delta=settings.plan.price.delta,
        events=tuple(event.to_json() for event in events),
    )
    if run is None:
        return (released,)
    forgotten = run.model.origin is not None and not run.contained  # released before totals were stated
    return (released, *((_unknown(),) if forgotten else run.contained))


def _unknown() -> Contained:
    """Return the entry for a release that does not state its charges."""
    event = Event.non_private("nothing says what this cost those whom it was made from")
    return Contained(method="unknown", delta=0.0, events=(event.to_json(),))


def contained_in_export(manifest: Path) -> tuple[Contained, ...]:
    """Return the contained releases of images that `idpgan sample` drew, as their manifest states them."""
    listed = _content(manifest).get(KEY)
    if not isinstance(listed, list) or not listed:
        return (_unknown(),)
    return tuple(build(Contained, item, f"{KEY} of {manifest}") for item in listed)


def report_of_export(manifest: Mapping[str, Any], where: str) -> PrivacyReport | None:
    """Return the report of drawn images, as their manifest states it; None if it states none.

    Raises:
        InputError: If it is damaged, or the charges that stand beside it cost more than it says is proven.
    """
    if manifest.get("privacy") is None:
        return None
    report, listed = read_report(manifest["privacy"], f"privacy of {where}"), manifest.get(KEY)
    if report.private and isinstance(listed, list) and listed:  # the first is the release that they were drawn from
        source, proven = build(Contained, listed[0], f"{KEY} of {where}").part, report.proven
        cost = compose_epsilon(source.events, proven.delta)
        if source.pair != (proven.unit, proven.relation) or cost > proven.epsilon * (1 + _TOLERANCE):
            raise InputError(
                f"{where} was changed: its charges cost epsilon = {cost:.6g} for {source.pair[0]}, {source.pair[1]}, "
                f"and it says {proven.epsilon:.6g} for {proven.unit}, {proven.relation}. Draw or copy the images again."
            )
    return report


def release_around(path: Path) -> Path | None:
    """Return the release folder that a folder is or lies in, by its privacy.json, which may be damaged; None = none."""
    for folder in (path.resolve(), *path.resolve().parents):
        form = said_format(folder / PRIVACY)
        if form is None or form.startswith("idpgan release "):
            return folder
    return None


def said_format(path: Path) -> str | None:
    """Return the entry "format" of a JSON file, empty if there is none; None if the file cannot be read."""
    try:
        return str(_content(path).get("format", "")) if os.path.lexists(path) else ""
    except ValueError:  # InputError is a ValueError
        return None


def _content(path: Path) -> Mapping[str, Any]:
    content = parse_json(read_plain(path, MOST_TEXT_BYTES, follow=True))
    return content if isinstance(content, Mapping) else {}
