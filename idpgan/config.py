"""Strict configuration: TOML tables become frozen, checked sections, and every refusal is one clear line.

A value has the type that its key asks for, or it is refused: ``true`` and ``"100"`` are not numbers, and ``1.0`` is
not an integer. There are two exceptions, which can only mean one thing: a whole number for a number (``1`` for
``1.0``), and texts and lists for types that TOML lacks (paths, tuples, names of choices). Nothing heavy is imported
here but pydantic.
"""

from __future__ import annotations

import codecs
import copy
import difflib
import enum
import hashlib
import json
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import pydantic
import tomli_w
from pydantic_core import ErrorDetails

from idpgan.errors import ConfigError
from idpgan.removed import gone

T = TypeVar("T", bound=pydantic.BaseModel)

_CONFIGS = resources.files("idpgan") / "configs"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MEMBER = re.compile(r"<\w+\.\w+: ('[^']*')>")  # an enum member as Python prints it
MOST_CHARACTERS = 1 << 20  # most characters of a config file; the longest of ours has 2,000
MOST_DEPTH = 8  # most levels of nested tables and lists
_WANTED = {  # pydantic's name of a finding -> what the key wants, in the words of TOML
    "int_type": "it must be an integer, like 100, without quotes and without a decimal point",
    "float_type": "it must be a number, like 0.5, without quotes",
    "bool_type": "it must be true or false, without quotes",
    "string_type": "it must be a text in quotes",
    "tuple_type": "it must be a list, like [1, 2]",
    "path_type": "it must be a text in quotes",
}


class Section(pydantic.BaseModel):
    """Base of every config section: frozen, strict types, no unknown keys, defaults checked too, no NaN, no infinity.

    A key that may be infinite says so itself: ``Annotated[float, pydantic.Field(allow_inf_nan=True)]``.
    """

    DROPPED: ClassVar[Mapping[str, Any]] = {}  # keys of earlier versions: a table is read if they have these defaults

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _read_toml(cls, table: Any) -> Any:
        """Convert texts and lists for keys of a type that TOML lacks, and leave out dropped keys at their default."""
        if not isinstance(table, Mapping):
            return table
        for key in cls.DROPPED.keys() & table.keys():
            given, default = table[key], cls.DROPPED[key]
            if given != default and not (isinstance(given, Mapping) and given.items() <= default.items()):
                raise ConfigError(
                    gone(f"method.{key}")
                    or gone(f"training.{key}")
                    or f"{key} = {_shown(given)} was a setting of an earlier version, and this one knows only "
                    f"{_shown(default)}. Leave it out."
                )
        fields = cls.model_fields
        return {
            key: _from_toml(key, value, fields[key].annotation) if key in fields else value
            for key, value in table.items()
            if key not in cls.DROPPED
        }

    def to_json(self) -> dict[str, Any]:
        """Return the keys that differ from their defaults, as JSON values: `build` makes an equal section of them.

        The content of a release and the identity of a run are made of this, so a key that is added later changes
        neither while it has its default. Hence a default is part of the release format and stays: a missing key has the
        default that it had when the key was added. To change a default, give the key a new name, or raise
        `idpgan.release.statement.FORMAT` and put the old default in where the earlier format is read.
        tests/release/test_defaults.py holds all defaults and refuses another one.
        """
        written, table = self.model_dump(mode="json"), {}
        for key, field in type(self).model_fields.items():
            value = getattr(self, key)
            if value != field.get_default(call_default_factory=True):
                table[key] = _without_defaults(value, written[key])
        return table


@dataclass(frozen=True)
class Key:
    """One key of a section that `section` makes.

    Attributes:
        kind: Its type.
        default: ``...`` where there is none.
        doc: What it means, as the docs site shows it.
        limits: As of `pydantic.Field`.
        hint: What a message says where it is missing.
    """

    kind: Any
    default: Any
    doc: str
    limits: Mapping[str, Any]
    hint: str = ""

    @property
    def field(self) -> tuple[Any, Any]:
        """The key as pydantic takes it."""
        extra: Any = {"hint": self.hint}
        return self.kind, pydantic.Field(self.default, description=self.doc, json_schema_extra=extra, **self.limits)


Keys = Mapping[str, Any]
"""Keys by name: a `Key`, or another default of a key that is there already."""


