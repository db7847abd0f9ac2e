"""What README and changelog promise is there."""

from pathlib import Path

from idpgan import obfuscate, publish
from idpgan.jobs.methods import REGISTRY

ROOT = Path(__file__).parents[1]


def test_the_readme_names_both_commands_and_every_method():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for word in (
        "make demo",
        "make test",
        *(f"`{name}`" for name in (*REGISTRY.infos, *publish.METHODS, *obfuscate.METHODS)),
    ):
        assert word in text


def test_the_changelog_has_a_privacy_heading():
    assert "### Privacy" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
