"""`folder`: any folder of images, laid out as torchvision's `ImageFolder` wants it.

    root/CLASS/*.png           one folder a class, searched to any depth; labels are positions in `data.classes`
    root/train/..., root/test/...    the set brings its own test images
    root/*.png                 no classes: the images are unlabeled
    root/metadata.csv          one row an image: file_name, columns of labels, person (`idpgan prepare` and
                               `idpgan sample` write it)

Formats are those of `image_files`, converted as `data.channels` says. A file whose name is not an image name is an
error that names it; hidden files and what file systems leave behind are left out, and such images are counted.

A position is a file, ordered by class folder, folder below it and file name; or a row of metadata.csv, in the order of
the rows. A file that is empty, damaged, of another size (for a row also: missing), or of a class that is not in
`data.classes` keeps its position as a null record, so that no other position depends on it. Files that metadata.csv
does not name are not read; a name without a folder also means the only file called so in subfolders
(`metadata.in_subfolders`). Numbers, size, channels and classes are declared (`declared`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import torch

from idpgan.data import cells, metadata
from idpgan.data.config import DataConfig
from idpgan.data.declared import declared_shape, own_root, shown, warn_of_leftovers
from idpgan.data.image_files import EXTENSIONS, UNWANTED, Files, decode, entries, in_words, read_files, walk
from idpgan.data.images import Images, attribute_classes
from idpgan.data.labels import MOST_CLASSES, NONE, in_order, positions_of
from idpgan.data.metadata import METADATA
from idpgan.data.source import DataSet, PublicFacts, Read, Source, warn_once
from idpgan.data.sources.face_folder import known_layout
from idpgan.errors import DataError
from idpgan.files import pasted
from idpgan.progress import Progress, silent

_PERSON_FILE = re.compile(r"(?P<name>[A-Z][^_/]*(_[A-Z][^_/]*)+)/(?P=name)_\d+$")  # Ada_King/Ada_King_01.jpg, as in LFW


def find(config: DataConfig) -> DataSet | None:
    """Compare the declared values with the file names and some headers; return None if the folder is missing.

    Raises:
        DataError: If there are no images, or the folder contradicts what is declared.
    """
    root = own_root(config, "images")
    if not root.is_dir():
        return None
    facts, files = _listed(root, config)
    return DataSet(facts, lambda progress: _load(facts, files, progress))


def _load(facts: PublicFacts, files: Files, progress: Progress) -> Read:
    """Decode every image once; the second set is that of ``test/``, if there is one."""
    images, refused = read_files(files, facts.image_shape, progress=progress)
    if facts.num_test is None:
        return Read(images, refused=refused)
    order = torch.arange(len(images))  # indexing copies; a slice would keep the whole tensor in memory
    return Read(images.select(order[: facts.num_images]), images.select(order[facts.num_images :]), refused)


def _listed(root: Path, config: DataConfig) -> tuple[PublicFacts, Files]:
    """List the images, those of ``test/`` last, and check all declared keys."""
    if (root / METADATA).is_file():
        return _listed_rows(root, config)
    if config.label:
        raise DataError(
            f"data.label = {', '.join(config.label)}, but {root} has no {METADATA} with such columns. Leave data.label "
            "out, or write one (idpgan prepare)."
        )
    train, test = scan(root, config.classes)
    if not train.paths:
        raise DataError(f"{root} holds no images. Put some there, or name another folder.")
    place = root if test is None else root / "train"
    folders = in_order(cells.read(path.name) for path in entries(place) if path.is_dir())
    shape = declared_shape(config, root, train.paths, {"num_images": len(train.paths), "classes": folders})
    if config.classes and set(positions_of(folders, config.classes)) == {NONE}:  # by names alone, whatever the files
        raise DataError(
            f"data.classes = {shown(config.classes)}, but {root} holds no such class folder. Set data.classes = "
            f"{shown(folders)}, the folders that are there, or [] for no classes."
        )
    people = folders if known_layout(place) else []
    if not people:
        names = {path.parent.name for path in train.paths if _PERSON_FILE.match(f"{path.parent.name}/{path.stem}")}
        people = sorted(names)
    num_test = None if test is None else len(test.paths)
    return PublicFacts(len(train.paths), num_test, shape, train.classes, person_names=tuple(people)), _joined(
        train, test
    )


def paths(config: DataConfig) -> tuple[Path, ...]:
    """Return the files of a config in the order of their positions, those of ``test/`` last; opens no image."""
    return _listed(own_root(config, "images"), config)[1].paths


def scan(root: Path, classes: Sequence[str] | None = None) -> tuple[Files, Files | None]:
    """List the images of a folder, and those of its ``test/`` if it holds ``train/`` and ``test/``.

    Args:
        classes: Declared names of class folders; none makes all images unlabeled. None takes the folders that are
            there, each of which must hold images.

    Raises:
        DataError: If a file name is not an image name or, without declared classes, if there is no image or a class is
            empty.
    """
    if not root.is_dir():
        raise DataError(SOURCE.missing.format(root=root))
    for table in metadata.tables_in(root):
        raise DataError(
            f"{table} is not read from there, and without it nobody knows who is on which image. Let idpgan prepare "
            f"{pasted(root)} OUT --size SIDE read it: it makes one {METADATA} with all its columns, person too."
        )
    warn_of_leftovers(root)
    names = {path.name for path in entries(root)}
    if names != {"train", "test"}:
        parts = [root / name for name in names & {"train", "test"} if (root / name).is_dir()]
        if names and (names <= {*metadata.PARTS} or any(path.is_dir() for part in parts for path in entries(part))):
            raise DataError(
                f"{root} holds {', '.join(sorted(names))}: the parts of a set are train/ and test/, both of them and "
                "nothing else, each with its classes below. Move the rest away, or name one of the folders itself."
            )
        return _scan_classes(root, classes), None  # also where a class is called train
    train, test = _scan_classes(root / "train", classes), _scan_classes(root / "test", classes)
    if train.classes != test.classes:
        different = ", ".join(sorted(set(train.classes) ^ set(test.classes)))
        raise DataError(f"{root}: train/ and test/ must have the same classes, but only one of them has {different}.")
    return train, test


def _scan_classes(root: Path, classes: Sequence[str] | None) -> Files:
    """List the images of a folder by class folder, folder and name as texts; classes may have another order."""
    members = entries(root)
    folders = [path for path in members if path.is_dir()]
    if not folders:
        if classes:
            raise DataError(
                f"data.classes = {shown(classes)}, but {root} holds no class folders. Set data.classes = [], or make a "
                "folder for each class."
            )
        return Files(_images_among(members, root))
    if len(folders) < len(members):
        stray = next(path for path in members if not path.is_dir())
        raise DataError(f"{stray} lies beside class folders: move it into one of them, or away.")
    folder_names = [cells.read(folder.name) for folder in folders]
    cells.check_names({*folder_names} - {*(classes or ())}, f"{root}: the class folder")
    names = in_order(folder_names) if classes is None else list(classes)
    positions = positions_of(folder_names, names)
    twice = {place for place, times in Counter(positions).items() if times > 1} - {NONE}
    if twice:
        same = ", ".join(folder.name for folder, place in zip(folders, positions, strict=True) if place in twice)
        raise DataError(f"{root} has the class folders {same}, which are one class. Put their images into one of them.")
    paths: list[Path] = []
    labels: list[int] = []
    for folder, place in zip(folders, positions, strict=True):
        inside = _images_among(walk(folder), folder, may_be_empty=classes is not None)
        paths += inside
        labels += [place] * len(inside)
    return Files(tuple(paths), tuple(labels) if names else (), tuple(names))


def _images_among(paths: Sequence[Path], folder: Path, may_be_empty: bool = False) -> tuple[Path, ...]:
    """Return the paths; refuse an empty list, or a name that is not an image name."""
    for path in paths:
        if path.suffix.lower() not in EXTENSIONS:
            raise DataError(f"{path} is not an image (known: {' '.join(EXTENSIONS)}). Convert it, or move it away.")
    if not paths and not may_be_empty:
        raise DataError(f"{folder} holds no images. Put some there, or name another folder.")
    return tuple(paths)


def _joined(train: Files, test: Files | None) -> Files:
    return train if test is None else Files(train.paths + test.paths, train.labels + test.labels, train.classes)


# Folders with a metadata.csv --------------------------------------------------------------------------------------


def _listed_rows(root: Path, config: DataConfig) -> tuple[PublicFacts, Files]:
    """List the rows of metadata.csv, with their people and attributes, and check all declared keys."""
    label, rows = _rows_of(root, config)
    metadata.warn_of_case(root, rows.paths)
    if not rows.paths:
        raise DataError(f"{root / METADATA} names no images. Give it a row for each.")
    if config.num_people is not None and rows.people is None:
        raise DataError(
            f"data.num_people = {config.num_people}, but {root / METADATA} has no column 'person'. Leave num_people "
            "out, or add the column."
        )
    if config.classes and not label:
        raise DataError(
            f"data.classes = {shown(config.classes)}, but data.label does not say which column of {root / METADATA} "
            f"holds them: {', '.join(rows.columns) or 'it has none'}. Set data.label, or data.classes = []."
        )
    counted: dict[str, object] = {"num_images": len(rows.paths)}
    counted |= {} if rows.people is None else {"num_people": len(rows.person_names)}
    values, hint = metadata.class_values(rows.values[0]) if label else [], ""
    first = ", ".join(map(shown, values[:20])) + ", ..." * (len(values) > 20)
    if config.classes or label != config.label or not label:
        counted["classes"] = values[:MOST_CLASSES]
        hint = f" Columns of labels: {', '.join(rows.columns)} (data.label)." if rows.columns and not label else ""
    elif any(None in cells.bits(column) for column in rows.values):
        hint = f" Classes of '{label[0]}' (data.classes): {first}."
    shape = declared_shape(config, root, rows.paths, counted, hint)
    files = _labeled_rows(label, config.classes or (), rows)
    if unwanted := files.labels.count(UNWANTED):
        blank = sum("" in row for row in zip(*rows.values, strict=True))
        spelled = rows.blanks and f" Taken as no label: {rows.blanks}."
        wanted = (
            f"data.classes = {shown(config.classes)}"
            if config.classes
            else f"data.label = {shown(label)} without data.classes, which asks for columns of 1 and 0"
        )
        columns_hint = f"Column '{label[0]}' has {first or 'no value'}: are data.classes right?"
        if unwanted == len(rows.paths):
            raise DataError(f"{wanted}, but no row at all of {root / METADATA} has such a label. {columns_hint}")
        these = f"{unwanted} of {len(rows.paths)} rows of {root / METADATA}"
        warn_once(
            f"{these} have no label and stand as null records.{spelled}"
            if unwanted == blank
            else f"{wanted}, but {these} have other values or none ({blank} blank) and stand as null records. "
            + columns_hint
            + spelled
        )
    counts = tuple(Counter(rows.people or ()).values())  # people are numbered as they first appear
    names = () if rows.of_photos else rows.person_names
    return PublicFacts(len(rows.paths), None, shape, files.classes, rows.columns, counts, names, rows.of_photos), files


def _rows_of(root: Path, config: DataConfig | None) -> tuple[tuple[str, ...], metadata.Rows]:
    """Return the label columns and the rows; without a named column, classes are in the column ``label``."""
    label, classes = (config.label, config.classes) if config else ((), None)
    rows = metadata.read_rows(root, label, classes=classes or ())
    if label or metadata.LABEL not in rows.columns or classes == ():
        return label, rows
    return (metadata.LABEL,), metadata.read_rows(root, [metadata.LABEL], classes=classes or ())


def _labeled_rows(label: Sequence[str], classes: Sequence[str], rows: metadata.Rows) -> Files:
    """Label rows by one column with declared classes, or read attributes and find the rows that lack one."""
    people = rows.people or ()
    if classes:
        labels = tuple(positions_of(rows.values[0], classes))
        unwanted = f"has none of data.classes in the column {label[0]}"
        return Files(rows.paths, labels, tuple(classes), unwanted, True, people)
    bits = list(zip(*(cells.bits(values) for values in rows.values), strict=True))
    labels = tuple(UNWANTED if None in row else 0 for row in bits)
    unwanted = f"has neither 1 nor 0 in a column of {', '.join(label)}"
    attributes = tuple(tuple(bit or 0 for bit in row) for row in bits)
    return Files(rows.paths, labels, (), unwanted, True, people, attributes, tuple(label))


# Public images ----------------------------------------------------------------------------------------------------


def read_all(root: Path, channels: int | None, progress: Progress = silent, config: DataConfig | None = None) -> Images:
    """Read a folder of public images, train/ and test/ together if it has them.

    Its classes are its folders; with a metadata.csv they are those of ``config`` or, without one, the values of its
    column ``label``. With `DataConfig.looks` there are no classes, and the looks are attributes.

    Raises:
        DataError: If there are no images, or if a file is damaged or differs from the first in shape.
    """
    files = scanned(root, config)
    shape = decode(files.paths[0], channels).shape

    def decoder(path: Path) -> np.ndarray:
        image = decode(path, channels)
        if image.shape != shape:
            raise DataError(
                f"{path} is {in_words(image.shape)}, but {files.paths[0]} is {in_words(shape)}: all images must have "
                "one size, and all be grey or all in color. Bring them to one (idpgan prepare does)."
            )
        return image

    images, refused = read_files(files, shape, decoder, progress, private=False)
    for file in refused:
        raise DataError(file.reason)
    return images


def scanned(root: Path, config: DataConfig | None = None) -> Files:
    """List the files that `read_all` reads, without rows of other classes; opens no image and raises like `scan`."""
    if config and config.looks is not None:
        return _with_looks(root, {look.removeprefix("not ") for look in config.looks.values()})
    if not (root / METADATA).is_file():
        return _joined(*scan(root))
    label, rows = _rows_of(root, config)
    rows = _with_files(root, rows)
    named: Sequence[str] = config.classes or () if config else ()
    if label and not named and not (config and config.label):
        named = metadata.class_values(rows.values[0])
        cells.check_names(named, f"{root / METADATA}: the class")
        if rows.blanks:
            warn_once(f"{root / METADATA}: left out, without a label: {rows.blanks}.")
    files = _labeled_rows(label, named, rows)
    keep = [index for index in range(len(rows.paths)) if not files.labels or files.labels[index] != UNWANTED]
    if not keep:
        raise DataError(f"{root / METADATA} names no file that is there, or none of data.classes. Name another folder.")
    labels, classes = files.labels, files.classes
    if config and config.attributes:
        labels = tuple(sum(bit << j for j, bit in enumerate(row)) for row in files.attributes)
        classes = attribute_classes(config.attributes)
    return Files(tuple(rows.paths[i] for i in keep), tuple(labels[i] for i in keep) if classes else (), classes)


def _with_files(root: Path, rows: metadata.Rows) -> metadata.Rows:
    """Leave rows out that have no file, as of photos that `idpgan prepare` refused; nothing is released of these."""
    keep = [index for index, path in enumerate(rows.paths) if path.exists()]
    if absent := len(rows.paths) - len(keep):
        warn_once(f"{absent} of {len(rows.paths)} rows of {root / METADATA} name no file that is there: left out.")
    paths, values = rows.paths, tuple(tuple(column[index] for index in keep) for column in rows.values)
    people = None if rows.people is None else tuple(rows.people[index] for index in keep)
    return rows._replace(paths=tuple(paths[index] for index in keep), people=people, values=values)


def _with_looks(root: Path, looks: Collection[str]) -> Files:
    """List the rows that say 1 or 0 in all columns of looks; without looks every file, unlabeled."""
    if not looks:
        has_table = (root / METADATA).is_file()
        return Files((_with_files(root, metadata.read_rows(root, ())) if has_table else _joined(*scan(root))).paths)
    if not (root / METADATA).is_file():
        raise DataError(f"data.public_labels names columns of {root / METADATA}, and there is no such file.")
    names = tuple(sorted(looks))
    rows = _with_files(root, metadata.read_rows(root, names, "data.public_labels"))
    bits = list(zip(*map(cells.bits, rows.values), strict=True))
    keep = [index for index, row in enumerate(bits) if None not in row]
    if not keep:
        raise DataError(f"data.public_labels: no row of {root / METADATA} has 1 or 0 in {', '.join(names)}.")
    attributes = tuple(tuple(bit or 0 for bit in bits[index]) for index in keep)
    return Files(tuple(rows.paths[index] for index in keep), attributes=attributes, attribute_names=names)


SOURCE = Source(find, "There is no folder {root}. Name the folder of images: data.root, --data-root, or public_root.")
