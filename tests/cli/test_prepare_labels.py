"""Tables of labels as people have them: any column names, photos without a label, and all mistakes told at once."""

import json
import re
import unicodedata

import pytest
from PIL import Image

from idpgan.commands.prepare import PrepareOptions, prepare_photos


@pytest.fixture
def photos(tmp_path):
    """Six photos in two folders, a table beside them."""
    for number in range(6):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (40, 40), 30 * number).save(path)
    return tmp_path / "photos"


def prepared(photos, lines, **keys):
    table = photos.parent / "t.csv"
    table.write_text("\n".join(lines) + "\n")
    keys = {"table": table, "grey": True} | keys
    return prepare_photos(photos, photos.parent / "out", PrepareOptions("28", **keys))


def rows(done):
    return (done.out / "metadata.csv").read_text().splitlines()


TABLE = ["picture;age;mood", "a/0.png;30;glad", "b/1.png;40;", "a/4.png;50;sad"]


def test_columns_are_named_and_unlabelled_photos_are_left_out(run, photos):
    (photos.parent / "t.csv").write_text("\n".join(TABLE))
    arguments = ["--labels", photos.parent / "t.csv", "--file-column", "picture", "--label-column", "mood"]
    code, out, _ = run("prepare", photos, photos.parent / "out", "--size", 28, "--grey", *arguments, "--only-labelled")
    assert code == 0
    assert "2 of 2 photos are in" in out
    assert "Left out, without a label: 4 photos." in out
    assert (photos.parent / "out" / "metadata.csv").read_text() == "file_name,mood\na/0.png,glad\na/4.png,sad\n"
    assert not (photos.parent / "out" / "b").exists()


def test_without_the_flag_every_photo_has_a_row(photos):
    done = prepared(photos, TABLE, file_column="picture", label_column="mood")
    assert rows(done) == [
        "file_name,mood",
        "a/0.png,glad",
        "a/2.png,",
        "a/4.png,sad",
        "b/1.png,",
        "b/3.png,",
        "b/5.png,",
    ]
    assert done.unlabelled == 0


def test_people_may_stand_in_a_column_of_any_name(photos):
    lines = ["picture,who,mood", *(f"{'ab'[i % 2]}/{i}.png,p{i % 2},glad" for i in range(6))]
    with pytest.raises(ValueError, match=r"no column 'whom' of people\. Did you mean 'who'"):
        prepared(photos, lines, file_column="picture", person_column="whom")
    done = prepared(photos, lines, file_column="picture", label_column="mood", person_column="who")
    assert rows(done)[:3] == ["file_name,mood,person", "a/0.png,glad,p0", "a/2.png,glad,p0"]


def test_all_columns_and_people_are_kept_by_default(photos):
    lines = ["picture,person,mood", *(f"{'ab'[i % 2]}/{i}.png,p{i},{'glad' * (i < 3)}" for i in range(5))]
    done = prepared(photos, lines, file_column="picture", only_labelled=True)  # b/5.png lacks a person, and a label
    assert rows(done) == ["file_name,mood,person", "a/0.png,glad,p0", "a/2.png,glad,p2", "b/1.png,glad,p1"]


def test_all_duplicates_and_misses_are_one_error(run, photos):
    lines = ["photo,mood", "a/0.png,glad", "a/0.png,sad", "b/1.png,sad", "../x.png,glad", "b/1.png,glad"]
    lines += [f"c/{number}.png,sad" for number in range(12)]
    (photos.parent / "t.csv").write_text("\n".join(lines))
    arguments = ["--labels", photos.parent / "t.csv", "--file-column", "photo"]
    code, _, err = run("prepare", photos, photos.parent / "out", "--size", 28, *arguments)
    assert code == 2
    assert err.count("\n") == 1
    for words in (
        "row 3 names a/0.png a second time; row 6 names b/1.png a second time",
        "row 5 has the file_name '../x.png', which is not a path below its folder",
        "c/0.png; c/1.png; c/10.png",
        "and 3 more, which are not photos in",
        "(13 of 15 rows)",
        "Write photo as a path below that folder",
    ):
        assert words in err
    assert not (photos.parent / "out").exists()


