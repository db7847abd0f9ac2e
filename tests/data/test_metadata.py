"""Folders with a metadata.csv, as `idpgan prepare` writes them and Hugging Face's ImageFolder has them."""

import unicodedata

import numpy as np
import pytest
import torch
from PIL import Image

from idpgan.data.config import DataConfig
from idpgan.data.load import describe, load
from idpgan.data.metadata import class_values, read_landmarks, read_rows, read_table
from idpgan.errors import ConfigError, DataError
from tests.data.layouts import declared, save

KEYS = {"label": ("mood",), "classes": ("sad", "glad")}
PUBLIC = {"num_images": 20, "num_people": 10, "image_size": (4, 5), "channels": 1}


def pixels(index):
    return np.random.default_rng(index).integers(0, 256, (4, 5), dtype=np.uint8)


def write(root, rows=20, header="file_name,mood,glasses,person", row=None):
    """Write images and their rows, backwards; ``row`` changes the values of a row by its number."""
    lines = [header]
    for index in reversed(range(rows)):
        values = [f"{index % 3}/{index}.png", ("glad", "sad")[index % 2], str(index // 2 % 2), f"p{index // 2}"]
        save(root / values[0], Image.fromarray(pixels(index)))
        lines.append(",".join((row or {}).get(index, values)))
    (root / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


def everybody(split):
    return [image for part in (split.public, split.private, split.holdout, split.test) for image in part.images]


def test_rows_are_positions_with_labels_and_people(tmp_path):
    config = declared(write(tmp_path), **KEYS)
    assert config == DataConfig(name="folder", root=tmp_path, **KEYS, **PUBLIC)
    split = load(config)
    assert split.classes == ("sad", "glad")
    assert split.shape == describe(config)
    order = {pixels(index).tobytes(): index for index in range(20)}
    for part in (split.private, split.holdout, split.test):
        index = torch.tensor([order[image.numpy().tobytes()] for image in part.images])
        assert torch.equal(part.labels, (index + 1) % 2)
        assert torch.equal(part.identities, 9 - index // 2)  # people are numbered as the rows name them
        assert part.null is None


def test_identity_split_shares_nobody(tmp_path):
    split = load(declared(write(tmp_path), **KEYS, split_by="identity", holdout_share=0.2))
    parts = [set(part.identities.tolist()) for part in (split.private, split.holdout, split.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 10
    assert split.shape.has_people


def test_attributes_make_classes_as_those_of_celeba(tmp_path):
    write(tmp_path, header="file_name,mood,glasses,person", row={7: ["1/7.png", "sad", "maybe", "p3"]})
    config = declared(tmp_path, label=("glasses",))
    split = load(config)
    assert split.classes == ("no glasses", "glasses")
    assert describe(config).classes == split.classes
    assert (
        sum(int(part.null.sum()) for part in (split.private, split.test, split.holdout) if part.null is not None) == 1
    )
    assert "has neither 1 nor 0" in split.refused[0].reason
    names = ("TRUE", "-1", "yes", "0")
    rows = {index: [f"{index % 3}/{index}.png", "1", names[index % 4], f"p{index // 2}"] for index in range(20)}
    both = load(declared(write(tmp_path, row=rows), label=("mood", "glasses")))
    assert both.classes == ("no mood, no glasses", "mood, no glasses", "no mood, glasses", "mood, glasses")
    order = {pixels(index).tobytes(): index for index in range(20)}
    for image, label in zip(both.private.images, both.private.labels.tolist(), strict=True):
        assert label == 1 + 2 * (order[image.numpy().tobytes()] % 2 == 0)


def test_other_values_and_blanks_are_null_records_that_move_nobody(tmp_path):
    config = declared(write(tmp_path), **KEYS)
    before = load(config)
    rows = {3: ["0/3.png", "", "1", "p1"], 12: ["0/12.png", "furious", "0", "p6"]}
    write(tmp_path, row=rows)
    (tmp_path / "2" / "5.png").write_bytes(b"")
    (tmp_path / "1" / "10.png").unlink()
    after = load(config)
    assert len(after.refused) == 4
    assert "has none of data.classes in the column mood" in "".join(file.reason for file in after.refused)
    changed = sum(not torch.equal(a, b) for a, b in zip(everybody(before), everybody(after), strict=True))
    assert changed == 4
    for old, new in zip((before.private, before.test), (after.private, after.test), strict=True):
        assert torch.equal(old.identities, new.identities)


@pytest.mark.parametrize(
    ("keys", "fits", "said"),
    [
        ({"classes": ("furious",)}, "furious", 'data.classes = ["furious"], but 18 of 20 rows of'),
        ({"classes": None}, "1.0", "asks for columns of 1 and 0, but 18 of 20 rows of"),
    ],
)
def test_labels_are_private_so_that_few_that_fit_are_a_warning_and_none_at_all_is_refused(
    tmp_path, caplog, keys, fits, said
):
    row = {index: [f"{index % 3}/{index}.png", fits, "1", f"p{index // 2}"] for index in (0, 1)}
    row |= {2: ["2/2.png", "nan", "1", "p1"]}
    config = DataConfig(name="folder", root=write(tmp_path, row=row), **{**KEYS, **PUBLIC, **keys})
    describe(config)
    assert said in caplog.text
    assert "have other values or none (1 blank) and stand as null records" in caplog.text
    split = load(config)
    assert caplog.text.count("stand as null records") == 1
    assert "do not meet" not in caplog.text
    assert sum(int((~part.is_null).sum()) for part in (split.private, split.holdout, split.test)) == 2
    assert split.private.identities is not None
    write(tmp_path)
    for run in (describe, load):
        with pytest.raises(DataError, match=r"no row at all of .* has such a label") as refused:
            run(config)
        assert """Column 'mood' has "glad", "sad": are data.classes right?""" in str(refused.value)


def test_rows_without_a_label_ask_for_no_other_classes(tmp_path, caplog):
    """Blanks alone are no sign that data.classes are wrong."""
    config = declared(write(tmp_path, row={3: ["0/3.png", "", "1", "p1"], 5: ["2/5.png", "nan", "1", "p2"]}), **KEYS)
    load(config)
    assert "2 of 20 rows of" in caplog.text
    assert "have no label and stand as null records." in caplog.text
    assert "are data.classes right?" not in caplog.text


@pytest.mark.parametrize("keys", [{"label": ("glasses",)}, {"label": ("glasses",), "classes": ("0", "1")}])
@pytest.mark.parametrize("blank", ["", "nan", "NA", "<NA>"])
def test_a_table_by_pandas_has_the_labels_of_one_by_hand(tmp_path, keys, blank, caplog):
    """pandas writes a column of whole numbers as floats where one is missing."""

    def rows(one, zero, missing):
        row = {i: [f"{i % 3}/{i}.png", "sad", (zero, one)[i // 2 % 2], f"p{i // 2}"] for i in range(20)}
        return {**row, 5: ["2/5.png", "sad", missing, "p2"]}

    by_hand = load(declared(write(tmp_path / "hand", row=rows("1", "0", "")), **keys))
    by_pandas = load(declared(write(tmp_path / "pandas", row=rows("1.0", "0.0", blank)), **keys))
    assert by_pandas.digest == by_hand.digest
    assert by_pandas.classes == by_hand.classes
    assert "1 of 20 rows" in caplog.text
    assert sum(int(part.is_null.sum()) for part in (by_pandas.private, by_pandas.holdout, by_pandas.test)) == 1


def test_a_blank_is_a_class_only_where_it_is_declared(tmp_path):
    row = {index: [f"{index % 3}/{index}.png", ("NA", "DE")[index % 2], "1", f"p{index // 2}"] for index in range(20)}
    root = write(tmp_path, row=row)
    assert class_values(["DE", "", "7", "10"]) == ["10", "7", "DE"]
    assert class_values(["7", "10", "007"]) == ["007", "7", "10"]
    split = load(declared(root, label=("mood",), classes=("DE", "NA")))
    assert not split.private.is_null.any()


def test_people_of_several_spellings_are_said_and_kept_apart(tmp_path, caplog):
    names = ["Anna", "anna", "ANNA ", "Ben", "Zoe"]
    row = {index: [f"{index % 3}/{index}.png", "sad", "1", names[index % 5]] for index in range(20)}
    split = load(declared(write(tmp_path, row=row), **KEYS, num_people=5))
    assert "people written" in caplog.text
    alike = caplog.text.split("people written ")[1].split(" are taken")[0].split("; ")
    assert [sorted(group.split(" = ")) for group in alike] == [['"ANNA"', '"Anna"', '"anna"']]
    assert len(split.private.identities.unique()) == 5


def test_one_name_of_a_column_is_a_list_of_one_and_survives_the_run_folder(tmp_path):
    from idpgan.config import build, dump_toml, load_table

    config = build(DataConfig, {"name": "folder", "label": "mood", "classes": ["a", "b"]}, "test")
    assert config.label == ("mood",)
    assert config.attributes == ()
    (tmp_path / "c.toml").write_text(dump_toml(config))
    assert build(DataConfig, load_table(tmp_path / "c.toml"), "test") == config
    with pytest.raises(ConfigError, match="Name one column as label, or leave classes out"):
        build(DataConfig, {"name": "folder", "label": ["a", "b"], "classes": ["x"]}, "test")


def test_undeclared_facts_are_asked_for_in_one_line(tmp_path):
    write(tmp_path)
    with pytest.raises(DataError) as caught:
        describe(DataConfig(name="folder", root=tmp_path, label=("mood",)))
    assert 'Classes of \'mood\' (data.classes): "glad", "sad".' in str(caught.value)
    with pytest.raises(DataError, match=r"Columns of labels: mood, glasses \(data.label\)"):
        describe(DataConfig(name="folder", root=tmp_path))
    assert load(declared(tmp_path)).classes == ()


def test_public_images_may_have_a_metadata_file_of_their_own(tmp_path):
    config = declared(write(tmp_path / "private"), **KEYS)
    rows = {index: [f"{index % 3}/{index}.png", "furious", "1", f"p{index // 2}"] for index in range(5)}
    write(tmp_path / "public", rows=11, row=rows)
    config = config.model_copy(update={"public_root": tmp_path / "public"})
    split = load(config)
    assert len(split.public) == describe(config).sizes.public == 6
    assert split.public.classes == split.classes
    assert torch.equal(split.public.labels.bincount(), torch.tensor([3, 3]))


REFUSED = {
    "column": ({"label": ("mod",)}, {}, r"no column 'mod' of labels. Did you mean 'mood'\?"),
    "person": ({}, {"header": "file_name,mood,person,glasses", "row": {4: ["1/4.png", "", "", "1"]}}, "row 17 has no"),
    "length": ({}, {"row": {4: ["1/4.png", "sad"]}}, "row 17 has 2 values for 4 columns"),
    "twice": ({}, {"row": {4: ["2/5.png", "sad", "1", "p2"]}}, "row 17 names 2/5.png a second time"),
    "outside": ({}, {"row": {4: ["../4.png", "sad", "1", "p2"]}}, r"'../4.png', which is not a path below"),
    "no name": ({}, {"row": {4: ["", "sad", "1", "p2"]}}, "row 17 has the file_name ''"),
    "header": ({}, {"header": "file,mood,glasses,person"}, "must begin with a line of column names, one of them"),
    "same column": ({}, {"header": "file_name,mood,mood,person"}, "has the column 'mood' twice"),
    "number": ({"num_images": 21}, {}, "data.num_images = 21, but .* holds 20"),
    "people": ({"num_people": 11}, {}, "data.num_people = 11, but .* holds 10"),
    "nobody": ({}, {"header": "file_name,mood,glasses,who"}, "has no column 'person'"),
    "no label": ({"label": ()}, {}, "data.label does not say which column"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_in_one_line_before_a_pixel_is_read(tmp_path, monkeypatch, name):
    keys, table, expected = REFUSED[name]
    config = DataConfig(name="folder", root=write(tmp_path, **table), **{**KEYS, **PUBLIC, **keys})
    monkeypatch.setattr("idpgan.data.image_files.decode", lambda *_: pytest.fail("an image was read"))
    for run in (describe, load):
        with pytest.raises(DataError, match=expected) as caught:
            run(config)
        assert "\n" not in str(caught.value)


def test_a_label_column_needs_a_metadata_file(tmp_path):
    save(tmp_path / "a" / "1.png", Image.fromarray(pixels(1)))
    with pytest.raises(DataError, match=r"has no metadata.csv with such columns"):
        describe(DataConfig(name="folder", root=tmp_path, label=("mood",)))


# Names of people ---------------------------------------------------------------------------------------------------

WHO = {"label": ("mood",), "classes": ("p3", "p1")}


def by_name(index):
    return [f"{index % 3}/{index}.png", f"p{index % 2 * 2 + 1}", "1", f"p{index // 2}"]


def test_classes_that_are_people_are_numbered_and_said_to_be(tmp_path, caplog):
    config = declared(write(tmp_path, row={index: by_name(index) for index in range(20)}), **WHO)
    split = load(config)
    assert split.classes == ("class-0", "class-1") == describe(config).classes
    assert split.shape == describe(config)
    order = {pixels(index).tobytes(): index for index in range(20)}
    for part in (split.private, split.test):
        index = torch.tensor([order[image.numpy().tobytes()] for image in part.images])
        assert torch.equal(part.labels, index % 2 ^ 1)  # labels and their order stay
    (said,) = {record.getMessage() for record in caplog.records if "seem to be people" in record.getMessage()}
    assert "data.keep_names = true" in said
    kept = load(config.model_copy(update={"keep_names": True}))
    assert kept.classes == ("p3", "p1")
    assert torch.equal(kept.private.labels, split.private.labels)


def test_as_many_classes_as_people_are_people(tmp_path):
    lines = [f"{index}.png,{'ab'[index % 2]},{'xy'[index % 2]}" for index in range(20)]
    for index in range(20):
        save(tmp_path / f"{index}.png", Image.fromarray(pixels(index)))
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,mood,person", *lines]))
    keys = {"label": ("mood",), "classes": ("a", "b")}
    assert describe(declared(tmp_path, **keys)).classes == ("class-0", "class-1")
    more = [line.replace(",x", ",z", 1) if index < 9 else line for index, line in enumerate(lines)]  # negative control
    (tmp_path / "metadata.csv").write_text("\n".join(["file_name,mood,person", *more]))
    assert describe(declared(tmp_path, **keys)).classes == ("a", "b")


def test_the_class_folders_of_a_known_face_database_are_people(tmp_path):
    for person in ("s1", "s2"):
        for index in range(10):
            save(tmp_path / "orl" / person / f"{index}.png", Image.fromarray(pixels(index)))
            save(tmp_path / "other" / f"{person}x" / f"{index}.png", Image.fromarray(pixels(index)))
            for part in ("train", "test"):
                save(tmp_path / "both" / part / person / f"{index}.png", Image.fromarray(pixels(index)))
    for place in ("orl", "both"):
        assert describe(declared(tmp_path / place, classes=("s1", "s2"))).classes == ("class-0", "class-1")
    assert describe(declared(tmp_path / "other", classes=("s1x", "s2x"))).classes == ("s1x", "s2x")


def test_class_folders_whose_files_repeat_a_name_are_people(tmp_path):
    for place, names in {"lfw": ("Ada_King", "Mary_W_Shelley"), "things": ("red_fox", "Arctic")}.items():
        for name in names:
            for index in range(10):
                save(tmp_path / place / name / f"{name}_{index:04}.png", Image.fromarray(pixels(index)))
    for index in range(20):  # negative control: files that do not repeat it
        save(tmp_path / "numbered" / "Ada_King" / f"{index}.png", Image.fromarray(pixels(index)))
    classes = {"lfw": ("Ada_King", "Mary_W_Shelley"), "things": ("Arctic", "red_fox")}
    assert describe(declared(tmp_path / "lfw", classes=classes["lfw"])).classes == ("class-0", "class-1")
    assert describe(declared(tmp_path / "things", classes=classes["things"])).classes == classes["things"]
    assert describe(declared(tmp_path / "numbered", classes=("Ada_King",))).classes == ("Ada_King",)


def test_the_column_label_is_the_default_where_classes_are_declared(tmp_path):
    write(tmp_path, header="file_name,label,glasses,person")
    assert load(declared(tmp_path, classes=("sad", "glad"))).classes == ("sad", "glad")
    assert load(declared(tmp_path, classes=())).classes == ()
    write(tmp_path, header="file_name,mood,glasses,person")
    with pytest.raises(DataError, match=r"data\.label does not say which column"):
        load(declared(tmp_path, classes=("sad", "glad")))


def test_landmarks_are_found_by_the_names_of_their_images(tmp_path):
    (tmp_path / "landmarks.csv").write_text("x1,y1,file_name,x2,y2\n1,2,b.png,3,4.5\n5,6,a/a.png,7,-8\n")
    paths = [tmp_path / "a" / "a.png", tmp_path / "b.png"]
    assert read_landmarks(tmp_path, paths) == [[(5, 6), (7, -8)], [(1, 2), (3, 4.5)]]


def test_what_is_no_number_of_px_is_nan(tmp_path):
    (tmp_path / "landmarks.csv").write_text("file_name,x1,y1,x2,y2\na.png,1,,-inf,x\n")
    assert str(read_landmarks(tmp_path, [tmp_path / "a.png"])) == "[[(1.0, nan), (nan, nan)]]"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("file_name,x1,y1\nb.png,1,2\n", "no row for a.png"),
        ("file_name,x1,y2\na.png,1,2\n", "must have the columns file_name, x1, y1, x2, y2"),
        ("file_name,x1,y1,person\na.png,1,2,3\n", "and no others"),
        ("file_name\na.png\n", "must have the columns"),
    ],
)
def test_a_table_of_landmarks_that_cannot_be_used_is_refused(tmp_path, table, said):
    (tmp_path / "landmarks.csv").write_text(table)
    with pytest.raises(DataError, match=said):
        read_landmarks(tmp_path, [tmp_path / "a.png"])


# Names of files ----------------------------------------------------------------------------------------------


def test_json_lines_are_a_table(tmp_path):
    lines = ['{"file_name": "a/0.png", "mood": "glad"}', '{"file_name": "b/1.png", "age": 3, "mood": null}', ""]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    found = read_table(tmp_path / "t.jsonl")
    assert (found.columns, found.rows) == (
        ("file_name", "mood", "age"), (("a/0.png", "glad", ""), ("b/1.png", "", "3")),
    )  # fmt: skip
    for wrong in ("[1]", "{", '{"file_name": "a", "file_name": "b"}'):
        (tmp_path / "t.jsonl").write_text(wrong)
        with pytest.raises(DataError, match=r"t\.jsonl is not a file of JSON objects, one a line"):
            read_table(tmp_path / "t.jsonl")


@pytest.mark.parametrize("forms", [("NFC", "NFD"), ("NFD", "NFC")])
def test_accents_are_the_same_in_both_ways_of_writing(tmp_path, forms):
    table, disk = (unicodedata.normalize(form, "zo\u00eb/\u00e9.png") for form in forms)
    save(tmp_path / disk, Image.fromarray(pixels(1)))
    (tmp_path / "metadata.csv").write_text(f"file_name,mood\n{table},glad\n", encoding="utf-8")
    (tmp_path / "landmarks.csv").write_text(f"file_name,x1,y1\n{table},1,2\n", encoding="utf-8")
    (path,) = read_rows(tmp_path, ()).paths
    assert path.is_file()
    assert read_landmarks(tmp_path, [path]) == [[(1.0, 2.0)]]
    both = f"file_name,mood\n{table},glad\n{disk},sad\n"
    (tmp_path / "metadata.csv").write_text(both, encoding="utf-8")
    with pytest.raises(DataError, match=r"row 3 names .* a second time"):
        read_rows(tmp_path, ())


def test_backslashes_are_refused_by_the_table_alone(tmp_path):
    write(tmp_path, row={index: [f"{index % 3}\\{index}.png", "sad", "1", "p"] for index in range(20)})
    with pytest.raises(DataError, match=r"1\\19.png and 19 more have \\ between folders and files. Write / instead"):
        read_rows(tmp_path, ())


def test_bare_names_are_found_in_subfolders_wherever_a_table_is_read(tmp_path):
    """A file serves one row at most, so that a file less empties or changes no other position."""
    write(tmp_path, 6)
    (tmp_path / "metadata.csv").write_text("file_name,mood\n4.png,sad\n0/0.png,sad\n2.png,glad\n0.png,sad\n9.png,sad\n")
    found = [path.relative_to(tmp_path).as_posix() for path in read_rows(tmp_path).paths]
    assert found == ["1/4.png", "0/0.png", "2/2.png", "0.png", "9.png"]  # 0/0.png is another row's
    (tmp_path / "landmarks.csv").write_text("file_name,x1,y1\n4.png,1,2\n")
    assert read_landmarks(tmp_path, [tmp_path / "1" / "4.png"]) == [[(1, 2)]]
    save(tmp_path / "0" / "4.png", Image.fromarray(pixels(0)))
    with pytest.raises(DataError, match=r"4\.png, which is 0/4\.png or 1/4\.png"):
        read_rows(tmp_path)


def test_rows_of_a_prepared_folder_are_files_as_they_are_written(tmp_path):
    """A photo that could not be used has a row and no file: no other takes its position."""
    write(tmp_path, 6)
    (tmp_path / "metadata.csv").write_text("file_name\n4.png\n")
    (tmp_path / "prepared.json").write_text("{}")
    assert read_rows(tmp_path).paths == (tmp_path / "4.png",)


def test_names_in_other_letters_are_told(tmp_path, caplog):
    write(tmp_path, row={3: ["0/3.PNG", "glad", "1", "p1"]})
    (tmp_path / "1" / "10.png").unlink()  # a file that is not there at all is told as before
    describe(DataConfig(name="folder", root=tmp_path, **KEYS, **PUBLIC))
    assert (
        "names 1 files in other letters than the disk, which stand as null records: 0/3.PNG is 0/3.png" in caplog.text
    )


@pytest.mark.parametrize("place", ["metadata.jsonl", "train/metadata.csv", "train/metadata.jsonl"])
def test_tables_elsewhere_are_refused_with_a_way_that_keeps_people(tmp_path, place):
    """Without the table the unit would be the image, whoever is on it."""
    for part in ("train", "test"):
        save(tmp_path / part / "1.png", Image.fromarray(pixels(1)))
    (tmp_path / place).write_text("file_name,person\n1.png,anna\n")
    with pytest.raises(DataError, match=f"{place} is not read from there.* idpgan prepare .* person too"):
        describe(DataConfig(name="folder", root=tmp_path))