def key(kind: Any, default: Any, doc: str, *, hint: str = "", **limits: Any) -> Key:
    """Return a `Key`."""
    return Key(kind, default, doc, limits, hint)


def section(
    base: type[Section],
    *keys: Keys,
    checks: Iterable[Callable[[Any], None]] = (),
    dropped: Mapping[str, Any] | None = None,
) -> Any:
    """Return the class of a section that has the keys of ``base`` and further ones, or other defaults.

    Args:
        keys: Those of later ones in the place of earlier ones.
        checks: Raise a `ConfigError` where values do not fit together; called in their order.
        dropped: See `Section.DROPPED`.
    """
    made: dict[str, Any] = {}
    for name, value in (item for part in keys for item in part.items()):
        if isinstance(value, Key):
            made[name] = value
        elif name in made:
            made[name] = replace(made[name], default=value)
        else:
            made[name] = value
    fields: Any = {name: _field(base, name, value) for name, value in made.items()}
    validators: Any = {f"check_{number}": _validator(check) for number, check in enumerate(checks)}
    result: Any = pydantic.create_model(base.__name__, __base__=base, __validators__=validators, **fields)
    result.DROPPED = base.DROPPED if dropped is None else dropped
    return result


def _field(base: type[Section], name: str, value: Any) -> tuple[Any, Any]:
    """Return a key as pydantic takes it; any other value is another default of the base's key of that name."""
    if isinstance(value, Key):
        return value.field
    field = base.model_fields[name]
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return kind, value


def _validator(check: Callable[[Any], None]) -> Any:
    def checked(self: Any) -> Any:
        check(self)
        return self

    return pydantic.model_validator(mode="after")(checked)


def _without_defaults(value: Any, written: Any) -> Any:
    """Return a value as it is written, but for the defaults of the sections in it."""
    if isinstance(value, Section):
        return value.to_json()
    if isinstance(value, tuple):
        return [_without_defaults(*pair) for pair in zip(value, written, strict=True)]
    return written


def _from_toml(key: str, value: Any, annotation: Any) -> Any:
    """Return a value as its key's annotation wants it, if TOML lacks that type; else as it is."""
    if isinstance(value, str | Path) and any("\ud800" <= character <= "\udfff" for character in str(value)):
        raise ConfigError(f"{key} = {str(value)!a} is not text that can be written as UTF-8. Rename what it names.")
    kinds = _kinds(annotation)
    for kind in kinds:
        if kind is Path and isinstance(value, str):
            if not value or "\0" in value:
                raise ConfigError(f"{key} = {value!a} is the name of no file or folder. Leave it out, or name one.")
            return Path(value)
        if typing.get_origin(kind) is tuple and isinstance(value, list):
            return tuple(value)
        if isinstance(kind, enum.EnumType) and value is not None:  # an enum member equals its text
            if value not in kind.__members__.values():
                raise ConfigError(f"{key} = {_shown(value)} is none of {', '.join(kind.__members__.values())}.")
            return kind(value)
        if typing.get_origin(kind) is not typing.Literal or type(value) in kinds:
            continue
        if isinstance(value, bool | float):  # Python: True == 1.0 == 1
            raise ConfigError(f"{key} = {value} is none of {', '.join(map(repr, typing.get_args(kind)))}.")
    return value


def _kinds(annotation: Any) -> list[Any]:
    """Return the members of a union or an annotated type."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _kinds(inner[0])
    if origin in (typing.Union, types.UnionType):
        return [kind for item in inner for kind in _kinds(item)]
    return [annotation]


def nearest_hint(word: str, known: Iterable[str], in_words: str | None = None) -> str:
    """Return the sentence that helps after an unknown `word`: the nearest known one, else all of them, ``in_words``."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"Known: {in_words or ', '.join(names) or 'none'}."


def config_names() -> list[str]:
    """Return the names of the configs that the package brings along, without ``.toml``."""
    return sorted(file.name.removesuffix(".toml") for file in _CONFIGS.iterdir() if file.name.endswith(".toml"))


def packaged(name: str) -> str:
    """Return the text of one of the package's configs."""
    return (_CONFIGS / f"{name}.toml").read_text(encoding="utf-8")


