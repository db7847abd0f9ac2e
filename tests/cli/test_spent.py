"""``idpgan ledger``, and folders in each other: what is spent on an image adds up along its path, wherever that is."""

import dataclasses
import json
import os
import shutil
import tomllib

import pytest
import tomli_w

from idpgan.commands.publish import PublishOptions, publish_folder, quote
from idpgan.commands.stream import StreamOptions, answer_lines
from idpgan.config import dump_toml
from idpgan.data.faces import draw
from idpgan.data.images import png_bytes
from idpgan.methods import EARLIER
from idpgan.privacy import Event, Ledger, Relation, Unit
from idpgan.privacy.folder_ledger import FolderLedger, ledger_of
from idpgan.release.statement import read_privacy
from idpgan.removed import gone
from idpgan.run import RunFolder
from idpgan.training.config import build_config

SIDE = 28


@pytest.fixture
def faces(tmp_path, monkeypatch):
    """Twelve drawn faces of three people, a folder each, in the current directory."""
    monkeypatch.chdir(tmp_path)
    for number, image in enumerate(draw(12, SIDE, 1, seed=3).images):
        path = tmp_path / "faces" / f"s{number % 3 + 1}" / f"{number // 3 + 1}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png_bytes(image))
    return tmp_path / "faces"


def order(folder, out, **changes):
    return PublishOptions((str(folder),), out=out, **{"method": "lap", "epsilon": 1.0, "unit": "image"} | changes)


@pytest.fixture
def published(run, faces, tmp_path):
    """Publish a folder by the command; returns what it says."""

    def publishing(folder, out, **changes):
        options = {"method": "lap", "epsilon": 1, "unit": "image", "out": tmp_path / out} | changes
        code, said, error = run("publish", folder, *[part for key in options for part in (f"--{key}", options[key])])
        assert (code, error.count("idpgan: ")) == (0, 0), error
        return said

    return publishing


# Folders in each other -----------------------------------------------------------------------------------------


def test_an_image_of_a_nested_folder_has_cost_both_publications(published, faces):
    published(faces, "a")
    said = published(faces / "s1", "b")
    assert "1 publication, and 1 of folders around or inside it" in said
    assert "in total epsilon = 2 (unit image" in said
    said = published(faces, "c", epsilon=3)  # the ledger inside is not an image
    assert "2 publications, and 1 of folders around or inside it" in said
    assert "in total epsilon = 5 (unit image" in said
    assert "in total epsilon = 4 (unit image" in published(faces / "s2", "d", epsilon="1e-9")  # never s1's


def test_the_curators_report_has_the_same_total(published, run, faces, tmp_path):
    published(faces, "a")
    published(faces / "s1", "b")
    stated = json.loads((tmp_path / "b" / "curator" / "report.json").read_text())["ledger"]
    assert (stated["total"]["epsilon"], stated["total"]["on_other_ledgers"]) == (2.0, 1)
    assert run("report", tmp_path / "b")[0] == 0
    page = (tmp_path / "b" / "curator" / "report.html").read_text()
    assert "All publications of the folder, and of those around and inside it, together: epsilon 2" in page
    assert run("verify", tmp_path / "b" / "release")[0] == 0


def test_an_unsound_publication_of_a_folder_around_is_named(run, faces, tmp_path):
    blurred = ("--method", "blur", "--out", tmp_path / "a", "--accept-unsound")
    assert run("publish", faces, *blurred)[0] == 0
    code, said, _ = run("publish", faces / "s1", "--method", "lap", "--epsilon", 1, "--unit", "image", "--out", "b")
    assert code == 0
    assert "in total epsilon = infinite" in said
    assert "unsound before: blur" in said


def test_a_nested_ledger_that_cannot_be_read_ends_it_before_a_charge(run, faces):
    (faces / "s1.ledger.json").write_text("{}")
    asked = ("--method", "lap", "--epsilon", 1, "--unit", "image", "--out", "a")
    code, said, error = run("publish", faces, *asked)
    assert (code, said, error.count("\n")) == (2, "", 1)
    assert "s1.ledger.json cannot be used" in error
    assert sorted(os.listdir()) == ["faces"]


