"""The site that `make docs` builds: whole, strict, without another host, and no wider than a phone."""

import functools
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import threading
import types
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

import idpgan
from tests.report import browser
from tests.report.test_browser import BROKEN, DESKTOP, OVERFLOW, PHONE
from tests.test_public_names import told_to_type_checkers

ROOT = Path(__file__).parents[1]
MKDOCS = shutil.which("mkdocs", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
NO_MKDOCS = pytest.mark.skipif(MKDOCS is None, reason="mkdocs is not installed: pip install '.[docs]'")
NO_BROWSER = pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed")
# What is seen where Markdown was not understood: rows of a table, items, links, fences, stars and formulas as written.
RAW = re.compile(r"\|\s*-{3}|^\s*\* |\]\(|```|\*\*|\.\. math::", re.M)


def exported():
    """Return the public functions and classes of the package and of its rooms (tiers 1 and 3) by their full names."""
    rooms = [idpgan, *(getattr(idpgan, name) for name in idpgan.__all__)]
    return {
        f"{room.__name__}.{name}": getattr(room, name)
        for room in rooms
        if isinstance(room, types.ModuleType)
        for name in {*getattr(room, "__all__", ()), *told_to_type_checkers(room)}
        if callable(getattr(room, name)) and not isinstance(getattr(room, name), types.ModuleType)
    }


def test_the_page_of_names_has_every_public_name_once():
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"^::: (\S+)$", page, re.M)
    assert len(named) == len(set(named))
    objects = [pkgutil.resolve_name(name) for name in named]
    assert all(item.__doc__ and callable(item) for item in objects)
    public = exported()
    assert len(public) > 50
    assert [name for name, item in public.items() if item not in objects] == []


def built(root, folder):
    """Build the site of a checkout into a folder, strictly; with --quiet mkdocs would count no warning."""
    return subprocess.run(
        [MKDOCS, "build", "--strict", "--config-file", root / "mkdocs.yml", "--site-dir", folder],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = built(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def article(path):
    """Return the text of a page as HTML, without menus."""
    return re.search(r"<article.*?</article>", path.read_text(encoding="utf-8"), re.S)[0]


@pytest.mark.docs
@NO_MKDOCS
def test_every_page_is_built_and_every_link_of_it_leads_somewhere(site):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    pages = pages - {Path("README.html")} | {Path("index.html"), Path("contents.html"), Path("contributing.html")}
    pages |= {Path("reference/keys.html")}  # made from the code
    built_pages = {path.relative_to(site) for path in site.rglob("*.html")} - {Path("404.html")}
    assert {
        page for page in built_pages if page.parts[0] != "repository"
    } == pages  # there lie results that are linked to
    lost = []
    for page in sorted(built_pages):
        for link in re.findall(r'(?:href|src)="([^"]+)"', article(site / page)):
            path, _, anchor = unquote(unescape(link)).partition("#")
            if re.match(r"https?:|mailto:", link):
                continue
            target = site / page.parent / path if path else site / page
            if not target.exists() or (anchor and f'id="{anchor}"' not in target.read_text(encoding="utf-8")):
                lost.append((str(page), link))
    assert lost == []


@pytest.mark.docs
@NO_MKDOCS
def test_the_markdown_of_every_page_is_understood(site):
    left = []
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":
            text = re.sub(r"<(pre|code)\b.*?</\1>", "", article(path), flags=re.S)
            left += [(path.name, text[found.start() :][:60]) for found in RAW.finditer(unescape(text))]
    assert left == []


@pytest.mark.docs
@NO_MKDOCS
def test_the_api_page_has_arguments_and_errors_of_the_docstrings(site):
    text = re.sub(r"<[^>]+>", "", article(site / "reference" / "api.html"))
    for words in ("idpgan.fit", "Below 1/N; None", "InputError", "FittedGenerator", "clip_norm"):
        assert words in text


@pytest.mark.docs
@NO_MKDOCS
def test_a_page_asks_no_other_host(site):
    asks = re.compile(r"""<(?:link|script|img|iframe)\b[^>]*\b(?:src|href)="?(https?:[^" >]+)|@import|url\(https?:""")
    found = [(path.name, found[0]) for path in site.rglob("*.html") for found in asks.finditer(path.read_text("utf-8"))]
    assert [(name, text) for name, text in found if 'rel="canonical"' not in text] == []


@pytest.mark.docs
@NO_MKDOCS
@pytest.mark.parametrize(
    ("page", "text", "words"),
    [
        ("guide/which-method.md", "[lost](nowhere.md)", "nowhere.md"),
        ("guide/which-method.md", "[lost](which-epsilon.md#no-such-heading)", "no-such-heading"),
        ("reference/api.md", "::: idpgan.no_such_name", "no_such_name"),
        ("guide/new.md", "# A page that the index does not have", "guide/new.md"),
    ],
)
def test_a_site_with_a_fault_is_not_built(tmp_path, page, text, words):
    for name in ("docs", "tools", "idpgan"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("checkpoints", "benchmarks", "configs", "tests"):  # pages link to files there
        (tmp_path / name).symlink_to(ROOT / name)
    with (tmp_path / "docs" / page).open("a", encoding="utf-8") as file:
        file.write(f"\n{text}\n")
    done = built(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert words in done.stderr


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        """Say nothing."""


@pytest.fixture(scope="module")
def served(site):
    """The site as a server gives it: its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.Browser(browser.find(), tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.browser
@NO_MKDOCS
@NO_BROWSER
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("page", ["index.html", "guide/which-method.html", "reference/api.html"])
def test_a_page_fits_a_phone_and_asks_no_other_host(chromium, served, page, width):
    chromium.requested.clear()
    chromium.complaints.clear()
    chromium.load(f"{served}/{page}", width)
    assert chromium.value("innerWidth") == width
    assert chromium.value(OVERFLOW) == 0
    assert chromium.value(BROKEN) == 0
    assert chromium.value("document.querySelectorAll('h1').length") == 1
    assert [url for url in chromium.requested if not url.startswith(("data:", served))] == []
    assert chromium.complaints == []


@pytest.mark.browser
@NO_MKDOCS
@NO_BROWSER
@pytest.mark.parametrize(("dark", "scheme"), [(False, "default"), (True, "slate")])
def test_a_page_is_as_dark_as_the_reader_asks(chromium, served, dark, scheme):
    chromium.load(f"{served}/index.html", PHONE)
    chromium.value("localStorage.clear(), 0")  # which keeps what was chosen
    chromium.load(f"{served}/index.html", PHONE, dark=dark)
    assert chromium.value("document.body.getAttribute('data-md-color-scheme')") == scheme