def load_table(path: Path | None) -> dict[str, Any]:
    """Read a TOML file into nested dictionaries.

    Args:
        path: The file; or, where there is none, one of `config_names`. None is the name "default".

    Raises:
        ConfigError: If the file cannot be read, or is not valid TOML (with line and column).
    """
    source: Path | Traversable = _CONFIGS / ("default.toml" if path is None else f"{path.stem}.toml")
    if path is not None and (path.exists() or path.name != str(path) or path.stem not in config_names()):
        source = path  # an existing file, or else the package's config of that name
    try:
        with source.open("rb") as file:
            text = text_of(file.read(4 * MOST_CHARACTERS + 4))
    except UnicodeDecodeError as error:
        raise ConfigError(f"The config file {source} is not UTF-8 text: {error}.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        close = difflib.get_close_matches(path.stem if path else "", config_names(), n=1)
        hint = f" The package has one called {close[0]}." if close else ""
        if path and (went := gone(f"config {path.stem}")):
            raise ConfigError(went) from error
        raise ConfigError(f"Cannot read the config file {source}: {reason}.{hint}") from error
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"The config file {source} has more than {MOST_CHARACTERS:,} characters: is it a config?")
    return _parsed(text, f"The config file {source}")


def text_of(content: bytes) -> str:
    """Return a text that people's programs have written: UTF-8, or UTF-16 with its mark, as ``>`` of PowerShell writes.

    Raises:
        UnicodeDecodeError: If it is neither.
    """
    marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if marked else "utf-8-sig")


def _parsed(text: str, what: str) -> dict[str, Any]:
    """Read TOML, or say in one line why `what` cannot be read."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(what) from None
    except ValueError as error:  # TOMLDecodeError, and a whole number of more than 4,300 digits
        raise ConfigError(f"{what} is not valid TOML: {error}.") from error
    if _is_deeper(table, MOST_DEPTH):
        raise _too_deep(what)
    return table


def _is_deeper(value: Any, levels: int) -> bool:
    """Tell whether tables and lists are nested more than so many levels deep."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is not None and (levels == 0 or any(_is_deeper(item, levels - 1) for item in inner))


def _too_deep(what: str) -> ConfigError:
    return ConfigError(f"{what} has tables or lists more than {MOST_DEPTH} levels deep, which no setting has.")


SETTINGS = "the command line"  # where settings stand, in messages


