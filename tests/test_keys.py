"""The page of all keys of a config is made from the code."""

import pytest
from pydantic import Field

from idpgan.commands import keys
from idpgan.training.config import PrivacyConfig, RunConfig


def test_every_key_of_every_section_has_a_row():
    page = keys.render()
    assert "| `training.steps` | integer, >= 1" in page
    assert "## gaussian" in page
    for name in ("data", "model", "training", "release"):
        section = RunConfig.model_fields[name].annotation
        assert [key for key in section.model_fields if f"| `{name}.{key}` |" not in page] == []


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
    assert keys.described(Described)["share"] == "Of everything, in two lines."
    assert list(keys.described(Described)) == list(Described.model_fields)


@pytest.mark.parametrize("section", [Forgotten, Gone])
def test_a_key_without_description_and_a_description_without_key_are_errors(section):
    with pytest.raises(LookupError, match=r"share|chair"):
        keys.described(section)
