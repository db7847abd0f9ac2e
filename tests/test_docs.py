"""What README and changelog promise is there."""

import pkgutil
import re
from pathlib import Path

import pytest

from idpgan import obfuscate, publish
from idpgan.methods import methods_of

ROOT = Path(__file__).parents[1]


def words_of(path):
    return len(path.read_text(encoding="utf-8").split())


def test_the_readme_has_both_commands_and_at_most_a_thousand_words():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
    assert words_of(ROOT / "README.md") <= 1000


def test_the_overview_names_every_method():
    text = (ROOT / "docs" / "methods" / "overview.md").read_text(encoding="utf-8")
    known = *methods_of("generator", "classifier"), *publish.METHODS, *obfuscate.METHODS
    assert [name for name in known if f"`{name}`" not in text] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "guide").glob("*.md")), ids=lambda path: path.stem)
def test_a_page_of_the_guide_says_what_it_is_for_and_begins_with_an_example(path):
    title, purpose, *_ = path.read_text(encoding="utf-8").split("\n\n")
    assert title.startswith("# ")
    assert purpose[0].isalpha()
    assert "```" in path.read_text(encoding="utf-8")[:1600]


def test_the_changelog_has_a_privacy_heading():
    assert "### Privacy" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def links(path):
    """Targets of all links of a page that lead to a file."""
    found = re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", path.read_text(encoding="utf-8"))
    return [(path.parent / target).resolve() for target in found]


def anchors(path):
    """Names of the headings of a page, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_every_anchor_of_a_link_is_a_heading():
    lost = []
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
            found = (page.parent / target).resolve() if target else page
            if found.suffix == ".md" and anchor not in anchors(found):
                lost.append((page.name, target, anchor))
    assert lost == []


def test_every_link_leads_to_a_file():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    assert [(page.name, str(target)) for page in pages for target in links(page) if not target.exists()] == []


def test_the_index_has_every_page_and_every_method_has_one():
    index = ROOT / "docs" / "README.md"
    pages = {path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb")} - {index}
    assert pages - set(links(index)) == set()
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert [
        name for name in (*methods_of("generator", "classifier"), *publish.METHODS) if f"`{name}`" not in text
    ] == []


ROOMS = "|".join(path.stem for path in (ROOT / "idpgan").iterdir() if not path.name.startswith("_"))
CODE = re.compile(rf"`(?:idpgan[./])?((?:{ROOMS})[./][\w./:]*)`")
KEYS = r"(data|training|release|privacy)\.\w+"
OTHERS = (
    rf"{KEYS}|.*\.(json|toml|md)|(run|release)/.*|data/dataset_loader\.py|synthesis/NAME\.py"  # of runs and examples
)


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


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], ids=lambda page: page.name)
def test_code_that_a_page_names_is_there(page):
    examples = [
        "attacks/k_nearest.py",
        "data/stripes.py",
        "metrics/contrast.py",
        "publish/dither.py",
        "synthesis/noisy_mean.py",
    ]
    found = missing_code(page.read_text(encoding="utf-8")) if page.name != "CHANGELOG.md" else []  # of its time
    assert found == (examples if page.name == "architecture.md" else [])


def test_code_that_moved_is_found():
    there = "`idpgan.synthesis.follow.Follower`, `trainer:start`, `commands/command`, `data.root`, `audit.json`"
    gone = "`synthesis.aggregate.follow.Follower`, `commands/gone.py:start`"
    assert missing_code(f"{there}, {gone}") == ["commands/gone.py:start", "synthesis.aggregate.follow.Follower"]


def missing_scripts(text):
    """Return the scripts of benchmarks/ and tools/ in a page that are gone, where it names no commit that has them."""
    named = set(re.findall(r"(?<![\w/])(?:benchmarks|tools)/[\w/]+\.py", text))
    to_run = set(re.findall(r"\bpython ((?:benchmarks|tools)/[\w/]+\.py)", text))
    gone = {name for name in named if not (ROOT / name).exists()}
    return sorted(gone & to_run if re.search(r"\bcommit [0-9a-f]{7}\b", text) else gone)


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
    ids=lambda page: page.name,
)
def test_scripts_that_a_page_names_are_there_or_in_the_commit_that_it_names(page):
    assert missing_scripts(page.read_text(encoding="utf-8")) == []


def test_a_script_that_is_gone_is_found():
    assert missing_scripts("`benchmarks/cifar.py`, `python benchmarks/gone.py`") == ["benchmarks/gone.py"]
    assert missing_scripts("`benchmarks/gone.py` of commit e124c6d") == []
    assert missing_scripts("`python benchmarks/gone.py` of commit e124c6d") == ["benchmarks/gone.py"]
