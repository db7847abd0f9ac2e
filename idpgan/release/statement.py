"""privacy.json: what a release states, as one model that is written, read, and compared by equality.

A field of a release is a field of `Statement`, with its value in `Statement.of`; `idpgan.release.verify` makes the
statement again from the settings, and compares.

Format 6 says nothing twice: an event has the unit and the relation of the release; a guarantee names its own delta,
unit and relation only where they differ; and the number of classes stands there only where the description in
config.json names none. Format 5 differs from 4 by the entries "risk" and "mark", format 4 from 3 in config.json, which
holds no key that has its default (see `idpgan.config.Section.to_json`), and in the entry "idpgan", which names the code
beside the version (see `idpgan.version`).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import CoreSchema, core_schema

from idpgan.config import Section, build
from idpgan.errors import InputError
from idpgan.files import MOST_TEXT_BYTES, json_text, parse_json, printable, read_plain
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import PrivacyReport, Relation, Unit
from idpgan.privacy.plan import Plan
from idpgan.privacy.tradeoff import Risk
from idpgan.release.mark import PICTURE, DigitalSource, Mark, identified_by
from idpgan.release.signature import unsigned
from idpgan.version import made_with

if TYPE_CHECKING:
    from idpgan.training.config import RunConfig

PRIVACY = "privacy.json"
FORMAT = "idpgan release 6"
FORMATS = ("idpgan release 3", "idpgan release 4", "idpgan release 5", FORMAT)  # formats that can be read
WITHOUT_RISK = FORMATS[:2]
_WRITTEN_BY = dict(
    zip(FORMATS, (((0, 1), (0, 1)), ((0, 1), (0, 2)), ((0, 2), (0, 3)), ((0, 4), (math.inf,))), strict=True)
)
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")
_LONGEST_VERSION = 40  # the card shows the version, and a longer text could say anything there
_LONGEST_TEXT = 4000
_GUARANTEES = ("claimed", "proven", "audited", "contained", "total")  # entries of the report
_EARLIER = (
    "format", "idpgan", "report", "num_private", "num_public", "num_classes", "delta", "unit", "relation", "events",
    "risk", "mark", "files",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """The settings from which charges, delta and report of a release follow.

    `idpgan.release.folder.write_release` writes them, and `idpgan.release.verify` derives every number from them again;
    those of a run makes `idpgan.release.settings`.

    Attributes:
        data: Name of the data, one printable line.
        method: Name of the method.
        num_private: N >= 1, the number of private records: public.
        num_public: Number of public images, which nothing protects.
        num_classes: Number of public classes; 0 = no labels.
        num_pixels: Numbers in one record, each of which may have a price of its own.
        table: The settings as written to config.json: JSON values, all of them public.
        plan: The plan, which also makes the report; if it asks for a delta of 1/N or more, its price is refused.
        problems: Maps an artifact's description to its parts that do not follow from the settings, one sentence each.
        run: The config, where a run made the release.
        license: Of the release, as its maker states it; None = unknown.
        data_license: Of the private images, likewise.
        mark: What the mark on the pictures says made them; None = they carry none.
    """

    data: str
    method: str
    num_private: int
    num_public: int
    num_classes: int
    num_pixels: int
    table: Mapping[str, Any]
    plan: Plan
    problems: Callable[[Mapping[str, Any]], list[str]]
    run: RunConfig | None = None
    license: str | None = None
    data_license: str | None = None
    mark: DigitalSource | None = DigitalSource.TRAINED


class _Json:
    """Reads and writes a field by the `from_json` and `to_json` of its type."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda value: value if isinstance(value, source) else source.from_json(value),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value.to_json()),
        )


def _version(text: str) -> str:
    if len(text) > _LONGEST_VERSION or not _VERSION.fullmatch(text):
        raise ValueError("it is not a version number")
    return text


