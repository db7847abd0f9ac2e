"""The card, README.md: what is given away, what its epsilon covers and what it does not, how to load it.

Its head is YAML as the Hugging Face Hub reads it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jinja2

from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit

_RECORDS = {
    Unit.IMAGE: "one image with its label",
    Unit.PERSON: "all images of one person",
    Unit.PHOTO: "all images cut out of one photo",
    Unit.COLUMN: "one column of one image",
    Unit.PIXEL: "one pixel of one image",
    Unit.EVENT: "one event, which adds at most 1 to one value",
}
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "#": "&#35;"}


@dataclass(frozen=True)
class CardFacts:
    """What a card says about the private data and the run, besides the report.

    Attributes:
        num_private: Number of private records, which is public.
        num_public: Number of public images, which nothing protects.
        delta: Where the proven epsilon is stated.
        version: Of the package that made the release.
        license: Of the release, as its maker states it; None = unknown.
        data_license: Of the private images, likewise.
    """

    data: str
    method: str
    num_private: int
    num_public: int
    delta: float
    version: str
    license: str | None = None
    data_license: str | None = None


@dataclass(frozen=True)
class Subject:
    """What a card is about, as described by an `Artifact`.

    Attributes:
        title: Heading; escaped by the card.
        heading: Of the section about it, such as "The generator".
        section: Markdown: what it is, its files, how to load it. Names in it have gone through `plain`.
        covered: What the guarantee covers, where one is proven.
        unprotected: What must not be handed on, where nothing is proven.
        head: Entries of the YAML head beside license and tags.
        verified: Whether `idpgan verify` applies.
        records: What N counts.
        public: What is taken as public beside the report's assumptions; Markdown.
        several: Completes "a person who": what the unit does not cover.
    """

    title: str
    heading: str
    section: str
    covered: str
    unprotected: str
    head: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    picture: str | None = None
    verified: bool = True
    records: str = "private images"
    public: tuple[str, ...] = ()
    several: str = "appears in several images"


def render_card(report: PrivacyReport, facts: CardFacts, subject: Subject) -> str:
    """Return the text of a card. Names are escaped: they can neither draw, nor link, nor add an entry to the head."""
    return _template().render(
        report=report,
        facts=facts,
        subject=subject,
        head=_head(report, facts, subject),
        epsilon=_epsilon,
        neighbors=_neighbors(report.proven, subject.records),
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("idpgan.release"),
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = plain
    return environment.get_template("README.md")


def plain(text: Any) -> str:
    """Return a text that Markdown and HTML show as it is."""
    shown = "".join(_HTML.get(sign, sign) for sign in str(text))
    return _MARKDOWN.sub(r"\\\1", shown).replace("://", ":&#47;&#47;")


def shown_shape(shape: tuple[int, int, int]) -> str:
    """Return an image shape in words."""
    return f"{shape[1]} x {shape[2]} pixels, {'grey' if shape[0] == 1 else 'RGB'}"


def _head(report: PrivacyReport, facts: CardFacts, subject: Subject) -> str:
    """Return the lines of the YAML head; the license is the publisher's to state."""
    tags = ["differential-privacy" if report.private else "not-private", facts.method, *subject.tags]
    entries = {"license": facts.license or "unknown", **subject.head, "tags": tags}
    return "\n".join(f"{key}: {_yaml(value)}" for key, value in entries.items())


def _yaml(value: Any) -> str:
    """Return a value in YAML's flow style, on one line: JSON, with all but printable ASCII escaped as in YAML."""
    signs = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return "".join(sign if sign.isascii() and sign.isprintable() else _escaped(ord(sign)) for sign in signs)


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _epsilon(guarantee: Guarantee | None, missing: str) -> str:
    """Format one of the three numbers with its delta, unit and relation."""
    if guarantee is None:
        return missing
    epsilon = f"{guarantee.epsilon:.4g}" if guarantee.finite else "**infinite**"
    delta = f", delta = {guarantee.delta:.3g}" if guarantee.delta else ""
    return f"epsilon = {epsilon}{delta}; unit: {guarantee.unit}; {guarantee.relation} ({plain(guarantee.basis)})"


def _neighbors(proven: Guarantee, records: str) -> str:
    """Say in one sentence what the guarantee compares."""
    record = _RECORDS.get(proven.unit, f"one {proven.unit}")
    if proven.relation is Relation.ZERO_OUT:
        return (
            f"The number N of {records} is public, and two neighboring data sets of N {records} differ in one "
            f"record ({record}), which is replaced by the null record in one of them: it contributes nothing to "
            "anything that is computed."
        )
    return (
        f"Two neighboring data sets have the same number of {records} and differ in the content of one record "
        f"({record})."
    )
