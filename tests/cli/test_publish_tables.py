"""Folders that have a table, and are published by it."""

import json

import pytest

from tests.cli.test_publish import fill


@pytest.fixture
def publishing(run, tmp_path):
    """Publish a folder; a later option wins over the usual one."""
    usual = ("--method", "lap", "--epsilon", 2, "--unit", "image", "--out", tmp_path / "out")
    return lambda folder, *arguments: run("publish", folder, *usual, *arguments)


def prepared(run, tmp_path):
    """What `idpgan prepare` makes of nine photos of two people; two of them are none, and keep their rows."""
    names = ("b/9.png", "b/1.png", "a/3.png", "a/4.png", "b/2.png", "a/5.png", "b/0.png", "b/7.png", "b/8.png")
    fill(tmp_path / "photos", names=names)
    for name in ("a/4.png", "b/2.png"):
        (tmp_path / "photos" / name).write_bytes(b"no picture")
    table = "\n".join(["file_name,person", *(f"{name},{'anna' if name < 'b' else 'bob'}" for name in names)])
    (tmp_path / "table.csv").write_text(table)
    words = ("--size", "16", "--grey", "--folders", "none", "--table", tmp_path / "table.csv")
    assert run("prepare", tmp_path / "photos", tmp_path / "ready", *words)[0] == 0
    return tmp_path / "ready", names


@pytest.mark.parametrize("names", [(), ("--keep-names",)])
def test_what_prepare_made_is_published_in_the_order_and_by_the_people_of_its_table(publishing, run, tmp_path, names):
    folder, _ = prepared(run, tmp_path)
    order = [line.split(",")[0] for line in (folder / "metadata.csv").read_text().splitlines()[1:]]
    code, said, _ = publishing(folder, "--json", *names)
    assert code == 0
    assert sorted(map(int, json.loads(said)["person"])) == [1, 2, 5, 6, 10]  # six rows of bob's
    report = json.loads((tmp_path / "out" / "curator" / "report.json").read_text())
    assert [row["original"] for row in report["images"]] == order
    assert len(order) == 9
    assert run("verify", tmp_path / "out" / "release")[0] == 0
    code, said, _ = run("recognize", tmp_path / "out", folder, "--attack", "pca-svm")
    assert code == 0
    assert "2 images were left out: null records" in said


def test_the_person_with_most_images_is_named(publishing, run, tmp_path):
    folder, _ = prepared(run, tmp_path)
    assert "the 6 of the person with most: 12" in publishing(folder, "--dry-run")[1]


def test_a_folder_that_sample_wrote_is_published_and_a_table_hides_no_file_of_a_folder_without_one(
    publishing, run, tmp_path, small_run
):
    faces = fill(tmp_path / "faces")
    assert run("sample", small_run("gaussian"), "--num", 12, "--out", tmp_path / "drawn")[0] == 0
    assert publishing(tmp_path / "drawn")[0] == 0
    (faces / "notes.csv").write_text("file_name\n")  # negative control: no table of images
    assert "notes.csv is not an image" in publishing(faces, "--dry-run", "--out", tmp_path / "more")[2]