def test_of_two_publications_at_once_the_later_one_counts_both(faces, tmp_path, monkeypatch):
    """The one inside is charged while the one around it runs, after that one was priced."""
    inner, outer, write = order(faces / "s1", tmp_path / "a"), order(faces, tmp_path / "b"), FolderLedger.write

    def both(ledger):
        monkeypatch.setattr(FolderLedger, "write", write)
        publish_folder(inner)
        write(ledger)

    assert quote(outer).total.guarantee.epsilon == 1
    monkeypatch.setattr(FolderLedger, "write", both)
    assert publish_folder(outer).quote.total.guarantee.epsilon == 2
    for asked in (inner, outer):
        assert len(FolderLedger.read(asked.ledger_path, asked.name).publications) == 1
        assert quote(dataclasses.replace(asked, out=tmp_path / "c")).total.guarantee.epsilon == 3  # with a further one


FOLDER = ("data.name=folder", "data.root=faces", "data.num_images=12", 'data.classes=["s1", "s2", "s3"]')
PEOPLE = ("data.name=face-folder", "data.root=faces", "data.num_images=12", "data.num_people=3")
TRAIN = ("train", "digits-wgan-gp", "--dry-run", f"data.image_size={SIDE}", "data.channels=1")
ASKED = ("--out", "out", "--epsilon", 1, "--unit", "image", "--method", "lap")


@pytest.mark.parametrize(
    "command",
    [
        ("prepare", "faces", "out", "--size", 28, "--folders", "person", "--json"),
        (*TRAIN, *FOLDER),
        (*TRAIN, *PEOPLE, "model.conditional=false"),
        ("publish", "faces", *ASKED),
        ("publish", "faces", "--method", "blur", "--out", "out", "--accept-unsound"),
    ],
    ids=["prepare", "train folder", "train face-folder", "publish", "obfuscator"],
)
def test_ledgers_inside_a_folder_are_no_images(run, faces, command):
    publish_folder(order(faces / "s1", faces.parent / "first"))
    FolderLedger(ledger_of(faces / "s2" / "a"), "a").write()
    (faces / ".s1.ledger.json.0123456789abcdef.part").write_text("{")  # of a writer that was killed
    assert {"s1.ledger.json", ".s1.ledger.json.lock"} < set(os.listdir(faces))
    code, said, error = run(*command)
    assert code == 0, error
    assert "ledger.json" not in said or command[0] == "publish"  # which names its own


# The command ---------------------------------------------------------------------------------------------------


def make_run(path, root, *events, contained=(), unit=Unit.IMAGE, **data):
    """Write a run folder with charges, whose release contains those of others."""
    table = {
        "data": {"name": "face-folder", "root": str(root), "num_images": 12, "num_people": 3, "image_size": SIDE}
        | {"channels": 1}
        | data,
        "model": {"generator": "gaussian", "conditional": False},
        "method": {"name": "gaussian"},
        "privacy": {"epsilon": 2.0, "delta": 1e-9, "unit": str(unit)},
    }
    listed = [{"method": "gaussian", "delta": 1e-9, "events": [event.to_json()]} for event in contained]
    config = build_config({**{name: dict(section) for name, section in table.items()}, "contained": listed}, "test")
    ledger = Ledger(unit, Relation.ZERO_OUT, owner=config.identity())
    made = RunFolder.create(path, dump_toml(config), {}, ledger=json.dumps(ledger.to_json()))
    ledger.path = made.ledger
    for event in events:
        ledger.charge(event)
    return made


def laplace(epsilon):
    return Event("laplace", Unit.IMAGE, Relation.ZERO_OUT, noise_multiplier=1 / epsilon)


@pytest.fixture
def spent(run):
    def asking(*arguments):
        code, said, error = run("ledger", *arguments, "--json")
        assert (code, error) == (0, "")
        return json.loads(said)

    return asking


def totals(found):
    return {(each["unit"], each["relation"]): each["epsilon"] for each in found["totals"]}