def _as_given(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    check(value)
    return value  # 0 stays 0: an earlier version may have written it so


class Statement(Section):
    """The content of a privacy.json, of any format.

    Attributes:
        format: In which it is written.
        idpgan: The version that made the release.
        num_private: N, the number of private records: public.
        num_public: Number of public images, which nothing protects.
        num_classes: Number of public classes that config.json does not name; before format 6 of all classes.
        unit: Of `proven` and all events; likewise ``relation``.
        delta: At which epsilon is stated.
        report: The three numbers.
        events: What is said to have been charged: with it anyone can compute the proven epsilon again.
        risk: What any attack finds at most; None where nothing holds, or an older version wrote the release.
        mark: What the mark on the pictures says made them; None = they carry none.
        files: SHA-256 (hex) of each other file.
    """

    format: str
    idpgan: Annotated[str, AfterValidator(_version)]
    num_private: int = Field(ge=1, le=1 << 40)
    num_public: int = Field(ge=0, le=1 << 40)
    num_classes: int | None = Field(None, ge=0, le=1 << 20)
    unit: Unit
    relation: Relation
    delta: Annotated[float, Field(ge=0, lt=1), WrapValidator(_as_given)]
    report: Annotated[PrivacyReport, _Json()]
    events: tuple[Annotated[Event, _Json()], ...] = Field(max_length=100_000)
    risk: Annotated[Risk, _Json()] | None = None
    mark: DigitalSource | None = None
    files: dict[str, str] = Field(max_length=200_000)

    @classmethod
    def of(
        cls,
        settings: Settings,
        described: Mapping[str, Any],
        names: Iterable[str],
        report: PrivacyReport,
        events: Sequence[Event],
    ) -> Self:
        """Return what this version states of a release, but for the hashes of its files.

        Args:
            settings: Those of the release.
            described: The artifact's description.
            names: Of the artifact's files.
            report: The three numbers.
            events: All charges.
        """
        return cls(
            format=FORMAT,
            idpgan=made_with(),
            num_private=settings.num_private,
            num_public=settings.num_public,
            num_classes=None if described.get("classes") else settings.num_classes or None,
            unit=report.proven.unit,
            relation=report.proven.relation,
            delta=settings.plan.price.delta,
            report=report,
            events=tuple(events),
            risk=Risk.of(settings.plan.joint_events(events)) if report.private else None,
            mark=settings.mark if any(name.endswith(PICTURE) for name in names) else None,
            files={},
        )

    def mark_by(self, identity: bytes) -> Mark | None:
        """Return the mark on the pictures, by the content of the file that identifies what made them; None = none.

        See `idpgan.release.mark.identified_by`.
        """
        sha256 = hashlib.sha256(identity).hexdigest()
        return None if self.mark is None else Mark(self.mark, self.idpgan, sha256)

    def unmarked(self, files: Mapping[str, bytes]) -> tuple[Mapping[str, bytes], list[str]]:
        """Return the files by name, pictures without the mark; and the names of pictures that do not carry it."""
        mark = self.mark_by(files[identified_by(files)])
        if mark is None:
            return files, []
        bare = {name: mark.off(content) if name.endswith(PICTURE) else content for name, content in files.items()}
        pictures = [name for name in files if name.endswith(PICTURE)]
        return bare, [name for name in pictures if len(bare[name]) == len(unsigned(files[name]))]

    def but(self, **changes: Any) -> Self:
        """Return it with other values of some fields."""
        return self.model_copy(update=changes)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file, in its own format."""
        table = super().to_json()
        if self.format != FORMAT:
            return _as_earlier(table)
        return _with_entries(table, _shortened)

    @property
    def content(self) -> bytes:
        """The file as it is written."""
        return json_text(self.to_json()).encode()


def read_privacy(path: Path, *, follow: bool = False) -> Statement:
    """Read a privacy.json; ``follow`` says whether it may be a link.

    Raises:
        InputError: In one line, if the file is not a plain one, of another format, or damaged in any way.
    """
    return statement_of(read_plain(path, MOST_TEXT_BYTES, follow=follow), path)


def statement_of(content: bytes, path: Path) -> Statement:
    """Return what the content of a privacy.json states; it is untrusted. See `read_privacy`."""
    try:
        table = parse_json(content)
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}). Copy the whole release again.") from error
    stated = table.get("format") if isinstance(table, dict) else None
    if stated not in FORMATS:
        shown = f" but {stated!a}" if isinstance(stated, str) and len(stated) < 40 else ""
        raise InputError(
            f"{path} is not of the format {' or '.join(map(repr, FORMATS))}{shown}, so it cannot be verified. Verify "
            "it with the version that made it, or train and release again."
        )
    try:
        _check_texts(table)
        statement = build(Statement, _with_entries(table, _completed), path.name)
        _check_version(statement)
        return statement
    except ValueError as error:  # InputErrors too
        raise InputError(f"{path} cannot be used: {error}") from error


def _check_version(statement: Statement) -> None:
    """Refuse a format that the named version never wrote: what an earlier format need not say, it had to."""
    first, last = _WRITTEN_BY[statement.format]
    numbers = tuple(map(int, re.findall(r"[0-9]+", statement.idpgan)[:2]))
    if not first <= numbers <= last:
        raise InputError(
            f"idpgan {statement.idpgan} never wrote {statement.format!r}. Ask whoever made the release for the file as "
            "it was written."
        )


def read_report(table: Any, where: str) -> PrivacyReport:
    """Return the three numbers of a document that somebody else wrote.

    Raises:
        InputError: If they are damaged in any way.
    """
    try:
        _check_texts(table)
        return PrivacyReport.from_json(table)
    except ValueError as error:  # an InputError, or what a report may not say of itself
        raise InputError(f"{where} cannot be used: {error}") from error


def _check_texts(table: Any) -> None:
    """Refuse texts in a JSON value that a terminal or a card would not show as they are."""
    values = [table]
    while values:
        value = values.pop()
        values += [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
        if isinstance(value, str) and (len(value) > _LONGEST_TEXT or not printable(value)):
            raise InputError(f"{value[:40]!a} holds control characters or line breaks, or is too long.")


# The layout of the file ------------------------------------------------------------------------------------------

_Entry = dict[str, Any]


def _shortened(entry: _Entry, shared: _Entry) -> _Entry:
    return {key: value for key, value in entry.items() if key not in shared or shared[key] != value}


def _completed(entry: _Entry, shared: _Entry) -> _Entry:
    return {**shared, **entry}


def _with_entries(table: _Entry, change: Callable[[_Entry, _Entry], _Entry]) -> _Entry:
    """Return a table whose guarantees and events are changed, by what they share with it; all else stays as it is."""

    def changed(value: Any, *keys: str) -> Any:
        if isinstance(value, list):
            return [changed(item, *keys) for item in value]
        return change(value, {key: table[key] for key in keys if key in table}) if isinstance(value, dict) else value

    result, report = dict(table), table.get("report")
    if isinstance(report, dict):
        result["report"] = {
            key: changed(value, "delta", "unit", "relation") if key in _GUARANTEES else value
            for key, value in report.items()
        }
    if "events" in table:
        result["events"] = changed(table["events"], "unit", "relation")
    return result


def _as_earlier(table: _Entry) -> _Entry:
    """Return the content of a file in its format 3, 4 or 5, which differ from 6 in layout alone."""
    if table["format"] not in WITHOUT_RISK:
        table.setdefault("risk", None)
    return {key: table[key] for key in _EARLIER if key in table}
