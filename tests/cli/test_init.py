"""What `idpgan init` prints, `idpgan train` accepts; what it counts, it says that it counted."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idpgan.commands.init import InitOptions, config_for
from idpgan.config import build
from idpgan.data.config import DataConfig
from idpgan.data.load import describe
from idpgan.errors import InputError
from tests.data.layouts import save
from tests.portraits.made_head import made_head

FROZEN = Path(__file__).parents[1] / "release" / "frozen"


def fill(root, size=(28, 28), names=("0.png",), mode="L", num=60):
    """Write images under names that a number is put into."""
    for index in range(num):
        pixels = np.random.default_rng(index).integers(0, 256, (*size, 3), dtype=np.uint8)
        save(root / names[index % len(names)].format(index), Image.fromarray(pixels).convert(mode))
    return root


def metadata(root, header, row, num=60):
    fill(root, names=("{}.png",), num=num)
    lines = [header, *(f"{index}.png,{row(index)}" for index in range(num))]
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    return root


FOLDERS = {
    "classes": lambda root: fill(root, names=("a/{}.png", "b/{}.png")),
    "flat": lambda root: fill(root, names=("{}.png",), mode="RGB"),
    "train and test": lambda root: fill(
        root, names=("train/a/{}.png", "train/b/{}.png", "test/a/{}.png", "test/b/{}.png")
    ),
    "orl": lambda root: fill(root, (112, 92), [f"s{person}/{{}}.pgm" for person in range(1, 16)]),
    "mood": lambda root: metadata(root, "file_name,mood", lambda i: ["sad", "glad", ""][i % 3]),
    "attribute": lambda root: metadata(root, "file_name,glasses,hat", lambda i: f"{i % 2},{i % 3 % 2}"),
    "pandas": lambda root: metadata(root, "file_name,mood", lambda i: ["1.0", "0.0", "nan"][i % 3]),
    "people": lambda root: metadata(root, "file_name,text,person", lambda i: f"text {i},{i // 3}"),
    "few": lambda root: fill(root, names=("{}.png",), num=9),
}


def test_it_writes_a_new_file_where_one_is_named(run, tmp_path):
    code, printed, _ = run("init", "digits")
    code, out, _ = run("init", "digits", "--out", tmp_path / "c.toml")
    assert (code, out) == (0, f"{tmp_path / 'c.toml'} is written. Next: idpgan train {tmp_path / 'c.toml'}\n")
    assert (tmp_path / "c.toml").read_text(encoding="utf-8") == printed
    for taken, words in (("c.toml", "exists already"), (".", "exists already"), ("none/c.toml", "does not exist")):
        code, out, err = run("init", "digits", "--out", tmp_path / taken)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err
    assert (tmp_path / "c.toml").read_text(encoding="utf-8") == printed


def test_what_it_did_not_count_is_named(run, tmp_path):
    FOLDERS["flat"](tmp_path / "images")
    (tmp_path / "images" / "@eaDir").mkdir()
    (tmp_path / "images" / "@eaDir" / "0.png").write_bytes(b"x")
    code, out, err = run("init", tmp_path / "images")
    assert code == 0
    assert tomllib.loads(out)["data"]["num_images"] == 60
    assert "Left out, in hidden folders and what systems leave behind: @eaDir (1) image files." in err


@pytest.mark.parametrize("kind", FOLDERS)
def test_what_it_prints_train_accepts(run, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    FOLDERS[kind](tmp_path / "images")
    code, out, _ = run("init", "images")
    assert code == 0
    (tmp_path / "config.toml").write_text(out)
    data = tomllib.loads(out)["data"]
    assert data["root"] == str(tmp_path / "images")
    assert data["num_images"] == (30 if kind == "train and test" else 9 if kind == "few" else 60)
    assert "# init counted these in the folder." in out
    code, dry, err = run("train", "config.toml", "--dry-run")
    assert (code, err) == (0, "")
    shape = describe(build(DataConfig, data, "test"))
    unit = "person" if shape.has_people else "image"
    assert f"unit {unit}" in dry
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["images"]


def test_labels_that_nobody_can_read_are_refused_before_a_charge(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metadata(tmp_path / "images", "file_name,mood", lambda i: ["sad", "glad"][i % 2])
    (tmp_path / "config.toml").write_text(run("init", "images")[1])
    metadata(tmp_path / "images", "file_name,mood", lambda i: ["Sad", "nan", ""][i % 3])
    for more in (("--dry-run",), ("--out", "run", "--no-progress")):
        code, _, err = run("train", "config.toml", *more)
        assert (code, "no row at all" in err, "Column 'mood' has \"Sad\"" in err) == (2, True, True)
    metadata(tmp_path / "images", "file_name,mood", lambda i: ["NULL", "nan", ""][i % 3])
    code, _, err = run("init", "images")
    assert (code, "No row of" in err, "Fill the labels in" in err) == (2, True, True)
    assert not (tmp_path / "run").exists()
    assert not list(tmp_path.glob("*.ledger.json"))


PEOPLE = ["Anna", "anna", *"bcdefghijk"]


def test_folders_that_are_numbers_and_spellings_of_people_are_said(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "images", names=[f"{number}/{{}}.png" for number in (10, 9, 2)])
    assert tomllib.loads(run("init", "images")[1])["data"]["classes"] == ["2", "9", "10"]
    metadata(tmp_path / "album", "file_name,text,person", lambda i: f"text {i},{PEOPLE[i // 5]}")
    assert 'one person each? "Anna" = "anna"' in run("init", "album")[1]


def test_spellings_of_classes_are_said_and_kept(run, tmp_path):
    fill(tmp_path / "images", names=("cat/{}.png", "Cat/{}.png", "dog/{}.png", "dogs/{}.png"))
    _, text, err = run("init", tmp_path / "images")
    assert tomllib.loads(text)["data"]["classes"] == ["Cat", "cat", "dog", "dogs"]
    assert 'Classes written "Cat" = "cat" are taken as they are written.' in err
    assert "If two are one, put them into one folder, and call init again." in err


@pytest.mark.parametrize("kind", ["mood", "orl"])
def test_it_trains(run, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    FOLDERS[kind](tmp_path / "images")
    (tmp_path / "config.toml").write_text(run("init", "images")[1])
    code, _, _ = run("train", "config.toml", "--out", "run", "--no-progress")
    assert code == 0
    assert (tmp_path / "run" / "release" / "generator.safetensors").exists()


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("method", ["best", "diffusion"])
def test_faces_with_their_eyes_in_place_are_registered(run, tmp_path, method, aligned):
    """prepared.json says how the folder was made; a folder that was cut from the middle is not registered."""
    FOLDERS["mood"](tmp_path / "images")
    counts = {"eyes": 58, "face": 2, "middle": 0, "none": 0} if aligned else {}
    (tmp_path / "images" / "prepared.json").write_text(json.dumps({"aligned": counts}))
    code, out, _ = run("init", str(tmp_path / "images"), "--method", method)
    assert code == 0
    assert (tomllib.loads(out)["model"].get("drawing") == "faces") is aligned
    assert tomllib.loads(out)["method"].get("symmetric", False) is aligned


def test_portraits_are_moved_where_they_are_named_and_the_commands_are_told(run, tmp_path, monkeypatch):
    """people -> init --base -> train: no line is edited; the classes that smile are known by their names."""
    monkeypatch.setattr("idpgan.portraits.render.read_head", made_head)
    images = metadata(tmp_path / "images", "file_name,mood", lambda i: ["neutral", "happy"][i % 2])
    for path in images.glob("*.png"):
        Image.open(path).resize((32, 32)).save(path)
    (images / "prepared.json").write_text(json.dumps({"aligned": {"eyes": 60, "face": 0, "middle": 0, "none": 0}}))
    code, said, err = run("init", images, "--epsilon", 2)
    assert (code, "moved" in tomllib.loads(said)["model"]) == (0, False)
    assert f"idpgan people portraits --num 6000 --size 32, then idpgan init {images} --base portraits." in err
    assert run("people", tmp_path / "portraits", "-n", 42, "--size", 32)[0] == 0
    code, said, err = run("init", images, "--epsilon", 2, "--base", tmp_path / "portraits")
    assert (code, "idpgan people" in err) == (0, False)
    assert "train on portraits alone, which read no photo and cost no budget" in err  # of 60 photos
    table = tomllib.loads(said)
    assert table["data"]["public_root"] == str(tmp_path / "portraits")
    assert table["data"]["public_labels"] == {"happy": "smiling", "neutral": "not smiling"}
    assert (table["data"]["public_disjoint"], table["model"]["moved"]) == (True, 21)
    (tmp_path / "config.toml").write_text(said)
    assert run("train", tmp_path / "config.toml", "--out", tmp_path / "run", "--no-progress")[0] == 0
    assert run("verify", tmp_path / "run")[0] == 0
    assert run("init", images, "--base", tmp_path / "none")[0] == 2


def test_public_photos_without_labels_are_chosen_by_the_teacher(run, tmp_path, monkeypatch):
    """init -> init --base -> train -> verify: no line is edited, and the public folder says no class."""
    images = metadata(tmp_path / "images", "file_name,mood,person", lambda i: f"{['a', 'b'][i % 2]},p{i}")
    code, _, err = run("init", images)
    assert (code, "1,000 or more, labeled or not" in err) == (0, True)
    assert f"idpgan init {images} --base PUBLIC" in err
    public = tmp_path / "public"
    public.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (1000, 8, 8), dtype=np.uint8)
    for path in images.glob("*.png"):
        Image.open(path).resize((16, 16)).save(path)
    for number, picture in enumerate(pixels):
        Image.fromarray(picture).resize((16, 16)).save(public / f"{number}.png")
    code, said, err = run("init", images, "--base", public)
    assert (code, "--base PUBLIC" in err, "blobs" in err) == (0, False, False)
    table = tomllib.loads(said)
    assert (table["data"]["public_labels"], table["model"]["drawing"]) == ({}, "public-photos")
    assert table["data"]["public_disjoint"] is True  # of people it is their curator's word
    (tmp_path / "config.toml").write_text(said)
    quick = ["method.teacher_steps=3", "release.samples=10", "--no-progress"]
    assert run("train", tmp_path / "config.toml", *quick, "--out", tmp_path / "run")[0] == 0
    assert run("verify", tmp_path / "run/release")[0] == 0
    card = (tmp_path / "run/release/README.md").read_text()
    assert "500 public images of each class that the teacher agreed with: whoever is on one is seen" in card


@pytest.mark.parametrize(
    ("release", "kind"), [("config-digits-gaussian", "gaussian"), ("config-digits-dp-gan", "warp")]
)
def test_a_release_that_is_no_denoiser_is_named_with_what_it_serves_for(run, release, kind):
    code, said, err = run("init", "digits", "--base", FROZEN / release)
    assert (code, said, err.count("\n")) == (2, "", 1)
    assert f"is a release of {kind}, which has no denoiser to adapt" in err
    assert "model.simulator=generator" in err


@pytest.mark.parametrize("text", ["", "[]", "nothing"])
def test_a_report_of_prepare_that_cannot_be_read_is_refused(run, tmp_path, text):
    FOLDERS["mood"](tmp_path / "images")
    (tmp_path / "images" / "prepared.json").write_text(text)
    code, _, err = run("init", str(tmp_path / "images"))
    assert code == 2
    assert "prepared.json" in err
    assert "Prepare the folder again." in err


def test_another_method_is_suggested_when_it_is_asked_for(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FOLDERS["mood"](tmp_path / "images")
    (tmp_path / "config.toml").write_text(run("init", "images", "--method", "evolution")[1])
    quick = ["training.steps=2", "model.width=2", "training.batch_size=4", "release.samples=4", "--no-progress"]
    assert run("train", "config.toml", *quick, "--out", "run")[0] == 0
    assert run("init", "images", "--method", "wgan-gp")[0] == 2


def test_a_folder_goes_to_a_judged_classifier_without_a_guess(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "images", names=("cats/{}.png", "dogs/{}.png"), mode="RGB", num=200)
    code, config, err = run("init", "images", "--method", "scattering-linear")
    assert (code, "linear" in config, "portraits" in err, "public photos" in err) == (0, True, False, False)
    (tmp_path / "config.toml").write_text(config)
    assert run("train", "config.toml", "training.steps=4", "--no-progress", "--out", "run")[0] == 0
    assert run("verify", "run")[0] == 0
    code, out, _ = run("evaluate", "run", "--no-progress")
    assert (code, "accuracy" in out) == (0, True)


def test_a_classifier_without_a_template_or_classes_is_refused_with_the_way(run, tmp_path):
    flat = fill(tmp_path / "flat", names=("{}.png",), num=40)
    code, _, err = run("init", flat, "--method", "scattering-linear")
    assert (code, err.count("\n")) == (2, 1)
    assert "learns classes" in err
    assert "--label COLUMN" in err
    assert "reads no public image" in run("init", "digits", "--method", "scattering-linear", "--base", flat)[2]
    assert "--method scattering-linear" in run("init", "digits", "--method", "dp-sgd")[2]
    assert "idpgan people portraits" in run("init", flat, "--method", "traits")[2]


def test_photos_and_handwriting_begin_with_other_generators():
    """A network for strokes draws ghosts of faces."""
    options = InitOptions(method="idp-gan-aggregate")
    digits = config_for("digits", options).table
    assert (digits["model"]["generator"], digits["method"]["features"]) == ("warp", "random")
    with pytest.raises(InputError, match=r"has no template for such images.*idpgan init "):
        config_for("faces", options)


@pytest.mark.parametrize("name", ["digits", "mnist", "faces"])
def test_built_in_sources(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    template = config_for(name)
    (tmp_path / "config.toml").write_text(template.text)
    assert template.table["data"]["name"] == name
    assert tomllib.loads(template.text) == {key: dict(section) for key, section in template.table.items()}
    assert run("train", "config.toml", "--dry-run")[0] == 0


def test_settings_follow_what_is_declared_and_nothing_else(tmp_path):
    """Other pixels, and other labels of as many values, give the same text."""
    one = metadata(tmp_path / "a", "file_name,mood", lambda i: ["sad", "glad"][i % 2])
    other = metadata(tmp_path / "b", "file_name,mood", lambda i: ["sad", "glad"][i % 9 == 0])
    (other / "7.png").write_bytes(b"")
    texts = [config_for(str(root)).text.replace(str(root), "") for root in (one, other)]
    assert texts[0] == texts[1]
    assert config_for(str(one)).private_notes != config_for(str(other)).private_notes
    large = config_for(str(metadata(tmp_path / "c", "file_name,mood", lambda i: ["sad", "glad"][i % 2], num=61)))
    assert large.table["data"]["num_images"] == 61


REFUSED = {
    "sizes": (lambda root: [fill(root, (30 + i, 30), (f"{i}.png",), num=1) for i in range(4)], "have 4 sizes among 4"),
    "size": (lambda root: fill(root, (250, 250), ("{}.png",), num=3), "are 250 x 250 (height x width), and networks"),
    "many": (
        lambda root: fill(root, (28, 28), [f"n{i}/0.png" for i in range(65)], num=65),
        "has 65 subfolders, too many to be classes unless you say so: --label subfolders",
    ),
    "gone": (lambda root: None, "is neither a folder nor a built-in source"),
    "empty": (lambda root: root.mkdir(), "holds no images"),
    "damaged": (lambda root: [root.mkdir(), (root / "a.png").write_bytes(b"no")], "is not a picture"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_begin_with_is_one_line(run, tmp_path, name):
    make, expected = REFUSED[name]
    make(tmp_path / "images")
    code, out, err = run("init", tmp_path / "images")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


def test_more_than_64_classes_are_classes_where_somebody_says_so(tmp_path):
    """As subfolders, and in the column that `prepare --folders label` writes; else so many are people or texts."""
    names = [f"c{index // 20:02}" for index in range(1400)]
    fill(tmp_path / "images", (28, 28), [f"{name}/{index}.png" for index, name in enumerate(names)], num=len(names))
    said = config_for(str(tmp_path / "images"), InitOptions(label="subfolders")).table
    assert len(said["data"]["classes"]) == 70
    assert said["model"]["conditional"]
    for column, conditional in (("label", True), ("kind", False)):
        table = metadata(tmp_path / column, f"file_name,{column}", lambda i: names[i], num=len(names))
        assert config_for(str(table)).table["model"]["conditional"] is conditional
    with pytest.raises(InputError, match="has no subfolders"):
        config_for(str(FOLDERS["flat"](tmp_path / "flat")), InitOptions(label="subfolders"))


def test_a_config_of_the_package_is_repeated_with_its_comments():
    template = config_for("digits-gaussian")
    assert tomllib.loads(template.text) == template.table
    assert template.text.startswith("#")
    assert template.notes == (
        "gaussian took 7 seconds on one core for 7,620 faces of 48 x 48, 100 seconds with a teacher "
        "(docs/guide/which-method.md); train shows the time left.",
    )
    for options in ({"method": "gaussian"}, {"data_root": Path("x")}, {"epsilon": 1.0}):
        with pytest.raises(InputError, match="is a config of its own"):
            config_for("digits-gaussian", InitOptions(**options))


def test_budget_unit_and_label_are_asked_for_on_the_line(run, tmp_path, monkeypatch):
    """Nothing of it is edited by hand: the number of coefficients follows epsilon and unit."""
    monkeypatch.chdir(tmp_path)
    metadata(
        tmp_path / "images", "file_name,mood,hat,text,person", lambda i: f"{'ab'[i % 2]},{i % 3 % 2},t{i},{i // 2}"
    )

    def asked(*options):
        code, out, err = run("init", "images", *options)
        assert code == 0, err
        return tomllib.loads(out), err

    config, err = asked()
    assert (config["privacy"]["unit"], config["data"]["label"]) == ("person", "mood")
    assert "could make the classes: hat (--label COLUMN)" in err
    assert "few images of each: text." in err
    config, err = asked("--epsilon", 8, "--unit", "image", "--label", "hat")
    assert (config["privacy"]["epsilon"], config["privacy"]["unit"]) == (8.0, "image")
    assert "most_per_person" not in config["privacy"]
    assert config["data"]["label"] == "hat"
    assert config["data"]["split_by"] == "identity"
    assert "At epsilon 8, unit image, fewer than" in err
    assert "such images in all, " in err
    assert "mood (--label COLUMN)" in err
    config, err = asked("--label", "none")
    assert (config["data"]["classes"], config["model"]["conditional"]) == ([], False)
    assert "mood, hat (--label COLUMN)" in err


ASKED_WRONGLY = {
    "epsilon": (("--epsilon", "0"), "--epsilon 0 must be above 0"),
    "label": (("--label", "moods"), "Did you mean 'mood'?"),
    "no such unit": (("--unit", "person"), "the images name no person"),
    "unit of the method": (("--unit", "person", "--method", "diffusion"), "the images name no person"),
    "method": (("--method", "nothing"), "generator: wgan-gp, "),
    "not of own images": (("--method", "wgan-gp"), "idpgan init "),
}


@pytest.mark.parametrize("name", ASKED_WRONGLY)
def test_what_cannot_be_asked_for_is_one_line(run, tmp_path, name):
    options, expected = ASKED_WRONGLY[name]
    FOLDERS["mood"](tmp_path / "images")
    code, out, err = run("init", tmp_path / "images", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


def test_handwriting_is_said_on_the_line(run, tmp_path):
    FOLDERS["classes"](tmp_path / "images")
    asked = "init", tmp_path / "images", "--method", "idp-gan-aggregate"
    assert run(*asked)[0] == 2
    code, writing, _ = run(*asked, "--handwriting")
    assert (code, tomllib.loads(writing)["model"]["generator"]) == (0, "warp")
    assert writing.splitlines()[0].endswith("--handwriting")


def test_a_method_of_unit_image_is_not_proposed_for_people(run, tmp_path):
    FOLDERS["people"](tmp_path / "images")
    code, _, err = run("init", tmp_path / "images", "--method", "diffusion", "--unit", "person")
    assert (code, "diffusion protects one image" in err) == (2, True)
    assert run("init", tmp_path / "images", "--method", "diffusion")[0] == 0


@pytest.mark.parametrize("all_grey", [True, False])
def test_colors_that_prepare_did_not_see_are_not_proposed(tmp_path, all_grey):
    FOLDERS["mood"](tmp_path)
    fill(tmp_path, names=("{}.png",), mode="RGB")
    (tmp_path / "prepared.json").write_text(json.dumps({"all_grey": all_grey, "aligned": {}}))
    assert config_for(str(tmp_path)).table["data"]["channels"] == (1 if all_grey else 3)


@pytest.mark.parametrize("side", [16, 24])
def test_small_images_are_taken(run, tmp_path, monkeypatch, side):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "images", (side, side), ("a/{}.png", "b/{}.png"))
    (tmp_path / "config.toml").write_text(run("init", "images")[1])
    assert run("train", "config.toml", "--out", "run", "--no-progress")[0] == 0


@pytest.mark.parametrize(("people", "said"), [(("ann", "dee", "eva", "fay", "gus"), True), (tuple("vwxyz"), False)])
def test_classes_that_are_people_are_said_to_be(tmp_path, people, said):
    names = ("ann", "bo", "cy")
    root = metadata(tmp_path, "file_name,who,person", lambda i: f"{names[i % 3]},{people[i % 5]}")
    template = config_for(str(root))
    assert template.table["data"]["classes"] == ["ann", "bo", "cy"]
    assert ("a release calls them class-0" in template.text) is said
