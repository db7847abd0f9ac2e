"""What a page holds, and how it becomes one HTML file that needs nothing else: no network, no script."""

from __future__ import annotations

import functools
import importlib.metadata
from dataclasses import dataclass

import jinja2

from idpgan.report.pictures import Picture

FORMAT = "idpgan report 1"  # in the file's head, so that a report is written over and nothing else is


@dataclass(frozen=True)
class Figure:
    """One of the three numbers, written large.

    Attributes:
        name: "Claimed", "Proven" or "Audited".
        value: The number as it is shown; "∞" is read out as "infinite".
        sign: Before it: "≥" of a lower bound, "≤" of an upper one, or empty.
        delta: Beside it; empty = pure, or no number.
        unit: Unit and relation; empty without a number.
        basis: Where it comes from.
    """

    name: str
    value: str
    sign: str = ""
    delta: str = ""
    unit: str = ""
    basis: str = ""


@dataclass(frozen=True)
class Table:
    """A table; the first cell of each row names it."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Chart:
    """A drawing of `charts` with the words under it."""

    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Gallery:
    """Pictures under one heading; private ones are marked as what nothing protects."""

    heading: str
    pictures: tuple[Picture, ...]
    caption: str = ""
    private: bool = False


@dataclass(frozen=True)
class Part:
    """One part of a page.

    Attributes:
        name: Of the place to jump to, one word.
        heading: Its title.
        text: Paragraphs.
        facts: What is said in pairs of a word and its value.
        missing: Why it is empty, one sentence; with the command that makes it in ``command``.
        notes: In small print.
        settings: A text that is shown as it is.
    """

    name: str
    heading: str
    text: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    galleries: tuple[Gallery, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    missing: str | None = None
    command: str | None = None
    notes: tuple[str, ...] = ()
    settings: str | None = None


@dataclass(frozen=True)
class Page:
    """A whole report.

    Attributes:
        title: What it is about.
        subtitle: One line.
        alarm: What comes before anything else: why nothing is proven; empty where something is.
        figures: The three numbers.
        why: Why they differ, one paragraph each.
    """

    title: str
    subtitle: str
    alarm: tuple[str, ...]
    figures: tuple[Figure, ...]
    why: tuple[str, ...]
    parts: tuple[Part, ...]


def render(page: Page) -> str:
    """Return the HTML of a page; every text of it is escaped."""
    version = importlib.metadata.version("idpgan")
    return _template().render(page=page, format=FORMAT, version=version)


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("idpgan.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")
