"""The curator's report: it says what the files say, needs nothing else, and shows every name as text."""

import base64
import itertools
import json
import re
import shutil
import stat

import pytest
import torch
from PIL import Image

from idpgan.commands.report import write_report
from idpgan.data.images import Images, png_bytes
from idpgan.errors import InputError
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.event import _REQUIRED, Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.tradeoff import Tradeoff
from idpgan.release.statement import read_privacy
from idpgan.report.epsilons import Proven, described
from idpgan.report.measured import attack_part
from idpgan.report.page import GAP_PX, cells, render
from idpgan.report.run import _nearest
from idpgan.run import RunFolder
from tests.report.conftest import NASTY
from tests.report.page import Parsed


@pytest.fixture
def copy(whole, tmp_path):
    """A copy of the whole run, to be changed."""
    return RunFolder(shutil.copytree(whole.path, tmp_path / "copy"))


def read(source, **options):
    path = write_report(source, **options)
    return path.read_text()


def self_contained(text):
    """The page loads nothing from anywhere, and has no script."""
    page = Parsed(text)
    outside = re.findall(r"""(?:https?:|//|@import|url\()[^"'\s<]*""", re.sub(r"data:[^\"]*", "", text))
    assert outside == []
    assert "script" not in {tag for tag, _ in page.elements}
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    links = [attributes.get(name, "") for _, attributes in page.elements for name in ("src", "href")]
    assert all(link[:1] in ("", "#") or link.startswith("data:") for link in links)
    return page


def accessible(page):
    """Language, one main heading, parts in order, pictures with words, tables with heads, links that lead somewhere."""
    assert page.all("html") == [{"lang": "en"}]
    headings = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert headings.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(headings))
    assert all(picture["alt"] and int(picture["width"]) > 0 for picture in page.all("img"))
    assert all(drawn["role"] == "img" and drawn["aria-label"] for drawn in page.all("svg"))
    assert all(cell["scope"] in ("row", "col") for cell in page.all("th"))
    assert len(page.all("table")) == len(page.all("caption")) == len(page.all("thead"))
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(names)) == len(names)
    assert {link["href"] for link in page.all("a")} <= {f"#{name}" for name in names}


def test_a_report_says_what_the_files_of_the_run_say(whole):
    page = self_contained(read(whole.path))
    accessible(page)
    assert "For the curator. Not covered by epsilon; do not give away." in page.text
    stated = read_privacy(whole.release / "privacy.json")
    proven, charges = stated.report.proven, stated.events
    for guarantee in filter(None, (stated.report.claimed, proven)):
        assert f"{guarantee.epsilon:.4g}" in page.text
    assert f"unit {proven.unit}, {proven.relation}, δ = {proven.delta:.3g}" in page.text
    assert f"{charges[0].noise_multiplier:.4g} times the sensitivity" in page.text
    assert f"before the first step {compose_epsilon(charges, 1e-5):.4g}" in page.text
    audited = json.loads(whole.audit.read_text())
    assert f"{audited['result']['epsilon_lower']:.4g}" in page.text
    assert audited["verdict"] in page.text
    attacked = json.loads(whole.attack.read_text())["attacks"]["nearest-sample"]
    low, high = attacked["auc_interval"]
    assert f"{attacked['auc']:.3f} [{low:.3f}, {high:.3f}]" in page.text
    for words in ("60.00% ± 14.14%", "± 0.050", "0.2500 ± 0.2500", "a note", f"N = {stated.num_private}", "torch 2"):
        assert words in page.text
    assert len(page.all("svg")) == 2 + 1 + 1 + 2  # two attacks, the most of any, epsilon, and what the steps record
    risk = stated.risk
    assert all(f"{what} {most} {guess}" in page.text for what, most, guess in risk.rows())
    assert f"any attack, at most: proven {risk.rows()[0][1]}" in page.text.replace("  ", " ")
    dashed = sum("dashed: the most that any attack finds" in drawn["aria-label"] for drawn in page.all("svg"))
    assert (dashed, page.text.count("ABOVE WHAT IS PROVEN")) == (2, 0)
    pictures = [picture["alt"] for picture in page.all("img")]
    assert pictures == [*(f"16 {what} of class {c}" for what in ("generated images", "real private images")
                          for c in (NASTY, "b & 'c'")),
                        "16 generated images, each left of its nearest real private image"]  # fmt: skip


