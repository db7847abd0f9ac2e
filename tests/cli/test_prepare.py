"""From a folder of photos to a released generator, as a new user types it, and what is refused on the way."""

import json
import tomllib

import numpy as np
import pytest
from PIL import Image

from idpgan.commands.prepare import PrepareOptions, _Making, prepare_photos
from idpgan.data.config import DataConfig
from idpgan.data.load import load
from idpgan.files import file_lock
from idpgan.progress import silent


def prepare(source, out, size, progress=silent, **keys):
    return prepare_photos(source, out, PrepareOptions("x".join(map(str, size)), **keys), progress)


def photo(seed, width=41, height=33):
    rng = np.random.default_rng(seed)
    blocks = np.kron(rng.integers(0, 200, (3, 4, 3)), np.ones((11, 11, 1)))[:height, :width]
    return Image.fromarray((blocks + rng.integers(0, 50, (height, width, 3))).astype(np.uint8))


def write(root, people=12, each=4):
    """Photos of different sizes and formats, a folder for each person."""
    for person in range(people):
        (root / f"p{person:02}").mkdir(parents=True)
        for index in range(each):
            suffix = (".jpg", ".png", ".bmp", ".webp")[index % 4]
            photo(person * each + index, 30 + 3 * (index % 5)).save(root / f"p{person:02}" / f"{index}{suffix}")
    return root


def table(root, column="mood", values=("glad", "sad"), **extra):
    names = sorted(str(path.relative_to(root)) for path in root.rglob("*.*") if path.suffix != ".csv")
    return [f"file_name,{column}", *(f"{name},{values[i % len(values)]}" for i, name in enumerate(names))]


def rows(folder):
    return [line.split(",") for line in (folder / "metadata.csv").read_text().splitlines()]


def test_three_commands(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "photos")
    (tmp_path / "moods.csv").write_text("\n".join(table(source)) + "\n")
    (source / "p03" / "1.png").write_bytes(b"damaged")
    (source / "p04" / "copy.jpg").write_bytes((source / "p05" / "0.jpg").read_bytes())
    (source / "notes.txt").write_text("mine")

    code, out, err = run(
        "prepare", "photos", "ready", "--size", "28", "--grey", "--folders", "person", "--table", "moods.csv"
    )
    assert (code, err) == (0, "")
    assert "48 of 49 photos are in ready, 28 x 28 grey, with metadata.csv (file_name, mood, person)." in out
    assert "No face was looked for" in out
    assert "p03/1.png is not a picture that can be read here" in out
    assert "1 photos are exact copies of others and were kept, as in: p04/copy.png = p05/0.png" in out
    assert "1 of these groups lie under more than one person" in out
    assert "notes.txt" in out
    assert len(rows(tmp_path / "ready")) == 50
    assert ["p03/1.png", "", "p03"] in rows(tmp_path / "ready")  # keeps its place and its person
    assert ["p04/copy.png", "", "p04"] in rows(tmp_path / "ready")  # not in the table
    assert not (tmp_path / "ready" / "p03" / "1.png").exists()

    code, out, err = run("init", "ready")
    assert code == 0
    assert "images of each class: glad 24, sad 23" in err
    assert "glad 24" not in out
    (tmp_path / "config.toml").write_text(out)
    config = tomllib.loads(out)
    assert config["data"] == {
        "name": "folder", "root": str(tmp_path / "ready"), "num_images": 49, "num_people": 12, "image_size": 28,
        "channels": 1, "label": "mood", "classes": ["glad", "sad"], "split_by": "identity",
    }  # fmt: skip
    assert config["privacy"] == {"epsilon": 3.0, "delta": 1e-5, "unit": "person", "most_per_person": 5}

    code, dry, _ = run("train", "config.toml", "--dry-run")
    assert code == 0
    assert "# Cost: epsilon = 3 at delta = 1e-05 (unit person" in dry
    code, out, err = run("train", "config.toml", "--out", "run")
    assert code == 0
    assert "0 of 0" not in err  # nothing is trained
    assert (tmp_path / "run" / "release" / "samples.png").exists()


def test_positions_come_from_names_alone(tmp_path):
    """An unreadable photo changes its own row, and nothing else in the folder."""
    source = write(tmp_path / "photos")
    keys = {"grey": True, "folders": "person"}
    prepare(source, tmp_path / "before", (28, 28), **keys)
    (source / "p02" / "3.webp").write_bytes(b"")
    done = prepare(source, tmp_path / "after", (28, 28), **keys)
    assert done.refused == (("p02/3.png", "is empty; replace it"),)
    names = {path.relative_to(tmp_path / "before") for path in (tmp_path / "before").rglob("*.png")}
    kept = {path.relative_to(tmp_path / "after") for path in (tmp_path / "after").rglob("*.png")}
    assert {str(path) for path in names - kept} == {"p02/3.png"}
    assert rows(tmp_path / "before") == rows(tmp_path / "after")
    for name in kept:
        assert (tmp_path / "before" / name).read_bytes() == (tmp_path / "after" / name).read_bytes()
    assert json.loads((tmp_path / "after" / "prepared.json").read_text())["refused"][0]["file_name"] == "p02/3.png"


