"""Lets mkdocs read what lies above docs/: the README as the first page, and every file that a page links to.

A hook of mkdocs.yml. The order of the pages is that of the links in docs/README.md, so that it is written once.
"""

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from idpgan.config import Section
from idpgan.methods import load, methods_of
from idpgan.training.config import RunConfig

ROOT = Path(__file__).resolve().parent.parent
# Pages of the site that have another place, or another name, in the repository.
MOVED = {"README.md": "index.md", "docs/README.md": "contents.md", "CONTRIBUTING.md": "contributing.md"}
KEYS = "reference/keys.md"  # made from the code, and not in the repository
METHODS = methods_of("generator", "classifier")
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=(?:#[^)\s]*)?\))")


def home(uri: str) -> str:
    """Return where a page of the site lies in the repository."""
    if uri.startswith("repository/"):
        return uri.removeprefix("repository/")
    return next((path for path, moved in MOVED.items() if moved == uri), f"docs/{uri}")


def target(link: str, page: str) -> str:
    """Return where in the site lies what a page of the repository links to."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    return MOVED.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the order of the pages from docs/README.md: a section a heading, a page where it is first linked."""
    nav: list[dict[str, str | list[dict[str, str]]]] = [{"idpgan": "index.md"}, {"Contents": "contents.md"}]
    seen = {"index.md", "contents.md"}
    for section in re.split(r"^## ", (ROOT / "docs" / "README.md").read_text(encoding="utf-8"), flags=re.M)[1:]:
        pages = []
        for title, link in re.findall(r"\[([^\]]+)\]\(([^)#:\s]+\.md)(?:#[^)]*)?\)", section):
            uri = target(link, "docs/README.md")
            if uri not in seen:
                seen.add(uri)
                pages.append({title.replace("`", ""): uri})
        nav.append({section.partition("\n")[0]: pages})
    nav.append({"Every key of a config": KEYS})
    config.nav = nav
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of `MOVED`, and each file outside of docs/ that a page links to."""
    files.remove(files.src_uris["README.md"])
    files.append(File.generated(config, KEYS, content=every_key()))
    for path, uri in MOVED.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    unread = list(files.documentation_pages())
    while unread:
        file = unread.pop()
        for link in LINK.findall(file.content_string):
            uri = target(link, home(file.src_uri))
            if uri.startswith("repository/") and uri not in files.src_uris:
                added = File.generated(config, uri, abs_src_path=str(ROOT / home(uri)))
                files.append(added)
                unread += [added] if added.is_documentation_page() else []
    return files


def every_key() -> str:
    """Return the page of all keys: classes by their docstrings, the keys of a method by their descriptions."""
    lines, seen = (
        ["# Every key of a config\n", "What is left out has its default; an unknown key is refused.\n"],
        {Section},
    )
    for title, config in [("All methods", RunConfig), *((name, load(name).Settings) for name in METHODS)]:
        lines.append(f"## {title}\n")
        for part, field in config.model_fields.items():
            for section in reversed(getattr(field.annotation, "__mro__", ())):
                if not issubclass(section, Section) or section in seen:
                    continue
                seen.add(section)
                if getattr(sys.modules[section.__module__], section.__qualname__, None) is section:
                    own = f"::: {section.__module__}.{section.__qualname__}"
                    lines.append(f"{own}\n    options:\n      show_if_no_docstring: true\n")
                else:
                    lines += [*map("- {}".format, keys_of(part, section)), ""]
    return "\n".join(lines)


def keys_of(part: str, section: type[Section]) -> list[str]:
    """Return a line for each key that a section does not have from all methods."""
    return [
        f"`{part}.{name}`{'' if field.is_required() else f' = `{field.default!r}`'}: {field.description}"
        for name, field in section.model_fields.items()
        if field.description
    ]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    uri = page.file.src_uri
    start = posixpath.dirname(uri) or "."
    return LINK.sub(lambda found: posixpath.relpath(target(found[1], home(uri)), start), markdown)
