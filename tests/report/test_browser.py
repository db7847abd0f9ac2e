"""Pages in a real browser: they ask for nothing, complain of nothing, and fit a phone."""

import pytest

from idpgan.commands.report import write_report
from tests.report import browser

pytestmark = [pytest.mark.browser, pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed")]
PHONE, DESKTOP = 390, 1200
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
BROKEN = "[...document.images].filter(image => !image.complete || !image.naturalWidth).length"
TOO_WIDE = """[...document.querySelectorAll('body *')].filter(element =>
    !element.closest('.wide, pre') && element.getBoundingClientRect().right > innerWidth + 0.5).length"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser.Browser(browser.find(), tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(whole, bare, published):
    return {"whole": write_report(whole.path), "bare": write_report(bare.path), "published": write_report(published)}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("name", ["whole", "bare", "published"])
def test_a_report_renders_without_network_and_without_a_scroll_bar(chromium, pages, name, width, dark):
    chromium.requested.clear()
    chromium.complaints.clear()
    chromium.load(pages[name], width, dark=dark)
    assert chromium.value("innerWidth") == width
    assert chromium.value(OVERFLOW) == 0
    assert chromium.value(TOO_WIDE) == 0
    assert chromium.value(BROKEN) == 0
    assert chromium.value("document.images.length + document.querySelectorAll('svg').length") > 1
    assert chromium.value("document.querySelectorAll('h1').length") == 1
    assert [url for url in chromium.requested if not url.startswith(("data:", "file:"))] == []
    assert len([url for url in chromium.requested if url.startswith("file:")]) == 1
    assert chromium.complaints == []
    light = chromium.value("getComputedStyle(document.body).backgroundColor") == "rgb(252, 252, 250)"
    assert light != dark


@pytest.mark.parametrize(
    ("added", "found"),
    [
        ('<div style="width: 1200px">wide</div>', "overflow"),
        ('<img src="https://example.org/x.png" alt="x">', "complaint"),
        ("<script>alert(1)</script>", "complaint"),
        ('<img src="data:image/png;base64,AAAA" alt="x">', "broken"),
    ],
)
def test_the_test_can_fail(chromium, pages, tmp_path, added, found):
    page = tmp_path / "page.html"
    page.write_text(pages["whole"].read_text().replace("</main>", f"{added}</main>"))
    chromium.complaints.clear()
    chromium.load(page, PHONE)
    seen = {
        "overflow": chromium.value(OVERFLOW) > 0 and chromium.value(TOO_WIDE) > 0,
        "complaint": chromium.complaints != [],
        "broken": chromium.value(BROKEN) > 0,
    }
    assert seen[found]
