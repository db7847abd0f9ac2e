"""The page of a rehearsal is whole without a script or a network, and named for keyboard and screen reader."""

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser

import pytest
import torch

from idpgan.data.images import Images
from idpgan.privacy import Event, Relation, Unit
from idpgan.report.rehearsal import TIMES, Rehearsal, Rehearsed, Repeated, rehearsal_page, some_of

CLASSES = ("neutral", '<smiling> & "co"')


def images(num=40, classes=CLASSES):
    pixels = torch.arange(num, dtype=torch.uint8)[:, None, None, None].expand(num, 1, 8, 8).contiguous()
    return Images(pixels, torch.arange(num) % len(classes) if classes else None, classes)


def row(unit, epsilon, **changed):
    read = (Event("gaussian", unit, Relation.ZERO_OUT, noise_multiplier=4 / epsilon),)
    costs = tuple(Repeated.of(read, times, 1e-5) for times in TIMES)
    made = Rehearsed(unit, Relation.ZERO_OUT, epsilon, 1e-5, 0.7, None, 0.1, costs, 3.0, some_of(images()))
    return dataclasses.replace(made, **changed)


def rehearsal(*rows):
    return Rehearsal("gaussian", "40 drawn faces, 8 x 8 grey", 40, 0.5, 0.9, rows, some_of(images()), 3.0)


class Elements(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def named(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def page():
    return rehearsal_page(rehearsal(*(row(unit, e) for unit in (Unit.IMAGE, Unit.PERSON) for e in (1.0, 3.0, 10.0))))


def test_without_a_script_all_choices_are_a_list(page):
    choices = [each for each in Elements(page).named("li") if each.get("class") == "choice"]
    assert [(each["data-unit"], each["data-epsilon"]) for each in choices] == [
        (unit, epsilon) for unit in ("image", "person") for epsilon in ("1", "3", "10")
    ]
    assert not any("hidden" in each for each in choices)
    assert [tag for tag, attributes in Elements(page).found if "hidden" in attributes] == ["form"]


def test_nothing_is_loaded_and_only_its_own_script_runs(page):
    assert not re.search(r"https?:|//[a-z]", page)
    assert all(each["src"].startswith("data:image/png;base64,") for each in Elements(page).named("img"))
    policy = next(each["content"] for each in Elements(page).named("meta") if "http-equiv" in each)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'")
    assert f"script-src 'sha256-{digest}'" in policy
    assert not re.search(r'<[^>]* on[a-z]+="', page)


def test_what_is_moved_has_names(page):
    elements = Elements(page)
    slider, *radios = (each for each in elements.named("input") if each["type"] != "hidden")
    assert (slider["max"], slider["value"], slider["aria-valuetext"]) == ("2", "1", "3")  # begins at the config's
    assert slider["id"] in [each.get("for") for each in elements.named("label")]
    assert [each["value"] for each in radios] == ["image", "person"]
    assert [each["role"] for each in elements.named("p") if each.get("id") == "said"] == ["status"]
    assert all(each["alt"] for each in elements.named("img"))
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_classes_are_text_and_not_markup(page):
    assert "<smiling>" not in page
    assert "&lt;smiling&gt;" in page


def test_one_unit_needs_no_switch():
    elements = Elements(rehearsal_page(rehearsal(row(Unit.IMAGE, 1.0))))
    assert [each["value"] for each in elements.named("input") if each["name"] == "unit"] == ["image"]
    assert not elements.named("fieldset")


def test_the_numbers_of_the_attacker_are_the_proven_ones():
    """And a release without a proof says that anything may be known, a classifier that it has no pictures."""
    made = row(Unit.PERSON, 1.0)
    page = rehearsal_page(rehearsal(made))
    assert f"right at most {100 * made.risk.best_guess:.1f}" in page
    assert f">{made.repeated[-1].epsilon:.3g}<" in page
    bare = rehearsal_page(rehearsal(row(Unit.PERSON, 1.0, repeated=(), shown=None)))
    assert "Nothing is proven" in bare
    assert "How often the classifier is right" in bare
    assert "right at most" not in bare


@pytest.mark.parametrize(
    "classes", [(), ("a", "b"), tuple("abc"), tuple(map(str, range(10))), tuple(map(str, range(12)))]
)
def test_columns_of_a_picture_are_classes_in_turn(classes):
    shown = some_of(images(240, classes))
    columns = {0: 6, 2: 6, 3: 6, 10: 10, 12: 10}[len(classes)]
    assert len(shown) % columns == 0
    assert len(shown.images.flatten(1).unique(dim=0)) == len(shown)  # none twice
    if 0 < len(classes) <= 10:
        assert shown.labels.view(-1, columns).eq(torch.arange(columns) % len(classes)).all()