def test_all_that_is_found_is_listed_and_added_up(published, spent, faces, tmp_path):
    published(faces, "a")
    published(faces / "s1", "b", epsilon=2)
    published(faces / "s2", "c", epsilon=1.5)
    make_run(tmp_path / "runs" / "first", "faces", laplace(0.25), laplace(0.25))
    make_run(tmp_path / "second", faces / "s1", laplace(4.0))
    answer_lines(["3\n", "0\n"], StreamOptions(0.5, 20, state=tmp_path / "faces.state"), lambda _: None)
    found = spent(faces)
    assert sorted((each["kind"], each["unit"], each["epsilon"]) for each in found["spending"]) == [
        ("publication", "image", 1.0),
        ("publication", "image", pytest.approx(1.5, rel=1e-3)),
        ("publication", "image", 2.0),
        ("run", "image", pytest.approx(0.5)),
        ("run", "image", pytest.approx(4.0)),
        ("stream", "event", 0.5),
    ]
    # the charges of both relations: what holds for an image that changes holds for one that goes
    assert totals(found) == pytest.approx({("image", "zero-out-one"): 3 + 4.5}, rel=1e-3)
    assert [each["publications"] for each in found["totals"]] == [4]
    assert totals(spent(faces / "s2")) == pytest.approx({("image", "zero-out-one"): 2.5 + 0.5}, rel=1e-3)


def test_a_broken_run_on_other_images_is_no_matter(spent, faces, tmp_path):
    shutil.copytree(faces, tmp_path / "faces2")
    make_run(tmp_path / "runs" / "other", tmp_path / "faces2", laplace(1.0)).ledger.write_text("{}")
    assert spent(faces)["remarks"] == []


OLD = {  # [method] and [privacy] of runs that 0.3.0 left unfinished
    "idp-gan-local": ({"projection": "dct", "coefficients": 4}, {"epsilon": 2.0, "delta": 1e-6}),
    "hybrid": ({"aggregate": {"moments": 4, "fourier": 8}}, {"epsilon": 2.0, "delta": 1e-6}),
}


@pytest.mark.parametrize("method", EARLIER)
def test_what_a_method_that_went_has_spent_counts_and_its_run_does_not_go_on(run, spent, faces, method):
    made, (own, privacy) = make_run(faces.parent / "runs" / "old", faces, laplace(1.5)), OLD[method]
    table = {
        "data": tomllib.loads(made.config.read_text())["data"],
        "model": {"conditional": False, "temperature": 1.0},
    }
    made.config.write_text(tomli_w.dumps({**table, "method": {"name": method, **own}, "privacy": privacy}))
    found = spent(faces)
    assert (found["remarks"], totals(found)) == ([], pytest.approx({("image", "zero-out-one"): 1.5}, rel=1e-3))
    assert [each["method"] for each in found["spending"]] == [method]
    code, said, error = run(
        "ledger", faces, "--limit", 9, "--delta", 1e-6, "--json"
    )  # written there with its plan: 0.3.0 may go on
    assert (code, error) == (0, "")
    assert 1.9 < json.loads(said)["limits"][0]["spent"] <= 2.01
    line = gone(f'method.name = "{method}"')
    for command in (("train", "--resume"), ("report",), ("attack",), ("audit",)):
        code, said, error = run(*command, made.path)
        assert (code, said, error) == (2, "", f"idpgan: {line}\n")


@pytest.mark.parametrize("others", [0, 1, 2])
def test_a_stream_of_whomever_is_in_no_total_and_that_is_said(run, spent, faces, tmp_path, others):
    """One of another subject beside the folder was counted as the folder's, and two were added up."""
    make_run(tmp_path / "runs" / "first", faces, laplace(1.0))
    for number in range(others):
        answer_lines(["3\n"], StreamOptions(0.5, 20, state=tmp_path / f"visits{number}"), lambda _: None)
    found = spent(faces)
    assert totals(found) == pytest.approx({("image", "zero-out-one"): 1.0})
    assert len(found["spending"]) == 1 + others
    said = run("ledger", faces)[1]
    assert (f"NOT COUNTED: what streams cost ({others} found)" in said) == bool(others)
    assert f"Total, 1 of {1 + others} counted: " in said