def apply_overrides(table: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `table` with settings of the form ``section.key=value`` put in, the last one winning.

    The value is read as TOML. A value that is not TOML is taken as text, so ``data.name=mnist`` needs no quotes.

    Raises:
        ConfigError: If a setting has no ``=``, an impossible key, no value, an opened quote or bracket that does not
            close, or goes below a key that is not a section.

    Example:
        >>> apply_overrides({"training": {"steps": 5}}, ["training.steps=100", "data.name=mnist"])
        {'training': {'steps': 100}, 'data': {'name': 'mnist'}}
    """
    result: dict[str, Any] = copy.deepcopy(dict(table))
    for override in overrides:
        key, equals, text = override.partition("=")
        path = [part.strip() for part in key.split(".")]
        if not equals or not all(_BARE_KEY.fullmatch(part) for part in path):
            raise ConfigError(
                f"Cannot read the setting '{override}': write section.key=value, like training.steps=100."
            )
        if len(path) > MOST_DEPTH:
            raise _too_deep(f"The setting '{key[:80]}'")
        section = result
        for depth, part in enumerate(path[:-1], start=1):
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise ConfigError(f"Cannot set '{key}': '{'.'.join(path[:depth])}' is a value, not a section.")
        section[path[-1]] = _override_value(override, text.strip())
    return result


def _override_value(override: str, text: str) -> Any:
    if not text:
        raise ConfigError(f"The setting '{override}' has no value; write =\"\" for an empty text.")
    try:
        parsed = _parsed(f"value = {text}", f"The value of '{override[:80]}'")
    except ConfigError as error:
        if text[0] in "\"'[{" or not isinstance(error.__cause__, tomllib.TOMLDecodeError):
            raise
        return text
    return parsed["value"] if len(parsed) == 1 else text  # a line break in the text must not smuggle in other keys


def build(cls: type[T], table: Mapping[str, Any], where: str, settings: Sequence[str] = ()) -> T:
    """Build a section from its table; a wrong key or value is an error, never ignored and never corrected.

    Args:
        where: Names the table in messages, for example ``"[data] of run.toml"``.
        settings: The overrides that `apply_overrides` put into the table: they are blamed, and not ``where``.

    Raises:
        ConfigError: One line with every unknown key (and the nearest known one), missing key and refused value.
    """
    try:
        return cls.model_validate(table)
    except pydantic.ValidationError as error:
        keys = [override.partition("=")[0].replace(" ", "") for override in settings]
        problems = [
            _explain(cls, details, _blamed(details, where, keys)) for details in error.errors(include_url=False)
        ]
        raise ConfigError(" ".join(problems)) from error


def _blamed(details: ErrorDetails, where: str, keys: Sequence[str]) -> str:
    """Name what a refused key or section comes from: the table, the settings beside it, or both."""
    key = ".".join(str(part) for part in details["loc"])
    if any(f"{key}.".startswith(f"{given}.") for given in keys):
        return SETTINGS
    if any(given.startswith(f"{key}.") or not key for given in keys):
        return SETTINGS if details["type"] == "extra_forbidden" else f"{where} with {SETTINGS}"
    return where


def _explain(cls: type[pydantic.BaseModel], details: ErrorDetails, where: str) -> str:
    """Turn one finding of pydantic into one sentence that names key, value and limit."""
    *parents, last = details["loc"] or ("",)
    key = ".".join(str(part) for part in details["loc"])
    if details["type"] == "extra_forbidden":
        if went := gone(key):
            return f"In {where}: {went}"
        return f"Unknown key '{key}' in {where}. {nearest_hint(str(last), _section_of(cls, parents).model_fields)}"
    if details["type"] == "missing":
        field = _section_of(cls, parents).model_fields.get(str(last))
        extra = field.json_schema_extra if field else None
        hint = f" {extra['hint']}" if isinstance(extra, Mapping) and extra.get("hint") else ""
        return f"Missing key '{key}' in {where}: it has no default.{hint}"
    if details["type"] == "model_type":
        return f"{key or where} must be a section with keys, got {_shown(details['input'])}."
    own_error = details.get("ctx", {}).get("error")  # raised by a validator of ours, a full sentence already
    if own_error is not None and (not key or isinstance(details["input"], Mapping)):
        return f"In {f'[{key}] of ' * bool(key)}{where}: {own_error}"
    kind = "path_type" if details.get("ctx", {}).get("class") == "Path" else details["type"]
    reason = str(own_error or _WANTED.get(kind) or _MEMBER.sub(r"\1", details["msg"])).removesuffix(".")
    return f"{key} = {_shown(details['input'])} in {where} is refused: {reason[:1].lower()}{reason[1:]}."


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _section_of(cls: type[pydantic.BaseModel], parents: Sequence[int | str]) -> type[pydantic.BaseModel]:
    """Return the section that `parents` leads to, starting from `cls`."""
    for parent in parents:
        field = cls.model_fields.get(str(parent))
        candidates = (field.annotation, *typing.get_args(field.annotation)) if field else ()
        inner = [item for item in candidates if isinstance(item, type) and issubclass(item, pydantic.BaseModel)]
        if inner:  # other parts of the path are positions in a list or names of a union's branches
            cls = inner[0]
    return cls


def dump_toml(model: pydantic.BaseModel | Mapping[str, pydantic.BaseModel]) -> str:
    """Write a section, or several under their names, as TOML that `build` reads back to an equal one.

    TOML has no null: a key that is None is left out, which is why its default must be None.

    Raises:
        ConfigError: If the text does not read back to the same section, as with a None against the default.
    """
    if isinstance(model, Mapping):
        return tomli_w.dumps({name: _table(section) for name, section in model.items()})
    return tomli_w.dumps(_table(model))


def digest(section: Section) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of `Section.to_json`: equal sections, equal digests."""
    return hashlib.sha256(json.dumps(section.to_json(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _table(section: pydantic.BaseModel) -> dict[str, Any]:
    """Return the section as TOML values; refuse one that TOML would change."""
    table = section.model_dump(mode="json", exclude_none=True)
    if build(type(section), table, type(section).__name__) != section:
        raise ConfigError(f"TOML cannot say None, so this section cannot be written: {_shown(section)}.")
    return table
