"""What a release from somebody else states: its privacy.json and config.json, read as untrusted input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from idpgan.config import Section, build
from idpgan.errors import InputError
from idpgan.files import parse_json, printable, read_plain
from idpgan.models.checkpoint import CONFIG, MOST_TEXT_BYTES
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport, Relation, Unit, parse_relation, parse_unit
from idpgan.privacy.risk import Risk
from idpgan.release.artifact import Artifact, Kind
from idpgan.release.folder import FORMATS
from idpgan.release.mark import DigitalSource
from idpgan.release.settings import Settings

_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")
_MOST_FILES = 200_000
_LONGEST_VERSION = 40  # the card shows the version, and a longer text could say anything there


def _one_line(text: str) -> str:
    if not printable(text):
        raise ValueError("it holds control characters or line breaks")
    return text


def _version(text: str) -> str:
    if len(text) > _LONGEST_VERSION or not _VERSION.fullmatch(text):
        raise ValueError("it is not a version number")
    return text


_Text = Annotated[str, Field(max_length=4000), AfterValidator(_one_line)]
_Number = Annotated[float, Field(ge=0, le=1e308)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Count = Annotated[int, Field(ge=1, le=1 << 40)]


class _Strict(Section):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class _Guarantee(_Strict):
    epsilon: _Number | Literal["inf"]
    delta: _Number
    unit: _Text
    relation: _Text
    basis: _Text


class _Report(_Strict):
    claimed: _Guarantee | None
    proven: _Guarantee
    audited: _Guarantee | None
    reason: _Text
    private: bool
    public_assumptions: Annotated[list[_Text], Field(max_length=500)]
    contained: Annotated[list[_Guarantee], Field(max_length=100)] = Field(default_factory=list)
    total: _Guarantee | None = None


class _Charge(_Strict):
    kind: _Text
    unit: _Text
    relation: _Text
    noise_multiplier: _Number | None = None
    count: _Count
    sample_rate: _Number | None = None
    sensitivity: _Count | None = None
    pure_epsilon: _Number | None = None
    delta: _Number | None = None
    categories: _Count | None = None
    reason: _Text | None = None
    grid: _Number | None = None


class _Risk(_Strict):
    question: _Text
    best_guess: _Share
    found: Annotated[dict[_Text, _Share], Field(max_length=100)]


class _Document(_Strict):
    """privacy.json: types and ranges; `verify` derives what the values have to be."""

    format: _Text
    idpgan: Annotated[str, AfterValidator(_version)]
    report: _Report
    num_private: _Count
    num_public: Annotated[int, Field(ge=0, le=1 << 40)]
    num_classes: Annotated[int, Field(ge=0, le=1 << 20)]
    delta: Annotated[float, Field(ge=0, lt=1)]
    unit: _Text
    relation: _Text
    events: Annotated[list[_Charge], Field(max_length=100_000)]
    mark: DigitalSource | None = None
    risk: _Risk | None = None
    files: Annotated[dict[_Text, _Text], Field(max_length=_MOST_FILES)]


@dataclass(frozen=True)
class Stated:
    """The content of a privacy.json.

    Attributes:
        document: The parsed content of the file, whose bytes are ``content``.
        report: The three numbers.
        events: What is said to have been charged.
        unit: Of the events.
        relation: Of the events.
        risk: What any attack finds at most; None where nothing holds, or an older version wrote the release.
    """

    document: dict[str, Any]
    content: bytes
    report: PrivacyReport
    events: tuple[Event, ...]
    unit: Unit
    relation: Relation
    risk: Risk | None


def read_privacy(path: Path, *, follow: bool = False) -> Stated:
    """Read a privacy.json; ``follow`` says whether it may be a link.

    Raises:
        InputError: In one line, if the file is not a plain one, of another format, or damaged in any way.
    """
    content = read_plain(path, MOST_TEXT_BYTES, follow=follow)
    try:
        document = parse_json(content)
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}). Copy the whole release again.") from error
    found = document.get("format") if isinstance(document, dict) else None
    if found not in FORMATS:
        said = f" but {found!a}" if isinstance(found, str) and len(found) < 40 else ""
        raise InputError(
            f"{path} is not of the format {' or '.join(map(repr, FORMATS))}{said}, so it cannot be verified. Verify it "
            "with the version that made it, or train and release again."
        )
    try:
        build(_Document, document, path.name)
        report = PrivacyReport.from_json(document["report"])
        events = tuple(Event.from_json(item) for item in document["events"])
        unit, relation = parse_unit(document["unit"]), parse_relation(document["relation"])
        risk = None if document.get("risk") is None else Risk.from_json(document["risk"])
    except ValueError as error:  # an InputError, or what a report may not say of itself
        raise InputError(f"{path} cannot be used: {error}") from error
    return Stated(document, content, report, events, unit, relation, risk)


def read_report(stated: Any, where: str) -> PrivacyReport:
    """Return the three numbers of a document that somebody else wrote.

    Raises:
        InputError: If they are damaged in any way.
    """
    build(_Report, stated, where)
    try:
        return PrivacyReport.from_json(stated)
    except ValueError as error:  # an InputError, or what a report may not say of itself
        raise InputError(f"{where} cannot be used: {error}") from error


def describe_release(content: bytes, kinds: Mapping[str, Kind]) -> tuple[Artifact, dict[str, Any], Kind]:
    """Return what a config.json describes, without content, and the whole table; ``kinds`` are the known ones.

    Raises:
        InputError: If it describes nothing of a known kind.
    """
    try:
        document = parse_json(content)
    except ValueError as error:
        raise InputError(f"{CONFIG} does not describe what is given away ({error}).") from error
    name = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(name, str) or name not in kinds:
        raise InputError(f"{CONFIG} does not describe what is given away: its kind is none of {', '.join(kinds)}.")
    return kinds[name].artifact.from_description(document.get(name)), document, kinds[name]


def read_settings(document: Mapping[str, Any], kind: Kind, artifact: Artifact, stated: Stated) -> Settings:
    """Return the settings that a config.json holds.

    Raises:
        InputError: If config.json holds no settings, or settings that could not make such a release.
    """
    table = document.get("settings")
    if not isinstance(table, dict):
        raise InputError(f"{CONFIG} has no settings.")
    return kind.settings(table, artifact.describe(), stated.document)
