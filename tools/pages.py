"""Find measured figures that nothing stands behind, and dead links, in README, CONTRIBUTING, docs and benchmarks.

    python tools/pages.py

A section of a page has *measured figures* where it states a percentage with a decimal, a spread, an AUC or a time.
Behind them stands a table from results (``<!-- measured:``), a link to results, a test, a commit or a date: in the
section, or, a date or such a table, above the first section of the page. Words are counted as ``wc -w`` does: README
and docs, without what benchmarks/ holds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIGURE = re.compile(
    r"\b[1-9]\d?\.\d %|\+- \d|± \d|\bAUC (?:of )?0\.\d"
    r"|\b\d[\d,.]* (?:s|ms|seconds|minutes|min|hours|microseconds)\b(?!/)"
)
DATED = re.compile(r"\b20\d\d-\d\d-\d\d|<!-- measured:")
SOURCE = re.compile(
    rf"{DATED.pattern}|<!-- not (?:from results|measured):|benchmarks/(?:results/|RESULTS)|\btests/\w"
    r"|\]\([^)]*(?:measured|cifar10|reproduction)\.md|\bcommit [0-9a-f]{7}"
)
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
HEADING = re.compile(r"^#+ (.+)$", re.M)


def counted(root: Path) -> list[Path]:
    """Return the pages whose words count: README and docs."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def pages(root: Path) -> list[Path]:
    """Return all pages whose links are looked at."""
    return [*counted(root), root / "CONTRIBUTING.md", *sorted((root / "benchmarks").rglob("*.md"))]


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield heading and text of each section; what stands before the second heading belongs to the title."""
    starts = [found.start() for found in HEADING.finditer(FENCE.sub(lambda found: " " * len(found[0]), text))]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        title, _, body = text[start:end].partition("\n")
        yield title.lstrip("# "), body


def unsupported(text: str) -> list[tuple[str, str]]:
    """Return the sections whose figures nothing stands behind: heading and first figure."""
    parts = list(sections(text))
    if parts and DATED.search(parts[0][1]):
        return []  # the page says above its sections how all of its figures were measured
    found = [(title, FIGURE.search(FENCE.sub("", body))) for title, body in parts if not SOURCE.search(body)]
    return [(title, figure[0]) for title, figure in found if figure]


def anchors(path: Path) -> set[str]:
    """Return the names of the headings of a page, as GitHub and mkdocs make them."""
    plain = [
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in HEADING.findall(path.read_text("utf-8"))
    ]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def dead_links(path: Path) -> list[str]:
    """Return the links of a page that lead to no file, as of a folder, or to a heading that its page lacks."""
    dead = []
    for target, anchor in LINK.findall(path.read_text("utf-8")):
        found = (path.parent / target).resolve() if target else path
        if not found.is_file() or (anchor and found.suffix == ".md" and anchor not in anchors(found)):
            dead.append(f"{target}#{anchor}" if anchor else target)
    return dead


def main(root: Path = ROOT) -> int:
    """Print what was found, and return how much it is."""
    said = [f"{path.relative_to(root)}: dead link {link}" for path in pages(root) for link in dead_links(path)]
    for path in counted(root):
        for title, figure in unsupported(path.read_text("utf-8")):
            said.append(f"{path.relative_to(root)}, {title}: nothing stands behind {figure!r}")
    print("\n".join(said or ["no dead link, and something stands behind every figure"]))
    print(f"{sum(len(path.read_text('utf-8').split()) for path in counted(root)):,} words")
    return len(said)


if __name__ == "__main__":
    sys.exit(bool(main()))
