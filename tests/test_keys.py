"""docs/reference/keys.md is made from the code."""

from pathlib import Path

import pytest
from pydantic import Field

from idpgan.commands import keys
from idpgan.training.config import PrivacyConfig

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "keys.md"


def test_the_page_is_that_of_the_code():
    assert PAGE.read_text(encoding="utf-8") == keys.render(), "python -m idpgan.commands.keys > docs/reference/keys.md"


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
