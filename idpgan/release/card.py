"""The card, README.md: what is given away, what its epsilon covers and what it does not, how to load it.

All its sentences are in ``templates/README.md``, but for the report's own. Its head is YAML as the Hugging Face Hub
reads it.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

import jinja2

from idpgan.own_code import is_own_code
from idpgan.privacy.guarantee import Guarantee, Unit
from idpgan.release.statement import Statement

RECORDS = {
    Unit.IMAGE: "one image with its label",
    Unit.PERSON: "all images of one person",
    Unit.PHOTO: "all images cut out of one photo",
    Unit.COLUMN: "one column of one image",
    Unit.PIXEL: "one pixel of one image",
    Unit.EVENT: "one event, which adds at most 1 to one value",
}
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "#": "&#35;"}


def render_card(statement: Statement, settings: Any, card: str, made: Any) -> str:
    """Return the text of a card. Names are escaped: they can neither draw, nor link, nor add an entry to the head.

    Args:
        statement: The content of privacy.json.
        settings: An `idpgan.release.statement.Settings`: names of data and method, and licenses.
        card: That of the artifact, or "samples" for images that a generator drew.
        made: The artifact, without its content; of samples, what the card says of them.
    """
    report = statement.report
    record = RECORDS.get(report.proven.unit, f"one {report.proven.unit}")
    given = {"statement": statement, "report": report, "settings": settings, "card": card, "made": made}
    return _template().render(given, record=record)


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
    environment.filters |= {
        "plain": plain,
        "yaml": _yaml,
        "epsilon": _epsilon,
        "shape": _shape,
        "conditions": _conditions,
    }
    environment.tests["own_code"] = is_own_code
    return environment.get_template("README.md")


def plain(text: Any) -> str:
    """Return a text that Markdown and HTML show as it is."""
    shown = "".join(_HTML.get(sign, sign) for sign in str(text))
    return _MARKDOWN.sub(r"\\\1", shown).replace("://", ":&#47;&#47;")


def _shape(shape: Sequence[int]) -> str:
    return f"{shape[1]} x {shape[2]} pixels, {'grey' if shape[0] == 1 else 'RGB'}"


def _conditions(classes: Sequence[str]) -> str:
    names = ", ".join(map(plain, classes))
    return f"conditional on {len(classes)} classes: {names}" if classes else "unconditional"


def _yaml(value: Any) -> str:
    """Return a value in YAML's flow style, on one line: JSON, with all but printable ASCII escaped as in YAML."""
    return "".join(
        sign
        if sign.isascii() and sign.isprintable()
        else f"\\u{ord(sign):04x}"
        if ord(sign) <= 0xFFFF
        else f"\\U{ord(sign):08x}"
        for sign in json.dumps(value, ensure_ascii=False, allow_nan=False)
    )


def _epsilon(guarantee: Guarantee | None, missing: str = "") -> str:
    """Format one of the three numbers with its delta, unit and relation."""
    if guarantee is None:
        return missing
    epsilon = f"{guarantee.epsilon:.4g}" if guarantee.finite else "**infinite**"
    delta = f", delta = {guarantee.delta:.3g}" if guarantee.delta else ""
    return f"epsilon = {epsilon}{delta}; unit: {guarantee.unit}; {guarantee.relation} ({plain(guarantee.basis)})"
