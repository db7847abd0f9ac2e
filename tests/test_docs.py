"""What README and changelog promise is there."""

import re
from pathlib import Path

from idpgan import obfuscate, publish
from idpgan.methods import methods_of

ROOT = Path(__file__).parents[1]


def test_the_readme_names_both_commands_and_every_method():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for word in (
        "make demo",
        "make test",
        *(f"`{name}`" for name in (*methods_of("gan", "classifier"), *publish.METHODS, *obfuscate.METHODS)),
    ):
        assert word in text


def test_the_changelog_has_a_privacy_heading():
    assert "### Privacy" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def links(path):
    """Targets of all links of a page that lead to a file."""
    found = re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", path.read_text(encoding="utf-8"))
    return [(path.parent / target).resolve() for target in found]


def test_every_link_leads_to_a_file():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    assert [(page.name, str(target)) for page in pages for target in links(page) if not target.exists()] == []


def test_the_index_has_every_page_and_every_method_has_one():
    index = ROOT / "docs" / "README.md"
    pages = {path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb")} - {index}
    assert pages - set(links(index)) == set()
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert [name for name in (*methods_of("gan", "classifier"), *publish.METHODS) if f"`{name}`" not in text] == []
