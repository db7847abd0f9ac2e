"""The page of all config keys, from the config classes: ``python -m idpgan.commands.keys`` prints it.

Types, limits and defaults are those of pydantic's JSON schema; the docstring of each section says what its keys mean.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from idpgan.config import Section
from idpgan.data.declared import shown
from idpgan.methods import load, methods_of
from idpgan.training.config import RunConfig

_OWN = ("method", "privacy")  # sections that differ between methods
_TYPES = {"boolean": "true or false", "integer": "integer", "number": "number", "string": "text"}
_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
_HEAD = """# Every key of a config

Made from the code; `python -m idpgan.commands.keys` prints it. A config is a TOML file, as `idpgan init` prints it; a
key that is left out has the default ("none": a value that only leaving it out gives), and an unknown one is refused.
Any key can be set on the command line: `idpgan train config.toml training.steps=100`.
`[data]`, `[model]`, `[training]` and `[release]` are the same for all methods, but for keys that stand with a method
once more; `[method]` and `[privacy]` are the method's own, which `method.name` chooses.
"""


def render() -> str:
    """Return the page.

    Raises:
        LookupError: If a key is not described in the docstring of its class, or a described one is not there.
    """
    sections = [name for name in RunConfig.model_fields if name != "contained"]  # which `idpgan train` writes
    common = {name: _rows(name, RunConfig.model_fields[name].annotation) for name in sections}
    parts = [_HEAD, *(_table(f"## [{name}]", rows) for name, rows in common.items() if name not in _OWN)]
    for method in methods_of("generator", "classifier"):
        parts.append(f"## {method}\n")
        for name in sections:
            rows = _rows(name, load(method).Config.model_fields[name].annotation)
            rows = [row for row in rows if name in _OWN or row not in common[name]]
            parts += [_table(f"### [{name}] of {method}", rows)] if rows else []
    return "\n".join(parts)


def described(section: type[Section]) -> dict[str, str]:
    """Return what the docstrings of a section and its bases say of its keys; `LookupError` as `render`."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if issubclass(base, Section):
            _, _, rest = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
            body = re.split(r"\n(?=\S)", rest, maxsplit=1)[0]
            items = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", body, flags=re.MULTILINE)
            found |= {key: " ".join(text.split()) for key, text in items}
    keys = set(section.model_fields)
    missing, unknown = sorted(keys - set(found)), sorted(set(found) - keys)
    if missing or unknown:
        raise LookupError(f"{section.__qualname__}: not described {missing}, described but not there {unknown}")
    return {key: found[key] for key in section.model_fields}


def _table(title: str, rows: Sequence[str]) -> str:
    return "\n".join([f"{title}\n", "| key | type | default | what it is |", "|---|---|---|---|", *rows, ""])


def _rows(path: str, section: Any) -> list[str]:
    """Return a row for each key of a section; for a section inside it the text says whose keys it has."""
    schema, rows = section.model_json_schema(), []
    sections = schema.get("$defs", {})
    keys = schema if "properties" in schema else sections[section.__name__]  # the latter where it refers to itself
    for key, text in described(section).items():
        of_key = keys["properties"][key]
        value = of_key.get("default")
        default = "none" if value is None else "its own defaults" if isinstance(value, dict) else f"`{shown(value)}`"
        default = "must be given" if key in keys.get("required", ()) else default
        cells = (f"`{path}.{key}`", _values(of_key, sections), default, text.replace("``", "`"))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def _values(schema: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """Return in words which values a schema admits, and their limits."""
    if "$ref" in schema:
        return _values(sections[schema["$ref"].rpartition("/")[2]], sections)
    if "anyOf" in schema:
        kinds = [kind for kind in schema["anyOf"] if kind.get("type") != "null"]
        return " or ".join(dict.fromkeys(_values(kind, sections) for kind in kinds))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{shown(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if "properties" in schema:
        return "section"
    if schema["type"] == "object":
        return f"table of {_values(schema['additionalProperties'], sections)}"
    if "prefixItems" in schema:
        return f"[{', '.join(_values(item, sections) for item in schema['prefixItems'])}]"
    if schema["type"] == "array":
        return f"list of {_values(schema['items'], sections)}"
    limits = [
        f"{sign} {schema[name]:,}" if isinstance(schema[name], int) else f"{sign} {schema[name]:g}"
        for name, sign in _LIMITS.items()
        if name in schema
    ]
    return ", ".join(["path" if schema.get("format") == "path" else _TYPES[schema["type"]], *limits])


if __name__ == "__main__":
    print(render(), end="")