REFUSED = {
    "file column": ({"file_column": "picture"}, "one of them 'picture', but has file_name, mood"),
    "label column": ({"label_column": "moood"}, "has no column 'moood'. Did you mean 'mood'?"),
    "no label": ({"only_labelled": True}, "has a label for none of the 6 photos"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_columns_that_are_not_there(photos, name):
    keys, expected = REFUSED[name]
    with pytest.raises(ValueError, match=expected):
        prepared(photos, ["file_name,mood", "a/0.png,"], **keys)


def test_all_photos_that_would_get_one_name_are_told(photos):
    for name in ("a/0.bmp", "b/3.jpg"):
        Image.new("L", (40, 40)).save(photos / name)
    with pytest.raises(ValueError, match=r"a/0.bmp and a/0.png would both become a/0.png; b/3.jpg and b/3.png"):
        prepare_photos(photos, photos.parent / "out", PrepareOptions("28", folders="none"))


def test_blanks_and_numbers_of_pandas_are_written_in_one_way(photos):
    done = prepared(photos, ["file_name,age", "a/0.png,30.0", "b/1.png,nan", "a/2.png,<NA>"], only_labelled=True)
    assert rows(done) == ["file_name,age", "a/0.png,30"]
    assert done.unlabelled == 5


# Folders in folders, and shots in two files -----------------------------------------------------------------------


@pytest.fixture
def years(tmp_path):
    """Three years, in each of them folders of people, who come again."""
    for year, people in (("2019", "abc"), ("2020", "bc"), ("2021", "cd")):
        for person in people:
            path = tmp_path / "photos" / year / person / "1.png"
            path.parent.mkdir(parents=True)
            Image.new("L", (40, 40), 10 * ord(person) % 256).save(path)
    return tmp_path / "photos"


@pytest.mark.parametrize("meaning", ["person", "label"])
def test_which_level_is_meant_is_asked(run, years, meaning):
    code, _, err = run("prepare", years, years.parent / "out", "--size", 28, "--folders", meaning)
    assert (code, err.count("\n")) == (2, 1)
    assert (
        f"which of them is a {meaning} is not said. Give --folders {meaning}:1 (3 there: 2019, 2020, 2021), or" in err
    )
    assert f"{meaning}:2 (4 there: a, b, c, ...), or a table with --table." in err
    assert not (years.parent / "out").exists()


@pytest.mark.parametrize(("folders", "expected"), [("person:1", "2019"), ("person:2", "a")])
def test_the_level_that_is_meant_names_people(years, folders, expected):
    done = prepare_photos(years, years.parent / "out", PrepareOptions("28", folders=folders))
    assert rows(done)[:2] == ["file_name,person", f"2019/a/1.png,{expected}"]
    assert len({row.split(",")[1] for row in rows(done)[1:]}) == int(folders[-1]) + 2  # 3 years, 4 people


def test_one_level_needs_no_number(photos):
    assert rows(prepare_photos(photos, photos.parent / "out", PrepareOptions("28", folders="label")))[1] == "a/0.png,a"


LEVELS = {
    "too deep": ("person:3", lambda root: None, "lies beside the subfolders that --folders person:3 reads"),
    "photo beside": ("person:2", lambda root: picture(root / "2019" / "x.png"), "2019/x.png lies beside"),
    "empty folder": ("label:2", lambda root: (root / "2020" / "e").mkdir(), "2020/e holds no photo"),
    "no level": ("person:0", lambda root: None, "--folders person:0 is unknown: label, person, none; or label:2"),
}


def picture(path):
    Image.new("L", (40, 40)).save(path)


@pytest.mark.parametrize("name", LEVELS)
def test_levels_that_do_not_fit(years, name):
    folders, spoil, expected = LEVELS[name]
    spoil(years)
    with pytest.raises(ValueError, match=expected):
        prepare_photos(years, years.parent / "out", PrepareOptions("28", folders=folders))


def test_the_readable_file_of_a_shot_is_taken(run, photos):
    for name in ("a/0.CR2", "b/1.dng", "b/3.heic", "b/lone.nef"):
        (photos / name).write_bytes(b"II*\0raw")
    code, out, _ = run("prepare", photos, photos.parent / "out", "--size", 28, "--folders", "none")
    assert code == 0
    assert "6 of 7 photos are in" in out
    assert "raw files beside a readable one of the same shot: a/0.CR2, b/1.dng, b/3.heic (3 in all)." in out
    assert "b/lone.png is not a picture that can be read here; convert it to JPEG or PNG" in out


def test_a_preview_is_not_taken_for_a_raw_photo(photos):
    """Pillow opens such files as TIFF, and shows a picture of 160 x 120."""
    Image.new("L", (40, 40)).save(photos / "a" / "raw.dng", format="TIFF")
    done = prepare_photos(photos, photos.parent / "out", PrepareOptions("28", folders="none"))
    assert [name for name, _ in done.refused] == ["a/raw.png"]


def test_what_systems_leave_behind_is_counted(run, photos):
    for name in ("@eaDir/0.png", "a/#recycle/x.heic", ".thumbnails/deep/1.jpg", "a/@eaDir/notes.txt"):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(b"x")
    code, out, _ = run("prepare", photos, photos.parent / "out", "--size", 28, "--folders", "person")
    assert code == 0
    assert "6 of 6 photos are in" in out
    assert "what systems leave behind: #recycle (1), .thumbnails (1), @eaDir (1) photos." in out


# Tables of other programs, and who may read what is made -----------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_tables_of_the_parts_of_a_set_keep_people(photos, suffix):
    """As Hugging Face has them: each beside the files that it names."""
    photos.joinpath("a").rename(photos / "train")
    photos.joinpath("b").rename(photos / "test")
    for part, first in (("train", 0), ("test", 1)):
        names = [(f"{number}.png", "glad", f"p{number % 3}") for number in range(first, 6, 2)]
        text = "file_name,mood,person\n" + "".join(",".join(name) + "\n" for name in names)
        if suffix == "jsonl":
            keys = ("file_name", "mood", "person")
            text = "".join(json.dumps(dict(zip(keys, name, strict=True))) + "\n" for name in names)
        (photos / part / f"metadata.{suffix}").write_text(text)
    done = prepare_photos(photos, photos.parent / "out", PrepareOptions("28"))
    assert rows(done)[:2] == ["file_name,mood,person", "test/1.png,glad,p1"]
    assert len(rows(done)) == 7
    assert done.left_out == ()
    if suffix == "csv":
        (photos / "train" / "metadata.csv").write_text("file_name,mood\n0.png,glad\n")
        with pytest.raises(ValueError, match="must have the same columns"):
            prepare_photos(photos, photos.parent / "more", PrepareOptions("28"))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        *(("a\\0.png", "a/0.png"), ("A/0.PNG", "a/0.png"), ("b/1.CR2", "b/1.png"), ("a/0.jpg", "a/0.png")),
        ("1.PNG", "b/1.png"),
    ],
)
def test_the_nearest_photo_is_named(photos, name, near):
    with pytest.raises(ValueError, match=re.escape(f"{name} (did you mean {near}?)")):
        prepared(photos, ["file_name,mood", f"{name},glad"])