def trained(faces, tmp_path, **changes):
    return make_run(tmp_path / "runs" / f"run{len(list(tmp_path.glob('runs/*')))}", faces, laplace(1.0), **changes)


HISTORIES = {  # what happens to a folder with a publication and a run, and what it has cost then: known, and said
    "nothing": (lambda at: None, "faces", 2.0, None),
    "trained twice": (lambda at: trained(at / "faces", at), "faces", 3.0, None),
    "asked through a link": (lambda at: (at / "link").symlink_to(at / "faces"), "link", 2.0, None),
    "asked for a folder inside": (lambda at: None, "faces/s1", 2.0, None),
    "asked for the folder around": (lambda at: None, ".", 2.0, None),
    "linked from another folder": (
        lambda at: ((at / "other").mkdir(), (at / "other" / "mine").symlink_to(at / "faces")),
        "other",
        2.0,
        None,
    ),
    "renamed": (lambda at: (at / "faces").rename(at / "photos"), "photos", 0.0, "whose ledger counts (charges: 1)"),
    "renamed with its ledger's folder": (lambda at: shutil.move(at / "faces", at / "new"), "new", 0.0, "images"),
    "copied": (lambda at: shutil.copytree(at / "faces", at / "copy"), "copy", 0.0, "copies of the folder"),
    "hard links": (
        lambda at: shutil.copytree(at / "faces", at / "copy", copy_function=os.link),
        "copy",
        0.0,
        "links to it and to its files",
    ),
    "trained on arrays of it": (
        lambda at: trained(at / "gone.npz", at),
        "faces",
        2.0,
        "gone.npz are no folder here: gone, or arrays. If they are of this folder, it cost them too.",
    ),
    "trained on arrays of it that are kept": (
        lambda at: ((at / "kept.npz").touch(), trained(at / "kept.npz", at)),
        "faces",
        2.0,
        "kept.npz are no folder here",
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_is_counted_or_said(run, spent, faces, tmp_path, name):
    happens, asked, expected, words = HISTORIES[name]
    publish_folder(order(faces, tmp_path / "a"))
    trained(faces, tmp_path)
    happens(tmp_path)
    found = spent(tmp_path / asked)
    assert totals(found).get(("image", "zero-out-one"), 0.0) == pytest.approx(expected, rel=1e-3)
    said = run("ledger", tmp_path / asked)[1]
    if words is None:
        assert "NOT COUNTED" not in said
    else:
        assert words in said


def test_it_says_what_it_cannot_know_and_writes_nothing(published, run, faces, tmp_path):
    published(faces, "a")
    before = sorted(tmp_path.rglob("*"))
    code, said, _ = run("ledger", faces)
    assert code == 0
    for words in (
        "publication",
        "counted: epsilon = 1 (unit image, replace-one)",
        "nothing here knows of it:\n  copies of the folder",
        "other machines",
        "moved or deleted",
        "in memory",
    ):
        assert words in said
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_without_anything_has_spent_nothing(run, spent, faces):
    found = spent(faces)
    assert (found["spending"], found["totals"]) == ([], [])
    assert "nothing was found." in run("ledger", faces)[1]


def test_a_run_is_found_through_links_and_from_another_directory(spent, faces, tmp_path, monkeypatch):
    make_run(tmp_path / "runs" / "relative", "faces", laplace(1.0))
    make_run(tmp_path / "elsewhere" / "deep" / "down", tmp_path / "link", laplace(2.0))
    (tmp_path / "link").symlink_to(faces)
    assert totals(spent("link")) == pytest.approx({("image", "zero-out-one"): 1.0})
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    assert totals(spent(faces)) == pytest.approx({("image", "zero-out-one"): 1.0})
    found = spent(faces, "--runs", tmp_path / "elsewhere", "--runs", tmp_path / "runs")
    assert totals(found) == pytest.approx({("image", "zero-out-one"): 3.0})


def test_runs_on_other_images_are_not_counted(spent, faces, tmp_path):
    shutil.copytree(faces, tmp_path / "faces2")
    make_run(tmp_path / "runs" / "other", tmp_path / "faces2", laplace(1.0))
    none = {"num_people": None, "channels": None, "image_size": None, "num_images": None}
    make_run(tmp_path / "runs" / "digits", tmp_path / "faces", laplace(1.0), name="digits", **none)
    make_run(tmp_path / "runs" / "mnist", tmp_path, laplace(1.0), name="mnist", **none)  # lies beside, is another set
    assert spent(faces)["spending"] == []
    assert totals(spent(tmp_path)) == pytest.approx({("image", "zero-out-one"): 2.0})


def test_a_run_that_cannot_be_read_is_named(spent, run, faces, tmp_path):
    broken = make_run(tmp_path / "runs" / "broken", faces, laplace(1.0))
    broken.ledger.write_text("{}")
    gone = make_run(tmp_path / "runs" / "gone", faces, laplace(1.0))
    gone.ledger.unlink()
    old = make_run(tmp_path / "runs" / "old", faces, laplace(1.0))
    old.config.write_text(old.config.read_text() + "\n[future]\nkey = 1\n")
    found = spent(faces)
    assert found["spending"] == []
    assert [each.startswith("NOT COUNTED: the run ") for each in found["remarks"]] == [True] * 3
    for words in ("runs/broken", "runs/gone", "its ledger is gone", "runs/old", "Unknown key"):
        assert words in " ".join(found["remarks"])
    assert run("ledger", faces)[1].count("NOT COUNTED") == 3


def test_images_that_a_run_took_as_public_are_named(spent, faces, tmp_path):
    make_run(tmp_path / "runs" / "x", faces, laplace(1.0), public_share=0.2, confirm_public=True)
    (remark,) = spent(faces)["remarks"]
    assert "took images of it as public" in remark


def test_a_run_without_its_state_is_known_by_its_release(run, spent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ("data.holdout_share=0", "training.steps=1", "training.tick_steps=1", "model.width=4")
    assert run("train", *settings, "method.moments=4", "method.fourier=8", "model.codes=4", "--out", "runs/a")[0] == 0
    config = tmp_path / "runs" / "a" / "config.toml"
    config.write_text(config.read_text().replace('name = "digits"', 'name = "mnist"\nroot = "data"', 1))
    (tmp_path / "data").mkdir()
    shutil.rmtree(tmp_path / "runs" / "a" / "state")
    proven = read_privacy(tmp_path / "runs" / "a" / "release" / "privacy.json").report.proven
    (row,) = spent("data")["spending"]
    assert (row["epsilon"], row["delta"]) == (pytest.approx(proven.epsilon), proven.delta)


def laplaces(*epsilons):
    return [laplace(epsilon) for epsilon in epsilons]


def test_what_a_release_contains_of_a_run_that_is_gone_counts(spent, run, faces, tmp_path):
    """It said 2: the charges of what the release was built on stood on no ledger that is found."""
    elsewhere = tmp_path / "gone" / "release" / "images"
    make_run(tmp_path / "runs" / "second", faces, laplace(2.0), contained=laplaces(3.0), public_root=str(elsewhere))
    found = spent(faces)
    assert sorted((row["kind"], row["epsilon"]) for row in found["spending"]) == [
        ("contained", pytest.approx(3.0)),
        ("run", pytest.approx(2.0)),
    ]
    assert totals(found) == pytest.approx({("image", "zero-out-one"): 5.0}, rel=1e-3)
    assert "contained" in run("ledger", faces)[1]
    other = {"public_root": str(elsewhere), "public_disjoint": True}
    make_run(tmp_path / "runs" / "third", faces, laplace(0.5), contained=laplaces(1.0), **other)
    assert totals(spent(faces)) == pytest.approx({("image", "zero-out-one"): 5.5}, rel=1e-3)  # declared to be of others


def test_what_a_release_contains_of_a_run_that_is_found_counts_once(spent, faces, tmp_path):
    first = make_run(tmp_path / "runs" / "first", faces, laplace(3.0))
    built = {"public_root": str(first.release / "images")}
    second = make_run(tmp_path / "runs" / "second", faces / "s1", laplace(2.0), contained=laplaces(3.0), **built)
    assert totals(spent(faces)) == pytest.approx({("image", "zero-out-one"): 5.0}, rel=1e-3)
    nested = {"public_root": str(second.release)}
    make_run(tmp_path / "runs" / "third", faces / "s1", laplace(1.0), contained=laplaces(2.0, 3.0), **nested)
    assert totals(spent(faces)) == pytest.approx({("image", "zero-out-one"): 6.0}, rel=1e-3)
    make_run(tmp_path / "runs" / "fourth", faces / "s1", laplace(0.5), contained=laplaces(0.25), **built)
    assert totals(spent(faces)) == pytest.approx({("image", "zero-out-one"): 6.75}, rel=1e-3)  # of another run there
    make_run(tmp_path / "runs" / "fifth", faces, laplace(0.5), contained=laplaces(2.0), **nested)
    assert totals(spent(faces)) == pytest.approx({("image", "zero-out-one"): 9.25}, rel=1e-3)  # read s1, this one all


def test_what_was_charged_for_people_counts_for_their_images(spent, run, faces, tmp_path):
    """The total of unit image said 1, and the same images had cost 4 for the people on them, unit person.

    And that of unit person said 4, and not a word of the charge for images.
    """
    make_run(tmp_path / "runs" / "image", faces, laplace(1.0))
    people = dataclasses.replace(laplace(4.0), unit=Unit.PERSON)
    make_run(tmp_path / "runs" / "person", faces, people, unit=Unit.PERSON, split_by="identity")
    found = spent(faces)
    # a person goes, and comes back with the image changed
    assert totals(found) == pytest.approx({("image", "zero-out-one"): 9.0, ("person", "zero-out-one"): 4.0}, rel=1e-3)
    assert [each["not_counted"] for each in found["totals"]] == [0, 1]
    assert (
        "; not counted: 1 of units that bound no person, with which the total is not known" in run("ledger", faces)[1]
    )


def test_an_unsound_charge_leaves_no_total_but_that_of_what_is_proven_beside(run, spent, faces, tmp_path):
    make_run(tmp_path / "runs" / "a", faces, Event.non_private("no proof", relation=Relation.ZERO_OUT))
    FolderLedger(ledger_of(faces), "faces").write()
    publish_folder(order(faces, tmp_path / "a"))
    found = spent(faces)
    assert set(totals(found).values()) == {"inf"}
    proven = [(each["publications"], each["epsilon"]) for each in found["totals_of_proven"]]
    assert proven == [(1, next(row["epsilon"] for row in found["spending"] if row["epsilon"] != "inf"))]
    said = run("ledger", faces)[1]
    assert "Total, 2 of 2 counted: epsilon = infinite" in said
    assert f"Without what proves nothing, 1 of 2 counted: epsilon = {proven[0][1]:.4g}" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "There is no folder nowhere"),
        (["faces", "--runs", "nowhere"], "There is no folder nowhere"),
        (["faces", "--ledger", "faces/s1/1.png"], "cannot be used"),
        (["faces/s1/1.png"], "There is no folder"),
    ],
)
def test_bad_input_is_one_line(run, faces, arguments, words):
    code, said, error = run("ledger", *arguments)
    assert (code, said, error.count("\n")) == (2, "", 1)
    assert words in error


def test_no_path_is_cut_and_what_is_not_counted_is_a_list(published, run, faces, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    published(faces, "a")
    said = run("ledger", faces)[1].splitlines()
    assert f"              {tmp_path / 'faces.ledger.json'}" in said
    assert said[said.index("Not counted, because nothing here knows of it:") :][2] == "  other machines"
    found = json.loads(run("ledger", faces, "--json")[1])
    assert found["unknown"].startswith("Not known here: copies of the folder")
    assert "; other machines; " in found["unknown"]