def test_nothing_but_pixels_is_kept(tmp_path):
    (tmp_path / "photos").mkdir()
    exif = Image.Exif()
    exif[0x010E] = "at home"
    photo(1).save(tmp_path / "photos" / "a.jpg", exif=exif, comment=b"secret", dpi=(72, 72))
    prepare(tmp_path / "photos", tmp_path / "out", (28, 28))
    with Image.open(tmp_path / "out" / "a.png") as image:
        assert (image.mode, image.size, dict(image.info), dict(image.getexif())) == ("RGB", (28, 28), {}, {})


def test_class_folders_become_a_column_and_a_folder_may_mean_nothing(run, tmp_path):
    source = write(tmp_path / "photos", people=3, each=8)
    assert run("prepare", source, tmp_path / "labels", "--size", "112x92", "--folders", "label")[0] == 0
    assert rows(tmp_path / "labels")[:2] == [["file_name", "label"], ["p00/0.png", "p00"]]
    with Image.open(tmp_path / "labels" / "p00" / "0.png") as image:
        assert image.size == (92, 112)
    code, out, _ = run("prepare", source, tmp_path / "none", "--size", "28", "--folders", "none", "--json")
    assert code == 0
    assert json.loads(out)["columns"] == []
    keys = {"num_images": 24, "image_size": (112, 92), "channels": 3}
    config = DataConfig(
        name="folder", root=tmp_path / "labels", label=("label",), classes=("p02", "p00", "p01"), **keys
    )
    assert load(config).private.labels.unique().tolist() == [0, 1, 2]


def test_the_tables_of_a_prepared_folder_are_taken_again(tmp_path):
    source = write(tmp_path / "photos")
    prepare(source, tmp_path / "large", (64, 64), folders="person")
    done = prepare(tmp_path / "large", tmp_path / "small", (28, 28), grey=True)
    assert done.columns == ("person",)
    assert done.left_out == ("prepared.json",)
    assert rows(tmp_path / "large") == rows(tmp_path / "small")


def test_semicolons_and_tabs(tmp_path):
    source = write(tmp_path / "photos", people=2)
    for sign in ";\t":
        (tmp_path / "t.csv").write_text("\n".join(table(source)).replace(",", sign), encoding="utf-8-sig")
        done = prepare(source, tmp_path / f"out{ord(sign)}", (28, 28), table=tmp_path / "t.csv")
        assert done.columns == ("mood",)


