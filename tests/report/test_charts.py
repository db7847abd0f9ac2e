"""Charts: well-formed, inside their frame, and read as what they show."""

import re
from xml.etree import ElementTree

import pytest
import torch

from idpgan.attacks.evaluate import roc_curve, thinned_curve
from idpgan.privacy.tradeoff import Tradeoff
from idpgan.report.measured import curves_part
from idpgan.report.page import cells, lay_out, line_chart, number, roc_chart


def inside(svg):
    """Parse a chart, and return its frame and its lines by name: every coordinate lies in the frame."""
    assert not re.search(r"https?:|url\(|href| id=|<!--", svg)  # nothing is loaded, and several fit into a page
    parsed = ElementTree.fromstring(svg)
    width, height = map(float, parsed.get("viewBox").split()[2:])
    for text in parsed.iter("text"):
        assert 0 <= float(text.get("x")) <= width
        assert 0 <= float(text.get("y")) <= height
    lines = {}
    for group in parsed.iter("g"):
        if group.get("class") in ("curve", "limit", "proven", "interval"):
            numbers = re.findall(r"[ML] (\S+) (\S+)", group.find("path").get("d"))
            lines[group.get("class")] = [tuple(map(float, pair)) for pair in numbers]
    assert all(0 <= x <= width and 0 <= y <= height for line in lines.values() for x, y in line)
    return parsed, lines


@pytest.mark.parametrize(
    "values", [[0.5], [3.0, 3.0, 3.0], [-1e6, 1e6], [1e-9, 2e-9, 1.5e-9], [0.0, 0.0], [1.0, 2.0, 4.0, 8.0]]
)
@pytest.mark.parametrize("options", [{}, {"limit": 10.0, "from_zero": True}])
def test_a_line_chart_draws_any_series_in_its_frame(values, options):
    points = [(10.0 * (step + 1), value) for step, value in enumerate(values)]
    svg = line_chart(points, title="loss <of> the critic", description="falls", **options)
    assert line_chart(points, title="loss <of> the critic", description="falls", **options) == svg
    parsed, lines = inside(svg)
    assert parsed.get("aria-label") == "loss <of> the critic: falls"
    heights = [y for _, y in lines["curve"]]  # 0 is at the top
    pairs = list(zip(values, heights, strict=True))
    assert all((a < b) == (y > z) for a, y in pairs for b, z in pairs if abs(y - z) > 0.2)
    assert ("limit" in lines) is ("limit" in options)
    assert len(list(parsed.iter("text"))) >= 4


def test_a_line_chart_is_true_to_scale():
    _, lines = inside(line_chart([(0, 0.0), (50, 5.0), (100, 10.0)], title="t", description="d", from_zero=True))
    (x0, y0), (x1, y1), (x2, y2) = lines["curve"]
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert y0 > y2


def test_what_is_proven_is_drawn_above_the_guess_with_an_attack_and_without_one():
    proven = [(rate, Tradeoff(mu=1.0).found(rate)) for rate in (1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0)]
    for points in ((), [(0.0, 0.0), (0.01, 0.02), (1.0, 1.0)]):
        _, lines = inside(roc_chart(points, title="t", description="d", proven=proven))
        assert set(lines) == ({"limit", "proven", "curve"} if points else {"limit", "proven"})
        (x1, y1), (x2, y2) = lines["limit"]
        assert len(lines["proven"]) == (4 if points else 6)  # from the left end of the axis on
        assert all(y < y1 + (y2 - y1) / (x2 - x1) * (x - x1) for x, y in lines["proven"][:-1])


@pytest.mark.parametrize("shift", [0.0, 1.0, 20.0])
def test_a_roc_curve_stays_in_its_frame_and_above_the_guess_where_it_is(shift):
    generator = torch.Generator().manual_seed(1)
    members, others = (torch.randn(500, generator=generator) for _ in range(2))
    points = thinned_curve(members + shift, others)
    svg = roc_chart(points, title="t", description="d", at=0.01, interval=(0.0, 0.1))
    _, lines = inside(svg)
    assert len(lines["interval"]) == 2
    curve, (_, (right, _)) = lines["curve"], lines["limit"]
    assert curve[-1] == (right, min(y for _, y in curve))
    if shift == 20.0:
        assert {y for _, y in curve} == {curve[-1][1]}  # everybody is found at once


def test_a_thinned_curve_is_part_of_the_curve_and_keeps_its_ends():
    generator = torch.Generator().manual_seed(2)
    members, others = (torch.randn(3000, generator=generator) for _ in range(2))
    false, true = roc_curve(members + 0.5, others)
    whole = {(round(float(x), 6), round(float(y), 6)) for x, y in zip(false, true, strict=True)}
    points = thinned_curve(members + 0.5, others, most=50)
    assert set(points) <= whole
    assert len(points) <= 50
    assert points == sorted(points)
    assert points[0][0] == 0.0
    assert points[-1] == (1.0, 1.0)
    at_one_percent = max(y for x, y in whole if x <= 0.01)
    drawn = max(y for x, y in thinned_curve(members + 0.5, others) if x <= 0.01)
    assert drawn == pytest.approx(at_one_percent, abs=0.01)


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (12345.6, "12,346"), (0.25, "0.25"), (1e-5, "1.0e-5"), (3e7, "3.0e7"), (-2, "-2")]
)
def test_numbers_are_short(value, text):
    assert number(value) == text


@pytest.mark.parametrize("channels", [1, 3])
def test_a_contact_sheet_comes_apart_as_it_was_laid(channels):
    from idpgan.data.images import make_grid, png_bytes

    images = torch.randint(0, 256, (7, channels, 5, 6), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    sheet = png_bytes(make_grid(images, 4))
    assert torch.equal(torch.from_numpy(cells(sheet, (channels, 5, 6), 4, 2)[:7].copy()), images)
    with pytest.raises(ValueError, match="does not hold such images"):
        cells(sheet, (channels, 5, 7), 4, 2)


def test_small_images_are_enlarged_by_a_whole_factor():
    picture = lay_out(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), 3, alt="a")
    assert (picture["width"], picture["height"]) == (3 * 40 + 2 * 3, 40)
    assert re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]+", picture["uri"])


def test_curves_have_words_for_titles_and_say_what_they_show():
    rows = [{"step": 1, "critic_loss": 2.0, "pace": 3.0}, {"step": 2, "critic_loss": 1.0, "pace": 3.0}]
    charts = {chart["title"]: chart["caption"] for chart in curves_part(rows, None)["charts"]}
    assert charts == {"Critic loss": "1 at the end, 1 to 2 in all", "Pace": "3 throughout"}