def test_it_is_the_same_every_time_and_the_curators_alone(whole):
    assert write_report(whole.path) == whole.report
    first = whole.report.read_bytes()
    write_report(whole.path)
    assert whole.report.read_bytes() == first
    assert stat.S_IMODE(whole.report.stat().st_mode) == 0o600


MEASURED = {"tpr_intervals": {"0.01": [0.3, 0.9], "0.001": None}, "confidence": 0.95}


@pytest.mark.parametrize(
    ("change", "above"),
    [
        ({}, 1),  # two Gaussians 1.5 apart: 20 % at 1 %
        ({"tpr_intervals": {"0.01": [0.2, 1.0], "0.001": None}}, 0),  # the rate itself may lie above, its interval not
        ({"tpr_intervals": {"0.01": None, "0.001": [0.06, 0.2]}}, 1),
        ({"relation": Relation.REPLACE_ONE}, 0),  # two contents: not what a member is
        ({"unit": Unit.COLUMN}, 0),
        ({"attack": "person-set"}, 0),  # all images of a person, and the unit is an image
        ({"attack": "person-set", "unit": Unit.PERSON}, 1),
    ],
)
def test_a_curve_is_above_what_is_proven_only_with_all_of_its_interval(change, above):
    of = {"unit": Unit.IMAGE, "relation": Relation.ZERO_OUT, "attack": "nearest-sample", **change}
    proven = Proven(of["unit"], of["relation"], Tradeoff(mu=1.5))
    assert proven.curve.found(0.01) == pytest.approx(0.2043, abs=1e-4)
    assert len(list(proven.exceeded(of["attack"], MEASURED | change))) == above


def test_what_is_above_is_said_first(whole):
    found = json.loads(whole.attack.read_text())
    proven = Proven(Unit.IMAGE, Relation.ZERO_OUT, Tradeoff(mu=1.5))
    assert "ABOVE" not in attack_part(found, proven)["text"][0]
    found["attacks"]["nearest-sample"]["tpr_intervals"]["0.01"] = [0.3, 0.9]
    said = attack_part(found, proven)["text"][0]
    assert said.startswith("ABOVE WHAT IS PROVEN: nearest-sample finds at least 30.00% of the members at 1.0% false")
    assert "20.5 % to any attack" in said
    assert "ABOVE" not in attack_part(found, None)["text"][0]


def test_private_images_are_marked_and_everything_else_is_not(whole):
    text = read(whole.path)
    marked = text.index('class="gallery private"')
    assert text.index("generated images of class") < marked < text.index("real private images of class")
    assert text.count("nothing protects them here") == 1
    assert text.count('class="gallery private"') == 2
    assert marked < text.index("each left of its nearest real private image")


def test_each_generated_image_stands_beside_its_nearest_private_one():
    rng = torch.Generator().manual_seed(0)
    private = Images(torch.randint(256, (9, 1, 6, 6), dtype=torch.uint8, generator=rng))
    near = private.images[[4, 0, 7]].int()
    generated = torch.where(near < 128, near + 12, near - 12).to(torch.uint8)
    shown = _nearest(generated, private)
    assert shown["private"]
    assert "12.0 to 12.0 of 255 grey levels" in shown["caption"]
    (picture,) = shown["pictures"]
    sheet = base64.b64decode(picture["uri"].partition(",")[2])
    enlarged = cells(sheet, (1, 42, 42), 8, GAP_PX)[:6, :, ::7, ::7]  # small images are enlarged
    assert torch.equal(torch.from_numpy(enlarged[1::2]), private.images[[4, 0, 7]])
    assert torch.equal(torch.from_numpy(enlarged[::2]), generated)


