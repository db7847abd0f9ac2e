"""The model card: what a generator or its images are, and what their epsilon does and does not cover."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

import jinja2

from idpgan.privacy.guarantee import Guarantee, PrivacyReport, Relation, Unit

_RECORDS = {Unit.IMAGE: "one image with its label", Unit.PERSON: "all images of one person"}
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "#": "&#35;"}


@dataclass(frozen=True)
class CardFacts:
    """All that a card says besides the report.

    Attributes:
        data: Name of the data set.
        method: Name of the method.
        image_shape: (C, H, W).
        classes: Class names; empty where the generator is unconditional.
        num_private: Declared number of private images.
        num_public: Number of public images, which nothing protects.
        delta: Where the proven epsilon is stated.
        version: Of the package that made the release.
    """

    data: str
    method: str
    image_shape: tuple[int, int, int]
    classes: tuple[str, ...]
    num_private: int
    num_public: int
    delta: float
    version: str


def render_card(report: PrivacyReport, facts: CardFacts, *, num_images: int | None = None) -> str:
    """Return the text of a card.

    Args:
        report: The three numbers.
        facts: What else it says. Its texts are escaped, so that a name can neither draw nor link anything.
        num_images: None for the card of a generator; else the card of that many images drawn from it, which says
            nothing of files and commands that are not there.
    """
    return _template().render(
        report=report, facts=facts, num_images=num_images, epsilon=_epsilon, neighbors=_neighbors(report.proven)
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
    return environment.get_template("MODEL_CARD.md")


def plain(text: Any) -> str:
    """Return a text that Markdown and HTML show as it is."""
    shown = "".join(_HTML.get(sign, sign) for sign in str(text))
    return _MARKDOWN.sub(r"\\\1", shown).replace("://", ":&#47;&#47;")


def _epsilon(guarantee: Guarantee | None, missing: str) -> str:
    """Write one of the three numbers with all that belongs to it."""
    if guarantee is None:
        return missing
    epsilon = f"{guarantee.epsilon:.4g}" if guarantee.finite else "**infinite**"
    delta = f", delta = {guarantee.delta:.3g}" if guarantee.delta else ""
    return f"epsilon = {epsilon}{delta}; unit: {guarantee.unit}; {guarantee.relation} ({plain(guarantee.basis)})"


def _neighbors(proven: Guarantee) -> str:
    """Say in one sentence what the guarantee compares."""
    record = _RECORDS.get(proven.unit, f"one {proven.unit}")
    if proven.relation is Relation.ZERO_OUT:
        return (
            "The number N of private images is public, and two neighboring data sets of N images differ in one "
            f"record ({record}), which is replaced by the null record in one of them: it contributes nothing to "
            "anything that is computed."
        )
    return (
        f"Two neighboring data sets have the same number of images and differ in the content of one record ({record})."
    )
