"""What a release that somebody handed over says of itself: privacy.json and config.json, read as untrusted input."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from idpgan import synthesis
from idpgan.config import Section, build
from idpgan.data.load import SOURCES
from idpgan.errors import ConfigError, InputError
from idpgan.files import parse_json, printable, read_plain
from idpgan.models.checkpoint import MOST_TEXT_BYTES
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport, Relation, Unit, parse_relation, parse_unit
from idpgan.release.folder import FORMAT
from idpgan.training.config import RunConfig

_PUBLIC_ELSEWHERE = "public"  # stands for data.public_root, which is not released
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")
_LONGEST_VERSION = 40  # it stands in the card, where a longer text could say anything


def _one_line(text: str) -> str:
    if not printable(text):
        raise ValueError("it holds control characters or line breaks")
    return text


def _version(text: str) -> str:
    if len(text) > _LONGEST_VERSION or not _VERSION.fullmatch(text):
        raise ValueError("it is no version number")
    return text


_Text = Annotated[str, Field(max_length=4000), AfterValidator(_one_line)]
_Number = Annotated[float, Field(ge=0, le=1e308)]
_Count = Annotated[int, Field(ge=1, le=1 << 40)]


class _Strict(Section):
    """Takes a value of the very type only."""

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
    public_assumptions: Annotated[list[_Text], Field(max_length=100)]


class _Charge(_Strict):
    kind: _Text
    unit: _Text
    relation: _Text
    noise_multiplier: _Number | None = None
    count: _Count
    sample_rate: _Number | None = None
    sensitivity: _Count | None = None
    pure_epsilon: _Number | None = None
    categories: _Count | None = None
    reason: _Text | None = None


class _Document(_Strict):
    """privacy.json: types and ranges; what the values have to be is for `verify` to derive."""

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
    files: Annotated[dict[_Text, _Text], Field(max_length=100)]


@dataclass(frozen=True)
class Stated:
    """The content of a privacy.json.

    Attributes:
        document: As it stands in the file.
        content: The file, byte by byte.
        report: The three numbers.
        events: What is said to have been charged.
        unit: Of the events.
        relation: Of the events.
    """

    document: dict[str, Any]
    content: bytes
    report: PrivacyReport
    events: tuple[Event, ...]
    unit: Unit
    relation: Relation


def read_privacy(path: Path) -> Stated:
    """Read a privacy.json.

    Raises:
        InputError: In one line, if it is no plain file, of another format, or damaged in any way.
    """
    content = read_plain(path, MOST_TEXT_BYTES)
    try:
        document = parse_json(content)
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}).") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else None
        said = f" but {found!a}" if isinstance(found, str) and len(found) < 40 else ""
        raise InputError(
            f"{path} is not of the format {FORMAT!r}{said}, so it cannot be verified. Earlier versions counted under "
            "another relation: train and release again."
        )
    try:
        build(_Document, document, path.name)
        report = PrivacyReport.from_json(document["report"])
        events = tuple(Event.from_json(item) for item in document["events"])
        unit, relation = parse_unit(document["unit"]), parse_relation(document["relation"])
    except ValueError as error:  # an InputError, or what a report may not say of itself
        raise InputError(f"{path} cannot be used: {error}") from error
    return Stated(document, content, report, events, unit, relation)


def release_config(content: bytes, num_public: int) -> RunConfig:
    """Return the config of the run that a config.json describes.

    Args:
        content: The file.
        num_public: Public images, as stated: where none were taken out of the private ones, they came from a folder
            of their own, whose place is not released.

    Raises:
        InputError: If it describes none, or one that `idpgan train` refuses.
    """
    try:
        document = parse_json(content)
    except ValueError as error:
        raise InputError(f"config.json is damaged ({error}).") from error
    table = document.get("run") if isinstance(document, dict) else None
    if not isinstance(table, dict):
        raise InputError("config.json has no settings of a run.")
    data = table.get("data")
    if not isinstance(data, dict) or {"root", "public_root"} & set(data):
        raise ConfigError("config.json has no [data], or names folders of the machine that the run was trained on.")
    if num_public and not (data.get("public_share") or data.get("public")):
        table = {**table, "data": {**data, "public_root": _PUBLIC_ELSEWHERE}}
    config = synthesis.build_config(table, "config.json")
    if config.data.name not in SOURCES:
        raise ConfigError(f"config.json: data.name = {ascii(config.data.name)[:60]} is no known data set.")
    synthesis.refuse_unsound(config)
    return config