def test_bare_names_are_the_only_photos_of_that_name_in_subfolders(photos):
    done = prepared(photos, ["file_name,mood", "0.png,glad", "1.png,sad", "a/2.png,sad"])
    assert rows(done)[1:5] == ["a/0.png,glad", "a/2.png,sad", "a/4.png,", "b/1.png,sad"]


def test_a_bare_name_of_two_photos_is_refused_with_both(run, photos):
    picture(photos / "b" / "0.png")
    picture(photos / "b" / "2.png")
    (photos.parent / "t.csv").write_text("file_name,mood\n0.png,glad\n1.png,sad\n2.png,sad\na/2.png,sad\n")
    code, _, err = run("prepare", photos, photos.parent / "out", "--size", 28, "--table", photos.parent / "t.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "0.png, which is a/0.png or b/0.png" in err
    assert "2.png" not in err  # a/2.png has a row of its own, so 2.png is the other one


def test_a_photo_that_a_row_names_is_taken_by_no_other(photos):
    with pytest.raises(ValueError, match=r"names 0\.png, which is not a photo"):
        prepared(photos, ["file_name,mood", "a/0.png,glad", "0.png,sad"])


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_accents_in_a_table(photos, forms):
    table, disk = (unicodedata.normalize(form, "b/zo\u00eb.png") for form in forms)
    picture(photos / disk)
    assert f"{disk},glad" in rows(prepared(photos, ["file_name,mood", f"{table},glad"]))


def test_what_is_made_is_for_its_owner_alone(photos):
    done = prepare_photos(photos, photos.parent / "out", PrepareOptions("28", folders="person"))
    made = [done.out, *done.out.rglob("*")]
    assert len(made) == 1 + 2 + 6 + 2
    assert {oct(path.stat().st_mode & 0o777) for path in made} == {"0o700", "0o600"}


# What one side lacks, and when the folder is looked at --------------------------------------------------------------


def test_rows_without_a_photo_are_left_out_by_the_option_that_is_named(run, photos):
    table = ["file_name,mood", "a/0.png,glad", "c/9.png,sad", "A/2.png,sad", "b/1.png,sad"]
    with pytest.raises(ValueError, match=r"c/9\.png.* or leave rows without a photo out \(--skip-missing\)"):
        prepared(photos, table)
    arguments = ["--table", photos.parent / "t.csv", "--skip-missing", "--only-labelled"]
    code, out, _ = run("prepare", photos, photos.parent / "out", "--size", 28, *arguments)
    assert code == 0
    assert "Left out, rows without a photo: c/9.png, A/2.png (did you mean a/2.png?) (2 in all)." in out
    assert (photos.parent / "out" / "metadata.csv").read_text() == "file_name,mood\na/0.png,glad\nb/1.png,sad\n"


def test_photos_without_a_label_are_said_with_the_option(run, photos):
    (photos.parent / "t.csv").write_text("file_name,mood\na/0.png,glad\nb/1.png,\n")
    command = ["prepare", photos, photos.parent / "out", "--size", 28, "--table", photos.parent / "t.csv"]
    assert "Without a label or a row in the table: 5 photos (--only-labelled leaves them out)." in run(*command)[1]
    out = run(*command[:2], photos.parent / "less", *command[3:], "--only-labelled")[1]
    assert "Without a label or a row" not in out
    assert "Left out, without a label: 5 photos." in out
    out = run(*command[:2], photos.parent / "folders", "--size", 28, "--folders", "person")[1]
    assert "Without a label or a row" not in out


def test_rows_of_which_none_has_a_photo_are_refused_with_the_option_too(photos):
    with pytest.raises(ValueError, match="which is not a photo"):
        prepared(photos, ["file_name,mood", "c/9.png,sad"], skip_missing=True)


@pytest.mark.parametrize("labels", [True, False])
def test_photos_without_a_row_are_left_out_by_the_option_that_is_named(photos, labels):
    lines = ["file_name,person", "a/0.png,Anna", "b/1.png,Bea"]
    lines = [f"{line},{'mood' if line.startswith('file') else 'glad'}" for line in lines] if labels else lines
    with pytest.raises(ValueError, match=r"4 of 6 photos have none.*without a label or row out \(--only-labelled\)\."):
        prepared(photos, lines)
    done = prepared(photos, lines, only_labelled=True)
    assert [row.split(",")[0] for row in rows(done)] == ["file_name", "a/0.png", "b/1.png"]
    assert done.unlabelled == 4


WRONG = {  # metadata.csv -> the words
    "columns": (b"photo,mood\na/0.png,glad\n", "one of them 'file_name', but has photo, mood"),
    "rows": (b"file_name,mood\na/0.png\n", "row 2 has 1 values for 2 columns"),
    "Excel": (b"PK\3\4\x14 xl/workbook.xml", "is an Excel file: save it there as CSV"),
    "person twice": (b"file_name,person\na/0.png,Anna\n", "has a column 'person', and --folders person makes one too"),
}
DOORS = {
    "prepare": ["prepare", "photos", "out", "--size", "28", "--folders", "person"],
    "init": ["init", "photos"],
    "train": ["train", "digits-gaussian", "data.name=folder", "data.root=photos", "--out", "out"],
    "dry run": ["train", "digits-gaussian", "data.name=folder", "data.root=photos", "--dry-run"],
    "publish": ["publish", "photos", "--method", "pixelate", "--accept-unsound", "--out", "out"],
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_table_is_refused_before_the_folder_is_walked(run, photos, monkeypatch, name, door):
    if name == "person twice" and door != "prepare":
        return  # no --folders there
    content, expected = WRONG[name]
    (photos / "metadata.csv").write_bytes(content)
    monkeypatch.chdir(photos.parent)

    def walk(*_, **__):
        raise AssertionError("the folder is walked")

    monkeypatch.setattr("os.walk", walk)
    code, out, err = run(*DOORS[door])
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err
