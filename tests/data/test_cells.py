"""One intake of cells: spellings of labels and people go through all doors: what is written is what is read back."""

import csv
import json
import unicodedata

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from idpgan.commands.fit import fit
from idpgan.commands.folder import labeled_files
from idpgan.commands.prepare import PrepareOptions, prepare_photos
from idpgan.data import cells
from idpgan.data.config import DataConfig
from idpgan.data.dicom import patients
from idpgan.data.intake import gathered
from idpgan.data.load import load
from idpgan.data.metadata import read_rows, read_table, written
from idpgan.data.photos import LabelTable, plan
from idpgan.errors import InputError
from idpgan.metrics.source import read_images
from idpgan.models import ModelConfig, build_generator, save_generator
from idpgan.release.dataset import SyntheticDataset
from idpgan.release.export import export_samples, folder_names
from idpgan.synthesis.facts import facts_of

OTHER, NUM = "other", 40
PIXELS = np.array([3 * row for row in range(NUM)], np.uint8)[:, None, None] * np.ones((1, 8, 8), np.uint8)
SPELLINGS = [
    *("NA", "None", "null", "nan", "N/A", "<NA>", "1.0", "003", "-1", "True", "no", "0", "\u00dcnal", "U\u0308nal"),
    *("a,b", "a;b", 'the "x"', "=1+1", "@x", "'=x", "x.", "CON", "OTHER", "a b", "sep=", "\u65e5\u672c"),
]
HIDDEN = [" Anna", "Anna ", "an\u200bna", "an\u00adna", "\ufeffanna", "an\U000e0041na", "an\u3164na", "an\u00a0"]


class Kind:
    """An obfuscator that is trained on labels."""

    trained, landmarked, name = True, False, "own"


class Named(TensorDataset):
    """As torchvision has them: names, targets and items."""

    def __init__(self, images, labels, classes, told=None):
        super().__init__(torch.from_numpy(images)[:, None], torch.tensor(labels))
        self.classes, self.targets = classes, labels if told is None else told


