"""Every key of every section is described in its class or a base of it, which is what the docs site shows."""

import inspect
import re

import pytest
from pydantic import Field

from idpgan.config import Section
from idpgan.methods import load, methods_of
from idpgan.training.config import PrivacyConfig, RunConfig


def sections():
    """Return the sections of all configs, with their names."""
    configs = [RunConfig, *(load(name).Settings for name in methods_of("generator", "classifier"))]
    found = [(name, field.annotation) for config in configs for name, field in config.model_fields.items()]
    return dict.fromkeys((name, section) for name, section in found if name != "contained")  # `idpgan train` writes it


def described(section):
    """Return what a section's descriptions and docstrings say of its keys; `LookupError` where one is missing."""
    found = {}
    for base in reversed(section.__mro__):
        if issubclass(base, Section):
            _, _, rest = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
            body = re.split(r"\n(?=\S)", rest, maxsplit=1)[0]
            items = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", body, flags=re.MULTILINE)
            found |= {key: " ".join(text.split()) for key, text in items}
    found |= {key: field.description for key, field in section.model_fields.items() if field.description}
    if set(found) != set(section.model_fields):
        raise LookupError(f"{section.__qualname__}: {sorted(set(found) ^ set(section.model_fields))}")
    return found


@pytest.mark.parametrize(("name", "section"), sections())
def test_every_key_is_described_and_nothing_else(name, section):
    assert all(described(section).values())


class Described(PrivacyConfig):
    """A section.

    Attributes:
        share: Of everything,
            in two lines.
    """

    share: float = Field(0.5, gt=0, le=1)


class Forgotten(PrivacyConfig):
    """A section whose key nobody describes."""

    share: float = 0.5


class Gone(Described):
    """A section that describes what is not there.

    Attributes:
        chair: Not a key.
    """


def test_a_key_is_described_by_its_class_or_its_base():
    assert described(Described)["share"] == "Of everything, in two lines."


@pytest.mark.parametrize("section", [Forgotten, Gone])
def test_a_key_without_description_and_a_description_without_key_are_errors(section):
    with pytest.raises(LookupError, match=r"share|chair"):
        described(section)


def test_every_method_says_delta_alike_and_what_its_steps_are():
    deltas = [described(section)["delta"] for name, section in sections() if name == "privacy"]
    assert [text for text in deltas if "elow 1/N for N private images" not in text] == []
    assert [text for text in deltas if "1e-5, 1 / (10 N)" not in text] == []
    steps = [described(section)["steps"] for name, section in sections() if name == "training"]
    assert len(set(steps)) > 5
    assert sum("Critic steps" in text for text in steps) == 1