def test_without_the_data_the_part_says_so(copy):
    lines = [line for line in copy.config.read_text().splitlines() if not line.startswith("root")]
    copy.config.write_text("\n".join(lines).replace("[data]", '[data]\nroot = "/gone"'))
    page = self_contained(read(copy.path))
    assert "The private images are not shown, since they are no longer where they lay" in page.text
    assert f"idpgan report {copy.path} --data-root DIR" in page.text
    assert not any("real" in picture["alt"] for picture in page.all("img"))
    assert any("generated" in picture["alt"] for picture in page.all("img"))


def test_other_images_are_not_shown_as_those_of_the_run(copy, whole, tmp_path):
    faces = shutil.copytree(whole.path.parent / "faces", tmp_path / "faces")
    for folder in faces.iterdir():
        first, *_, last = sorted(folder.iterdir())
        shutil.copyfile(last, first)
    page = self_contained(read(copy.path, data_root=faces))
    assert "those that lie there now are not those of the run" in page.text
    assert not any("real" in picture["alt"] for picture in page.all("img"))


def test_every_missing_part_names_the_command_that_makes_it(copy):
    for path in (copy.evaluation, copy.attack, copy.audit):
        path.unlink()
    page = self_contained(read(copy.path))
    for command in ("evaluate", "attack", "audit"):
        assert f"idpgan {command} {copy.path}" in page.text
    assert "no audit was made" in page.text


@pytest.mark.parametrize("content", ["{", '{"format": "idpgan attack 1"}', '{"format": "other"}', "[]"])
def test_a_damaged_result_is_a_missing_one(copy, content):
    copy.attack.write_text(content)
    page = self_contained(read(copy.path))
    assert f"idpgan attack {copy.path}" in page.text


def test_an_older_attack_without_curves_keeps_its_table(copy):
    found = json.loads(copy.attack.read_text())
    for result in found["attacks"].values():
        result.pop("roc", None)
    copy.attack.write_text(json.dumps(found))
    page = self_contained(read(copy.path))
    assert "run the attack again" in page.text
    assert "0.5" in page.text


def test_a_copy_without_state_reads_the_charges_of_the_release(copy):
    shutil.rmtree(copy.state_dir)
    page = self_contained(read(copy.path))
    assert "release/privacy.json, since state/ is not here" in page.text
    assert "it is not known that these are the run's own data" in page.text


def test_a_run_that_has_released_nothing_says_what_is_spent(copy):
    shutil.rmtree(copy.release)
    page = self_contained(read(copy.path))
    assert re.search(r"Charged so far: epsilon [\d.]+ at δ = 1e-05", page.text)
    assert f"idpgan train --resume {copy.path}" in page.text


def test_an_infinite_epsilon_is_the_first_thing_on_the_page(bare):
    text = read(bare.path)
    page = self_contained(text)
    accessible(page)
    stated = json.loads((bare.release / "privacy.json").read_text())["report"]
    alarm = text.index("Nothing is proven of this release: the proven epsilon is infinite.")
    assert text.index("do not give away") < alarm < text.index("<h1")
    assert f"Why: {stated['reason'].rstrip('.')}. Whoever" in page.text
    assert "∞" in page.text
    assert "idpgan attack" in page.text
    assert "so there is no guarantee to audit" in page.text


def test_every_text_of_a_page_is_escaped():
    bad = f'"><img src=x onerror=alert(1)>{NASTY}</script>&amp;'

    def nasty(*keys, **content):
        return dict.fromkeys(keys, bad) | content

    part = nasty(
        "heading", "missing", "command", "settings",
        name="a", text=[bad], facts=[(bad, bad)], notes=[bad],
        galleries=[nasty("heading", "caption", pictures=[nasty("alt", "label", uri="data:,")], private=True)],
        charts=[nasty("title", "caption", svg="<svg></svg>")],
        tables=[nasty("caption", head=(bad, bad), rows=[(bad, bad)])],
    )  # fmt: skip
    figure = nasty("name", "value", "sign", "delta", "unit", "basis")
    page = nasty("title", "subtitle", alarm=[bad], figures=[figure], why=[bad], parts=[part])
    parsed = Parsed(render(page))
    assert "script" not in {tag for tag, _ in parsed.elements}
    assert [picture["src"] for picture in parsed.all("img")] == ["data:,"]
    assert parsed.text.count(bad) == 30


