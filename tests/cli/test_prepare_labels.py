"""Tables of labels as people have them: any column names, photos without a label, and all mistakes told at once."""

import pytest
from PIL import Image

from idpgan.jobs import prepare as jobs
from idpgan.jobs.options import PrepareOptions


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
    keys = {"labels": table, "grey": True} | keys
    return jobs.prepare(photos, photos.parent / "out", PrepareOptions("28", **keys))


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
        jobs.prepare(photos, photos.parent / "out", PrepareOptions("28", folders="none"))


def test_blanks_and_numbers_of_pandas_are_written_in_one_way(photos):
    done = prepared(photos, ["file_name,age", "a/0.png,30.0", "b/1.png,nan", "a/2.png,<NA>"], only_labelled=True)
    assert rows(done) == ["file_name,age", "a/0.png,30"]
    assert done.unlabelled == 5
