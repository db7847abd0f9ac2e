"""Pages in a real browser: they ask for nothing, complain of nothing, and fit a phone."""

import pytest

from idpgan.commands.report import write_report
from tests.report import browser
from tests.report.rehearsals import both_units

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(browser.find() is None, reason="no Chromium is installed"),
]
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
def pages(whole, bare, published, rehearsed):
    reports = {"whole": write_report(whole.path), "bare": write_report(bare.path), "published": write_report(published)}
    return reports | {"rehearsed": rehearsed}


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    page = tmp_path_factory.mktemp("rehearsal") / "rehearsal.html"
    page.write_text(both_units(), encoding="utf-8")
    return page


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
@pytest.mark.parametrize("name", ["whole", "bare", "published", "rehearsed"])
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


SHOWN = (
    "[...document.querySelectorAll('.choice')].filter(choice => choice.offsetHeight).map(choice => choice.id).join()"
)


def press(chromium, key):
    for kind in ("keyDown", "keyUp"):
        chromium.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])


KEYS = {"Tab": 9, "End": 35, "ArrowLeft": 37, "ArrowRight": 39}


def test_a_rehearsal_is_chosen_from_by_keys_and_said_by_a_screen_reader(chromium, rehearsed):
    chromium.load(rehearsed, PHONE)
    assert chromium.value(SHOWN) == "image-3"
    press(chromium, "Tab")
    press(chromium, "ArrowRight")
    assert chromium.value(SHOWN) == "image-10"
    press(chromium, "ArrowLeft")
    press(chromium, "ArrowLeft")
    press(chromium, "Tab")
    press(chromium, "ArrowRight")
    assert chromium.value(SHOWN) == "person-1"
    assert chromium.value("document.getElementById('said').textContent").startswith("Epsilon 1, all images of a person")
    nodes = chromium.ask("Accessibility.getFullAXTree")["nodes"]
    named = {(node["role"]["value"], node["name"]["value"]) for node in nodes if node.get("name", {}).get("value")}
    assert {("slider", "Epsilon"), ("radio", "one image"), ("radio", "all images of a person")} <= named
    assert ("heading", "Epsilon 1, all images of a person protected") in named
    assert ("heading", "Epsilon 3, one image protected") not in named


def test_a_rehearsal_without_a_script_is_a_list(chromium, rehearsed):
    chromium.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        chromium.load(rehearsed, PHONE)
        assert chromium.value(SHOWN).count(",") == 5
        assert chromium.value("document.getElementById('controls').offsetHeight") == 0
    finally:
        chromium.ask("Emulation.setScriptExecutionDisabled", value=False)