def test_names_of_classes_folders_and_settings_are_text(whole, tmp_path):
    run = RunFolder(shutil.copytree(whole.path, tmp_path / f"run {NASTY}"))
    run.config.write_text(run.config.read_text() + f"# {NASTY}<img src=x>\n")
    page = self_contained(read(run.path))
    assert page.text.count(NASTY) > 5
    assert all(picture["src"].startswith("data:image/png;base64,") for picture in page.all("img"))


def test_a_publication_has_its_originals_errors_and_books(published):
    text = read(published)
    page = self_contained(text)
    accessible(page)
    stated = json.loads((published / "release" / "privacy.json").read_text())["report"]
    assert f"{stated['proven']['epsilon']:.4g}" in page.text
    assert [picture["alt"] for picture in page.all("img")] == [
        "6 released images",
        "the 6 originals, in the same places",
    ]
    assert text.index("6 released images") < text.index('class="gallery private"') < text.index("the 6 originals")
    books = json.loads((published.parent / "faces.ledger.json").read_text())["publications"]
    for publication in books:
        assert f"{publication['date'][:10]} {publication['date'][11:19]} UTC {publication['method']}" in page.text
    assert "All publications of the folder together: epsilon 4" in page.text
    mean = json.loads((published / "curator" / "report.json").read_text())["mean"]["mse"]
    assert f"mean squared error {mean:.3g}" in page.text
    assert write_report(published) == published / "curator" / "report.html"
    assert (published / "curator" / "report.html").read_text() == text


def test_a_publication_of_an_older_version_says_what_is_missing(published, tmp_path):
    out = shutil.copytree(published, tmp_path / "out")
    path = out / "curator" / "report.json"
    found = json.loads(path.read_text())
    del found["ledger"]
    path.write_text(json.dumps(found))
    (out / "curator" / "contact.png").write_bytes(b"no picture")
    page = self_contained(read(out))
    assert "An older version of idpgan wrote this folder" in page.text
    assert "contact.png cannot be read" in page.text


def test_nothing_but_an_earlier_report_is_written_over(copy):
    copy.report.write_text("<html>mine</html>")
    with pytest.raises(InputError, match="not a report of this version of idpgan"):
        write_report(copy.path)
    assert copy.report.read_text() == "<html>mine</html>"


@pytest.mark.parametrize("what", ["release", "nothing"])
def test_what_is_no_run_and_no_publication_is_refused(whole, what):
    with pytest.raises(InputError, match="neither a run nor the output"):
        write_report(whole.path / what)


def test_a_publication_takes_no_data_root(published, tmp_path):
    with pytest.raises(InputError, match="--data-root is for runs"):
        write_report(published, data_root=tmp_path)


@pytest.mark.parametrize("kind", _REQUIRED)
def test_every_kind_of_charge_is_put_in_words(kind):
    relation = Relation.ZERO_OUT if kind == "poisson-gaussian" else Relation.REPLACE_ONE
    values = {"sensitivity": 2, "categories": 3, "reason": "nothing is added"}
    event = Event(kind, Unit.IMAGE, relation, **{name: values.get(name, 0.5) for name in _REQUIRED[kind]})
    assert " images" in described(event)


def test_no_program_is_started_for_a_contact_sheet_that_is_none(monkeypatch):
    started = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: started.append(1) or Image.new("L", (8, 8)))
    with pytest.raises(OSError, match="cannot identify"):
        cells(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n", (1, 8, 8), 1, 2)
    assert started == []
    assert cells(png_bytes(torch.zeros(1, 8, 8, dtype=torch.uint8)), (1, 8, 8), 1, 2).shape == (1, 1, 8, 8)