REFUSED = {  # what is added to the photos or said -> the words
    "not said": ({}, [], "has subfolders (p00, p01, p02, ...), and what they mean is not said. Give --folders label"),
    "two names": (
        {"p00/0.png": "p00/0.jpg"},
        ["--folders", "person"],
        "p00/0.jpg and p00/0.png would both become p00/0.png",
    ),
    "no file": (
        {"t.csv": ["file_name,mood", "p00/9.jpg,sad"]},
        ["--labels", "t.csv"],
        "t.csv names p00/9.jpg, which is no",
    ),
    "no table": ({}, ["--labels", "gone.csv"], "There is no file gone.csv"),
    "no names": (
        {"t.csv": ["photo,mood", "p00/0.jpg,sad"]},
        ["--labels", "t.csv"],
        "one of them 'file_name', but has photo, mood",
    ),
    "no person": (
        {"t.csv": ["file_name,person", "p00/0.jpg,Anna"]},
        ["--labels", "t.csv"],
        "p00/1.png has no person in t.csv (47 of 48",
    ),
    "empty person": (
        {"p99": None},
        ["--folders", "person"],
        "p99 holds no photo, but --folders person makes a person of it",
    ),
    "beside": (
        {"a.jpg": "p00/0.jpg"},
        ["--folders", "person"],
        "a.jpg lies beside the subfolders that --folders person reads",
    ),
    "both": (
        {"t.csv": ["file_name,person"]},
        ["--labels", "t.csv", "--folders", "person"],
        "has a column 'person', and --folders",
    ),
    "twice": (
        {"t.csv": ["file_name", "p00/0.jpg", "p00/0.jpg"]},
        ["--labels", "t.csv"],
        "row 3 names p00/0.jpg a second time",
    ),
    "size": (
        {},
        ["--folders", "none", "--size", "30"],
        "--size 30x30 is none that networks are built for: squares of 8, 12, 16",
    ),
    "words": ({}, ["--folders", "none", "--size", "large"], "--size 'large' is not a size"),
    "folders": ({}, ["--folders", "people"], "--folders people is unknown: label, person, none"),
    "crop": ({}, ["--folders", "none", "--crop", "face"], "--crop face is unknown: center, none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_one_line_and_nothing_is_written(run, tmp_path, monkeypatch, name):
    files, arguments, expected = REFUSED[name]
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "photos")
    for path, content in files.items():
        if content is None:
            (source / path).mkdir()
        elif isinstance(content, list):
            (tmp_path / path).write_text("\n".join(content) + "\n")
        else:
            (source / path).write_bytes((source / content).read_bytes())
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run("prepare", "photos", "out", *([] if "--size" in arguments else ["--size", "28"]), *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("place", "align"),
    [("metadata.csv/0.png", None), ("Prepared.json/0.png", None), ("prepared.jpg", None), ("prepared.png", "eyes")],
)
def test_photos_with_names_of_what_is_written_beside_them_are_one_line(run, tmp_path, place, align):
    """A folder metadata.csv ended in a raw error; the sheet of aligned photos replaced prepared.png."""
    write(tmp_path / "photos", 2, 2)
    (tmp_path / "photos" / place).parent.mkdir(exist_ok=True)
    photo(9).save(tmp_path / "photos" / place)
    options = ["--size", "8", "--folders", "none", *(["--align", align] if align else [])]
    code, out, err = run("prepare", str(tmp_path / "photos"), str(tmp_path / "out"), *options)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "is a name of what is written beside the photos. Rename it." in err
    assert not (tmp_path / "out").exists()


def test_such_names_below_the_top_are_the_photos_own(run, tmp_path):
    write(tmp_path / "photos", 2, 2)
    photo(9).save(tmp_path / "photos" / "p00" / "prepared.png")
    assert run("prepare", str(tmp_path / "photos"), str(tmp_path / "out"), "--size", "8", "--folders", "person")[0] == 0
    assert (tmp_path / "out" / "p00" / "prepared.png").exists()


def test_a_file_is_named_once_in_a_line(run, tmp_path):
    source = write(tmp_path / "photos", people=1)
    (source / "gone.png").symlink_to(tmp_path / "nowhere.png")
    out = run("prepare", source, tmp_path / "out", "--size", "28", "--folders", "none")[1]
    assert "gone.png cannot be decoded: No such file or directory; replace it\n" in out


def test_places_that_are_refused(run, tmp_path):
    source = write(tmp_path / "photos", people=1)
    keys = ("--size", "28", "--folders", "none")
    (tmp_path / "there").mkdir()
    (tmp_path / "empty").mkdir()
    for place, words in (("there", "exists already"), ("no/parent", "does not exist"), ("photos/in", "lies in")):
        code, _, err = run("prepare", source, tmp_path / place, *keys)
        assert code == 2
        assert words in err
    for place, words in (("gone", "There is no folder"), ("empty", "holds no photos")):
        code, _, err = run("prepare", tmp_path / place, tmp_path / "out", *keys)
        assert code == 2
        assert words in err


def test_no_readable_photo_is_fatal(run, tmp_path):
    (tmp_path / "photos").mkdir()
    for index in range(3):
        (tmp_path / "photos" / f"{index}.heic").write_bytes(b"not read here")
    code, _, err = run("prepare", tmp_path / "photos", tmp_path / "out", "--size", "28")
    assert code == 2
    assert "None of the 3 photos of" in err
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_interrupted_means_nothing(tmp_path, monkeypatch, error):
    source, made, make = write(tmp_path / "photos"), [], _Making.image

    def some(*arguments):
        made.append(make(*arguments))
        if len(made) == 20:
            raise error
        return made[-1]

    monkeypatch.setattr(_Making, "image", some)
    with pytest.raises(error if isinstance(error, type) else OSError):
        prepare(source, tmp_path / "out", (28, 28), folders="none")
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_progress_reaches_the_end(tmp_path):
    seen = []
    prepare(
        write(tmp_path / "photos"), tmp_path / "out", (28, 28), folders="none", progress=lambda *at: seen.append(at)
    )
    assert seen == [("photos", 16, 48), ("photos", 32, 48), ("photos", 48, 48)]


def test_photos_that_a_kill_left_behind_go_with_the_next_try(run, tmp_path):
    left = tmp_path / ".out.0123456789abcdef.part"
    other = tmp_path / ".other.0123456789abcdef.part"
    for folder in (left, other):
        folder.mkdir()
        (folder / "private.png").write_bytes(b"a face")
    asked = "prepare", write(tmp_path / "photos"), tmp_path / "out", "--size", "28", "--folders", "person"
    with file_lock(other):  # another process fills it
        assert run(*asked)[0] == 0
    assert (left.exists(), other.exists()) == (False, True)
