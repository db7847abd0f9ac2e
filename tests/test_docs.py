"""What README and changelog promise is there."""

import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

from idpgan.methods import methods_of

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("pages", ROOT / "tools" / "pages.py")
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)


def words_of(path):
    return len(path.read_text(encoding="utf-8").split())


def test_the_readme_has_both_commands_and_at_most_a_thousand_words():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    assert words_of(ROOT / "README.md") <= 1000
    assert sum(map(words_of, pages.counted(ROOT))) <= 36_100  # a page says a thing once, and links


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "guide").glob("*.md")), ids=lambda path: path.stem)
def test_a_page_of_the_guide_says_what_it_is_for_and_begins_with_an_example(path):
    title, purpose, *_ = path.read_text(encoding="utf-8").split("\n\n")
    assert title.startswith("# ")
    assert purpose[0].isalpha()
    assert "```" in path.read_text(encoding="utf-8")[:1600]


def test_the_changelog_has_a_privacy_heading():
    assert "### Privacy" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_no_link_is_dead_and_something_stands_behind_every_figure():
    assert [(page.name, link) for page in pages.pages(ROOT) for link in pages.dead_links(page)] == []
    assert [(page.name, *at) for page in pages.counted(ROOT) for at in pages.unsupported(page.read_text("utf-8"))] == []


def test_a_dead_link_and_a_figure_without_a_source_are_found(tmp_path):
    (tmp_path / "a.md").write_text("# A b\n\n[b](a.md#a-b) [c](#gone) ![d](gone.png)\n\n## Worth\n\n97.5 %\n")
    assert pages.dead_links(tmp_path / "a.md") == ["#gone", "gone.png"]
    assert pages.unsupported((tmp_path / "a.md").read_text()) == [("Worth", "97.5 %")]
    for source in ("commit e124c6d", "2026-11-26", "[rows](../benchmarks/results/x.md)", "<!-- measured:x -->"):
        assert pages.unsupported(f"# A\n\n## Worth\n\n97.5 %: {source}\n") == []


# A comment that begins a line begins a block of HTML: the paragraph before it ends there.
SPLIT = re.compile(r"\S\n<!-- measured:\S+ -->\S")


def test_no_measured_text_splits_its_paragraph():
    assert [page.name for page in pages.counted(ROOT) if SPLIT.search(page.read_text(encoding="utf-8"))] == []
    assert SPLIT.search("three judges a run;\n<!-- measured:x -->N = 8,089<!-- /measured -->")
    assert not SPLIT.search("a run; <!-- measured:x -->N<!-- /measured -->\n\n<!-- measured:y -->\n| a |\n")


def test_the_index_has_every_page_and_every_method_has_one():
    index = ROOT / "docs" / "README.md"
    every = {path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb")} - {index}
    linked = {(index.parent / target).resolve() for target, _ in pages.LINK.findall(index.read_text("utf-8"))}
    assert every - linked == set()
    overview = ROOT / "docs" / "methods" / "overview.md"  # has all, by a script
    text = "".join(page.read_text(encoding="utf-8") for page in every if page.suffix == ".md" and page != overview)
    trained = methods_of("generator", "classifier")  # publishers have docstrings, and the overview
    assert [name for name in trained if f"`{name}`" not in text] == []


ROOMS = "|".join(path.stem for path in (ROOT / "idpgan").iterdir() if not path.name.startswith("_"))
CODE = re.compile(rf"`(?:idpgan[./])?((?:{ROOMS})[./][\w./:]*)`")
KEYS = r"(data|training|release|privacy)\.\w+"
OTHERS = rf"{KEYS}|.*\.(json|toml|md)|(run|release)/.*|data/dataset_loader\.py|[\w/]+/NAME\.(py|toml)"


def missing_code(text):
    """Return the modules, folders and names in them that stand between backticks, and that the package lacks."""
    missing = []
    for token in sorted(set(CODE.findall(text))):
        if re.fullmatch(OTHERS, token):
            continue
        try:
            pkgutil.resolve_name(
                "idpgan." + re.sub(r"\.py(?=:|$)", "", token).strip("/").replace("/", ".").replace(":", ".")
            )
        except (ImportError, AttributeError):
            missing.append(token)
    return missing


def missing_scripts(text):
    """Return the scripts of benchmarks/ and tools/ in a page that are gone, where it names no commit that has them."""
    named = set(re.findall(r"(?<![\w/])(?:benchmarks|tools)/[\w/]+\.py", text))
    to_run = set(re.findall(r"\bpython ((?:benchmarks|tools)/[\w/]+\.py)", text))
    gone = {name for name in named if not (ROOT / name).exists()}
    return sorted(gone & to_run if re.search(r"\bcommit [0-9a-f]{7,8}\b", text) else gone)


ADDITIONS = {path.name for path in (ROOT / "docs" / "reference" / "additions").iterdir()}  # in a copy, by a test
PAGES = {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")} - {ROOT / "CHANGELOG.md"}  # which is of its time


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.name)
def test_code_and_scripts_that_a_page_names_are_there(page):
    text = page.read_text(encoding="utf-8")
    missing = missing_code(text)
    assert [name for name in missing if page.name != "architecture.md" or Path(name).name not in ADDITIONS] == []
    assert missing_scripts(text) == []


def test_code_that_moved_and_a_script_that_is_gone_are_found():
    there = "`idpgan.synthesis.teacher.fit_teacher`, `trainer:start`, `commands/command`, `data.root`, `audit.json`"
    gone = "`synthesis.aggregate.teacher.fit_teacher`, `commands/gone.py:start`"
    assert missing_code(f"{there}, {gone}") == ["commands/gone.py:start", "synthesis.aggregate.teacher.fit_teacher"]
    assert missing_scripts("`benchmarks/cifar.py`, `python benchmarks/gone.py`") == ["benchmarks/gone.py"]
    assert missing_scripts("`benchmarks/gone.py` of commit e124c6d") == []
    assert missing_scripts("`python benchmarks/gone.py` of commit e124c6d") == ["benchmarks/gone.py"]
