"""Every default that a release leaves out, as it was when the key was added: a missing key means this value for ever.

``python -m tests.release.test_defaults`` adds the keys that are new to defaults.json; it changes nothing there.
"""

import json
import typing
from pathlib import Path

import pytest
from pydantic_core import to_jsonable_python

from idpgan.config import Section
from idpgan.methods import EARLIER, load, methods_of
from idpgan.publish.plan import load_publisher
from idpgan.training.config import RunConfig

FROZEN = Path(__file__).with_name("defaults.json")


def sections_in(annotation):
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Section) else []
    return [section for item in typing.get_args(annotation) for section in sections_in(item)]


def default_of(field):
    value = field.get_default(call_default_factory=True)
    return value.to_json() if isinstance(value, Section) else to_jsonable_python(value)


def defaults_of(section, path, seen=()):
    """Yield the dotted name and the default of every key that has one; of a section, what differs from its own.

    A dropped key is still read at its default.
    """
    for key, default in section.DROPPED.items():
        yield from flat(f"{path}.{key}", default)
    for key, field in section.model_fields.items():
        if not field.is_required():
            yield f"{path}.{key}", default_of(field)
        for inner in sections_in(field.annotation):
            if inner not in seen:
                yield from defaults_of(inner, f"{path}.{key}", (*seen, inner))


def flat(path, default):
    """Yield the keys of a dropped key, which may have been a section, or a list of keys that are left out if None."""
    if not isinstance(default, dict):
        yield path, default
        return
    yield path, {}
    for key, value in default.items():
        yield f"{path}.{key}", value


def all_defaults():
    """The sections that methods share stand under "run", those of their own under the method's name."""
    found = dict(defaults_of(RunConfig, "run"))
    shared = {key: field.annotation for key, field in RunConfig.model_fields.items()}
    for name in (*methods_of("generator", "classifier"), *EARLIER):
        config = load(name).Settings
        for key, field in config.model_fields.items():
            if not field.is_required():
                found[f"{name}.{key}"] = default_of(field)
            if field.annotation is not shared[key]:
                for inner in sections_in(field.annotation):
                    found |= dict(defaults_of(inner, f"{name}.{key}", (inner,)))
    for name in methods_of("publisher", "obfuscator"):
        found |= dict(defaults_of(load_publisher(name).options, f"publish {name}"))
    return found


def changes():
    frozen, found = json.loads(FROZEN.read_text()), all_defaults()
    return {
        key: (frozen.get(key, "is new: add it"), found.get(key, "is gone, and old releases have it"))
        for key in {**frozen, **found}
        if key not in frozen or key not in found or frozen[key] != found[key]
    }


def test_no_default_is_another_one():
    """A key that has its default is not in a release. What to do instead: see `Section.to_json`."""
    assert changes() == {}


def test_the_table_is_no_empty_one():
    frozen = json.loads(FROZEN.read_text())
    assert frozen["run.data.holdout_share"] == 0.1
    assert frozen["gaussian.method.contrast"] == 0.35
    assert frozen["publish lap.law"] == "laplace"
    assert {key.split(".")[0] for key in frozen} >= {"run", *methods_of("generator", "classifier")}


@pytest.mark.parametrize("change", ["other", "more", "fewer"])
def test_a_changed_default_is_noticed(monkeypatch, tmp_path, change):
    table = json.loads(FROZEN.read_text())
    if change == "other":
        table["run.model.warp"] = 0.4
    elif change == "more":
        del table["run.model.warp"]
    else:
        table["run.model.wrap"] = 0.3
    path = tmp_path / "defaults.json"
    path.write_text(json.dumps(table))
    monkeypatch.setattr(f"{__name__}.FROZEN", path)
    assert len(changes()) == 1


if __name__ == "__main__":
    kept = json.loads(FROZEN.read_text()) if FROZEN.exists() else {}
    FROZEN.write_text(json.dumps(all_defaults() | kept, indent=0, sort_keys=True) + "\n")
