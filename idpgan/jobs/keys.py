"""The page of all config keys, docs/keys.md, from the config classes: ``python -m idpgan.jobs.keys > docs/keys.md``."""

from __future__ import annotations

import enum
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic_core import PydanticUndefined

from idpgan.config import Section
from idpgan.data.declared import shown
from idpgan.synthesis import METHODS
from idpgan.training.config import RunConfig, load_method

_KINDS = {bool: "true or false", int: "integer", float: "number", str: "text", Path: "path"}
_LIMITS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_HEAD = """# Every key of a config

Made from the code by `python -m idpgan.jobs.keys > docs/keys.md`; a test compares. A config is a TOML file, as
`idpgan init` prints it; a key that is left out has the default ("none": a value that only leaving it out gives), and an
unknown one is refused. Any key can be set on the command line: `idpgan train config.toml training.steps=100`. `[data]`,
`[model]`, `[training]` and `[release]` are the same for all methods; `[method]` and `[privacy]` are the method's own,
which `method.name` chooses.
"""


def render() -> str:
    """Return the page.

    Raises:
        LookupError: If a key is not described in the docstring of its class, or a described one is not there.
    """
    parts = [_HEAD]
    common = [name for name in RunConfig.model_fields if name not in ("method", "privacy", "contained")]
    for name in common:
        parts += _section(f"## [{name}]", name, section_of(RunConfig, name))
    for method in METHODS:
        config = load_method(method).Config
        parts.append(f"## {method}\n")
        for name in ("method", "privacy"):
            parts += _section(f"### [{name}] of {method}", name, section_of(config, name))
    return "\n".join(parts)


def section_of(config: type[pydantic.BaseModel], name: str) -> type[Section]:
    """Return the class of a section."""
    kind = config.model_fields[name].annotation
    if not (isinstance(kind, type) and issubclass(kind, Section)):
        raise LookupError(f"{config.__name__}.{name} is no section")
    return kind


def described(section: type[Section]) -> dict[str, str]:
    """Return what the docstrings of a section and its bases say of its keys; `LookupError` as `render`."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if issubclass(base, Section) and base.__doc__:
            found |= _attributes(inspect.cleandoc(base.__doc__))
    keys = set(section.model_fields)
    missing, unknown = sorted(keys - set(found)), sorted(set(found) - keys)
    if missing or unknown:
        raise LookupError(f"{section.__qualname__}: not described {missing}, described but not there {unknown}")
    return {key: found[key] for key in section.model_fields}


def _attributes(docstring: str) -> dict[str, str]:
    _, _, rest = docstring.partition("Attributes:\n")
    body = re.split(r"\n(?=\S)", rest, maxsplit=1)[0]
    items = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", body, flags=re.MULTILINE)
    return {key: " ".join(text.split()) for key, text in items}


def _section(title: str, path: str, section: type[Section]) -> Iterator[str]:
    """Yield the table of a section; of a section inside it the text says whose keys it has."""
    yield f"{title}\n\n| key | type | default | what it is |\n|---|---|---|---|"
    for key, text in described(section).items():
        field = section.model_fields[key]
        cells = (f"`{path}.{key}`", _kind(field), _default(field), text.replace("``", "`"))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _default(field: Any) -> str:
    """Say what a key is when it is left out."""
    if field.is_required():
        return "must be given"
    value = field.default if field.default is not PydanticUndefined else field.default_factory()
    if value is None:
        return "none"
    if isinstance(value, Section):
        return "its own defaults"
    return f"`{shown(value.value if isinstance(value, enum.Enum) else value)}`"


def _kind(field: Any) -> str:
    """Say what values a key takes."""
    limits = [
        f"{sign} {value:,}" if isinstance(value, int) else f"{sign} {value:g}"
        for item in _metadata(field)
        for name, sign in _LIMITS.items()
        if (value := getattr(item, name, None)) is not None
    ]
    return ", ".join([_words(field.annotation), *limits])


def _metadata(field: Any) -> list[Any]:
    """Return the limits of a field, those inside its annotation too."""
    items, inside = [], [field.annotation]
    while inside:
        kind = inside.pop()
        if typing.get_origin(kind) is Annotated:
            items += kind.__metadata__
        inside += [item for item in typing.get_args(kind) if not isinstance(item, str)]
    return [*field.metadata, *(part for item in items for part in getattr(item, "metadata", [item]))]


def _words(kind: Any) -> str:
    """Say what an annotation admits."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _words(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(item) for item in inner if item is not type(None)))
    if origin is typing.Literal:
        return ", ".join(f"`{shown(item.value if isinstance(item, enum.Enum) else item)}`" for item in inner)
    if origin is dict:
        return f"table of {_words(inner[1])}"
    if origin is tuple:
        return f"list of {_words(inner[0])}" if inner[1] is Ellipsis else f"[{', '.join(map(_words, inner))}]"
    if isinstance(kind, enum.EnumType):
        return ", ".join(f"`{shown(item.value)}`" for item in kind)  # type: ignore[var-annotated]
    if isinstance(kind, type) and issubclass(kind, Section):
        return "section"
    return _KINDS[kind]


if __name__ == "__main__":
    print(render(), end="")