class Case:
    """Images that tell by their grey whether they have the spelling or the other name."""

    def __init__(self, tmp, name):
        self.tmp, self.name = tmp, name
        self.names = [name, OTHER] * (NUM // 2)
        self.classes = sorted({name, OTHER})

    def folder(self):
        root = self.tmp / "folders"
        for row, (image, name) in enumerate(zip(PIXELS, self.names, strict=True)):
            (root / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(root / name / f"{row}.png")
        return root

    def flat(self, suffix, column="label"):
        root = self.tmp / "flat"
        root.mkdir()
        for row, image in enumerate(PIXELS):
            Image.fromarray(image).save(root / f"{row}.png")
        rows = [[f"{row}.png", name] for row, name in enumerate(self.names)]
        with (root / f"metadata.{suffix}").open("w", newline="", encoding="utf-8") as file:
            if suffix == "csv":
                csv.writer(file).writerows([["file_name", column], *rows])
            else:
                file.writelines(json.dumps({"file_name": name, column: value}) + "\n" for name, value in rows)
        return root

    def prepared(self, source, **keys):
        out = self.tmp / "prepared"
        prepare_photos(source, out, PrepareOptions("8", grey=True, **keys))
        return out

    def made(self):
        made = build_generator(ModelConfig(width=2, latent_dim=2), (1, 8, 8), 2)
        made.classes = tuple(self.classes)
        return made


def said(images):
    """The class of each image by its row; null records are left out."""
    images = images.existing()
    rows = (images.images[:, 0, 0, 0] // 3).tolist()
    return {row: images.classes[label] for row, label in zip(rows, images.labels.tolist(), strict=True)}


def proposed(root, label=None):
    """What `train` reads of a folder by the config that `init` proposes."""
    settings = facts_of(str(root), label=label)[0].settings
    split = load(DataConfig.model_validate({key: setting.value for key, setting in settings.items()}))
    return said(split.private) | said(split.test) | said(split.holdout)


# The doors of labels: each gives the class that it reads of each image ------------------------------------------------


def of_lists(case):
    return said(gathered(PIXELS, case.names))


def of_objects(case):
    return said(gathered(PIXELS, np.array(case.names, dtype=object)))


def of_pairs(case):
    return said(gathered(list(zip(PIXELS, case.names, strict=True))))


def of_mappings(case):
    return said(gathered([{"image": each, "label": name} for each, name in zip(PIXELS, case.names, strict=True)]))


def of_evaluate(case):
    return said(read_images((PIXELS, case.names), (1, 8, 8)))


def of_npz(case):
    np.savez(case.tmp / "x.npz", images=PIXELS, labels=np.array(case.names))
    return said(gathered(case.tmp / "x.npz"))


def of_npz_with_classes(case):
    places = [case.classes.index(name) for name in case.names]
    np.savez(case.tmp / "x.npz", images=PIXELS, positions=places, classes=np.array(case.classes))
    return said(read_images(case.tmp / "x.npz", (1, 8, 8)))


def of_torch(case):
    return said(gathered(Named(PIXELS, [case.classes.index(name) for name in case.names], case.classes)))


def of_a_folder_trained(case):
    return proposed(case.folder())


def of_a_folder_measured(case):
    return said(read_images(case.folder(), (1, 8, 8)))


def of_a_folder_prepared(case):
    return proposed(case.prepared(case.folder(), folders="label"))


def of_a_prepared_folder_measured(case):
    return said(read_images(case.prepared(case.folder(), folders="label"), (1, 8, 8)))


def of_a_prepared_folder_prepared_again(case):
    first = case.prepared(case.folder(), folders="label")
    prepare_photos(first, case.tmp / "again", PrepareOptions("8", grey=True))
    return proposed(case.tmp / "again", "label")


def of_fit(case, monkeypatch):
    def begun(*_, split, **__):
        raise InterruptedError(split)

    monkeypatch.setattr("idpgan.trainer.start", begun)
    with pytest.raises(InterruptedError) as stopped:
        fit(PIXELS, case.names, epsilon=1.0, unit="image", method="gaussian", progress=False)
    return said(stopped.value.args[0].private)


def of_sample(case):
    """Asked for by name, in both ways, and by a file that is given away."""
    made = case.made()
    places = [case.classes.index(name) for name in case.names]
    assert made._checked_labels(case.names, NUM).tolist() == places
    assert made._checked_labels(case.name, 3).tolist() == [case.classes.index(case.name)] * 3
    save_generator(case.tmp / "made", made)
    export_samples(case.tmp / "made", NUM, case.tmp / "out", labels=case.names, seed=0)
    data = SyntheticDataset(case.tmp / "out")
    assert data.classes == made.classes
    return {row: data.classes[label] for row, label in enumerate(data.labels.tolist())}


def of_publish(case):
    rows = labeled_files(case.prepared(case.folder(), folders="label"), Kind, "label", "label", fits=True)
    return {int(path.stem): name for path, name in zip(rows[0], rows[1][0], strict=True)}


def of_a_table(case):
    return proposed(case.flat("csv"), "label")


def of_a_table_measured(case):
    return said(read_images(case.flat("csv"), (1, 8, 8)))


def of_a_table_prepared(case):
    return proposed(case.prepared(case.flat("csv")), "label")


def of_json_lines(case):
    return proposed(case.prepared(case.flat("jsonl")), "label")


DOORS = {name[3:]: door for name, door in list(globals().items()) if name.startswith("of_")}
FOREIGN = {"a_table", "a_table_measured", "a_table_prepared", "json_lines"}


def go(door, case, monkeypatch):
    return DOORS[door](case, monkeypatch) if door == "fit" else DOORS[door](case)


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("door", DOORS)
def test_what_is_written_is_what_is_read_back(door, name, tmp_path, monkeypatch):
    if "/" in name and ("folder" in door or door == "publish"):
        pytest.skip("no folder has a name with a slash")
    case, wanted = Case(tmp_path, name), unicodedata.normalize("NFC", name)
    if door in FOREIGN:
        wanted = {"1.0": "1"}.get(name, "" if name in cells.BLANKS else wanted)
    if door in ("npz_with_classes", "sample"):  # names that a file of ours brings stand
        wanted = name
    expected = dict(enumerate([wanted, OTHER] * (NUM // 2)))
    assert go(door, case, monkeypatch) == {row: name for row, name in expected.items() if name}


def test_what_a_foreign_table_leaves_blank_is_said_with_its_spelling_and_count(tmp_path, caplog):
    case = Case(tmp_path, "NA")
    case.names = ["NA", "cat", "dog", "NA"] * (NUM // 4)
    root = case.flat("csv")
    seen = facts_of(str(root), label="label")[0]
    assert seen.counts["(blank: 20 of these are 'NA')"] == 20  # `init` says these to the curator
    keys = {key: setting.value for key, setting in seen.settings.items()}
    assert keys["classes"] == ["cat", "dog"]
    load(DataConfig.model_validate(keys))
    assert "20 of 40 rows" in caplog.text
    assert "have no label and stand as null records. Taken as no label: 20 of these are 'NA'." in caplog.text
    out = case.prepared(root)
    assert caplog.text.count("taken as no value, label: 20 of these are 'NA'") == 1
    assert not read_rows(out, ["label"]).blanks
    split = load(DataConfig.model_validate(keys | {"classes": ["cat", "dog", "NA"]}))  # declared, it is a class
    assert not split.private.is_null.any()


@pytest.mark.parametrize("missing", [None, float("nan"), np.float32("nan"), np.datetime64("NaT"), ""])
def test_in_memory_what_is_missing_is_so_by_its_type(missing):
    held = gathered(PIXELS, np.array([missing, "nan", "None", "NA"] * (NUM // 4), dtype=object))
    assert held.classes == ("NA", "None", "nan")
    assert held.is_null.tolist() == [True, False, False, False] * (NUM // 4)
    with pytest.raises(InputError, match="people: 10 of 40 are missing"):
        gathered(PIXELS, people=np.array([missing, "nan", "None", "NA"] * (NUM // 4), dtype=object))


ALIKE = {
    "large": ([np.uint64(2**64 - 1), np.uint64(5)], ["18446744073709551615", "5"]),
    "float16": ([np.float16(0.1), np.float16(2)], ["0.0999755859375", "2"]),
    "float32": ([np.float32(0.1), np.float32(2)], ["0.10000000149011612", "2"]),
    "truths of NumPy": ([np.True_, np.False_], ["True", "False"]),
    "truths of torch": ([torch.tensor(True), torch.tensor(False)], ["True", "False"]),
    "numbers of torch": ([torch.tensor(3.0), torch.tensor(4.5)], ["3", "4.5"]),
    "a truth and a number": ([True, 1], ["True", "1"]),
    "a text and a number": (["1.0", 1.0], ["1.0", "1"]),
    "a truth and nothing": ([True, None], ["True", ""]),
}


@pytest.mark.parametrize("name", ALIKE)
def test_values_say_the_same_in_a_list_and_in_an_array_of_objects(name):
    """Failed before: NumPy rounded and merged what a list holds, or refused an array of objects."""
    pair, wanted = ALIKE[name]
    held = np.empty(NUM, object)
    held[:] = pair * (NUM // 2)
    expected = {row: each for row, each in enumerate(wanted * (NUM // 2)) if each}
    for labels in (held.tolist(), held, tuple(held.tolist())):
        assert said(gathered(PIXELS, labels)) == expected
        assert said(gathered(list(zip(PIXELS, labels, strict=True)))) == expected
    if all(wanted):
        assert gathered(PIXELS, people=held).identities.unique().numel() == 2
        made = build_generator(ModelConfig(width=2, latent_dim=2), (1, 8, 8), 2)
        made.classes = tuple(sorted(wanted))
        for labels in (held.tolist(), held):
            assert [made.classes[place] for place in made._checked_labels(labels, NUM)] == wanted * (NUM // 2)


def test_pandas_missing_values_are_known_by_their_type():
    class NAType:
        def __ne__(self, other):
            return self

        def __bool__(self):
            raise TypeError("boolean value of NA is ambiguous")

    assert gathered(PIXELS, [NAType(), 3.0] * (NUM // 2)).classes == ("3",)
    assert cells.read(NAType()) == cells.read(NAType(), cells.LABEL) == ""


# People -------------------------------------------------------------------------------------------------------------


def number_of(people):
    return len(dict.fromkeys(people))


@pytest.mark.parametrize("name", [name for name in SPELLINGS if name != "N/A"])
def test_people_are_read_as_labels_are(name, tmp_path):
    case = Case(tmp_path, name)
    wanted = [unicodedata.normalize("NFC", name), OTHER] * (NUM // 2)
    identities = gathered(PIXELS, people=case.names).identities.tolist()
    assert identities == [(wanted[0] > OTHER), (wanted[0] < OTHER)] * (NUM // 2)
    out = case.prepared(case.folder(), folders="person")
    rows = read_rows(out)
    assert {int(path.stem): rows.person_names[who] for path, who in zip(rows.paths, rows.people, strict=True)} == dict(
        enumerate(wanted)
    )
    root = case.flat("csv", "person")
    if name in cells.BLANKS:
        for reader in (read_rows, plan):
            with pytest.raises(InputError, match=f"column 'person': 20 of these are '{name}', as tables write"):
                reader(root)
    else:
        assert set(read_rows(root).person_names) == {*wanted}
        assert {row.values[0] for row in plan(root).photos} == {*wanted}


@pytest.mark.parametrize("column", ["subject", "person"])
def test_people_of_any_column_are_refused_where_tables_leave_them_blank(tmp_path, column):
    root = Case(tmp_path, "n/a").flat("jsonl", column)
    with pytest.raises(InputError, match="20 of these are 'n/a'"):
        plan(root, labels=LabelTable(person_column=column))


def test_hashed_patients_are_read_as_people_of_tables_are(tmp_path, caplog):
    pydicom = pytest.importorskip("pydicom", reason="the extra idpgan[dicom] is not installed")

    def files(*numbers):
        for place, number in enumerate(numbers):
            data = pydicom.Dataset()
            data.file_meta = pydicom.dataset.FileMetaDataset()
            data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
            data.SOPClassUID, data.SOPInstanceUID, data.PatientID = "1.2.840.10008.5.1.4.1.1.7", "1.2.3", number
            data.save_as(tmp_path / f"{place}.dcm", enforce_file_format=True)
        return [tmp_path / f"{place}.dcm" for place in range(len(numbers))]

    names = patients(files("A1", "A2", "A1 ", "a1"))
    assert (names[0] == names[2], number_of(names)) == (True, 3)
    assert "3.dcm are taken for different ones" in caplog.text
    assert "A1" not in caplog.text
    for blank in ("NA", "None", ""):
        with pytest.raises(InputError, match=r"1\.dcm names no patient \(PatientID\), 2 of 3 files do not") as refused:
            patients(files("A1", blank, blank))
        assert ("2 of these are" in str(refused.value)) == bool(blank)


# What does not show -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("door", sorted({*DOORS} - {"npz_with_classes", "sample"}))
def test_names_that_could_not_be_told_apart_by_looking_are_refused(door, name, tmp_path, monkeypatch):
    case = Case(tmp_path, name)
    shown = "begins or ends with a blank" if name != name.strip() else "holds U.(200B|00AD|FEFF|E0041|3164) "
    if name != name.strip() and door in FOREIGN:  # blanks around go
        assert set(go(door, case, monkeypatch).values()) == {name.strip(), OTHER}
        return
    with pytest.raises(InputError, match=shown):
        go(door, case, monkeypatch)


LOOK_ALIKE = r"does not show|begins or ends with a blank"


@pytest.mark.parametrize("name", HIDDEN)
def test_people_that_could_not_be_told_apart_by_looking_are_refused(name, tmp_path):
    case = Case(tmp_path, name)
    with pytest.raises(InputError, match=LOOK_ALIKE):
        gathered(PIXELS, people=case.names)
    with pytest.raises(InputError, match=LOOK_ALIKE):
        case.prepared(case.folder(), folders="person")
    if name == name.strip():
        with pytest.raises(InputError, match="does not show"):
            read_rows(case.flat("csv", "person"))


def test_a_file_whose_name_does_not_show_all_is_refused(tmp_path):
    (tmp_path / "photos").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "photos" / "a\u200b.png")
    with pytest.raises(InputError, match=r"'a.u200b.png' holds U\+200B \(ZERO WIDTH SPACE\), which does not show"):
        plan(tmp_path / "photos")
    with pytest.raises(InputError, match=r"holds U\+200B"):
        facts_of(str(tmp_path / "photos"))


def test_files_in_folders_with_blanks_around_are_found(tmp_path):
    case = Case(tmp_path, " Anna")
    out = case.prepared(case.folder(), folders="none")
    assert all(path.is_file() for path in read_rows(out).paths)
    root = case.folder()
    (root / "metadata.csv").write_text("file_name, label\n Anna/0.png, cat\n  other/1.png , dog\n")
    rows = read_rows(root)
    assert all(path.is_file() for path in rows.paths)
    assert rows.values == (("cat", "dog"),)
    assert len(plan(root).photos) == NUM


# Exports ------------------------------------------------------------------------------------------------------------

UNSAFE = ["Cat", "cat", "CON", "nul.txt", "x.", "x_", "a:b", "a/b", "..", "=1+1", "+a", "-1", "@x", "'=x", "README.md"]


def test_exports_spell_folders_safely_and_say_the_true_names(tmp_path):
    made = build_generator(ModelConfig(width=2, latent_dim=2), (1, 8, 8), len(UNSAFE))
    made.classes = tuple(UNSAFE)
    save_generator(tmp_path / "made", made)
    export_samples(tmp_path / "made", 2 * len(UNSAFE), tmp_path / "out", seed=0)
    folders = folder_names(UNSAFE)
    assert sorted(folders) == sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert folders[0] == "Cat"
    assert len({name.casefold() for name in folders}) == len(UNSAFE)
    for name in folders:
        assert not set(name) & set('<>:"/\\|?*')
        assert name[0] not in ".-=+@"
        assert name[-1] not in ". "
        assert name.split(".")[0].lower() not in ("con", "nul")
    data = SyntheticDataset(tmp_path / "out")
    assert [data.classes[label] for label in data.labels.tolist()] == UNSAFE * 2
    assert list(json.loads((tmp_path / "out" / "manifest.json").read_text())["classes"]) == UNSAFE
    with (tmp_path / "out" / "metadata.csv").open(encoding="utf-8", newline="") as file:
        written_cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in written_cells if cell[0] in "=+@\t\r" or (cell[0] == "-" and cell != "-1")]


@pytest.mark.parametrize("name", [*SPELLINGS, "\tx", "\rx", "+", "-", "-1.5", "+3", "''=", "'", "'a", "a\nb", " x "])
def test_a_table_of_ours_is_read_back_exactly(name, tmp_path):
    (tmp_path / "prepared.json").write_text("{}")
    (tmp_path / "metadata.csv").write_bytes(written(["file_name", "label"], [[" a.png", name]]).encode())
    table = read_table(tmp_path / "metadata.csv")
    assert (table.column("file_name"), table.column("label")) == ([" a.png"], [name])
    assert table.rows[0][1][:1] not in "=+@\t\r" or cells._NUMBER.fullmatch(name)
