"""Prepare a folder of photos as images of one size: the new file names, from names alone, and the pixels.

A photo is decoded as every picture is (`image_files.decoded`), center-cropped, or its faces are cut out (`eyes`), and
resized by Lanczos with antialiasing. Location, date and preview are dropped. DICOM files become pictures in `dicom`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from PIL import Image

from idpgan.data import cells, dicom, image_files, metadata
from idpgan.data.declared import warn_of_spellings, warn_once
from idpgan.data.metadata import FILE_NAME, PERSON
from idpgan.errors import DataError

RAW = (".arw", ".cr2", ".dng", ".heic", ".heif", ".nef")  # not readable here; each is refused with advice
SUFFIXES = (  # names alone make files photos, so that an unreadable one keeps its position
    *image_files.EXTENSIONS,
    *(".avif", ".dib", ".gif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpx", ".mpo", ".pbm", ".pnm", ".psd", ".tga"),
    *dicom.SUFFIXES,
    *RAW,
)
_DRAFT = 2  # a JPEG is decoded to at least this multiple of the target size
_GAP = 3.0  # `reducing_gap` of Pillow's two-step resize; the quality is that of one step


class Photo(NamedTuple):
    """One position of the prepared folder."""

    source: Path
    file_name: str  # path below the prepared folder
    values: tuple[str, ...]  # values of the columns
    face: int = 0  # which of its faces, from 0


class Planned(NamedTuple):
    """The rows of the prepared folder."""

    photos: tuple[Photo, ...]
    columns: tuple[str, ...]  # columns after file_name: labels, then the person, or the photo
    left_out: tuple[Path, ...]  # files that are not photos by their names
    twins: tuple[Path, ...]  # files of `RAW` beside a readable one of the same name: one shot in two files
    leftovers: dict[str, int]  # as `image_files.leftovers` counts them
    unlabelled: int = 0  # photos that were left out because they have no label
    missing: tuple[str, ...] = ()  # files of rows that were left out because there is no such photo
    blank: int = 0  # photos without a label that were not left out, where others have one


class LabelTable(NamedTuple):
    """A table of labels, and how it is read.

    Attributes:
        path: CSV file, or one of JSON lines; None = the folder's own metadata.csv or metadata.jsonl, or those of its
            train and test, if there are any.
        file_column: Its column of files, as paths below the folder.
        label_column: The one column of labels to take, beside ``person``; None = all columns.
        person_column: Its column of people; None = ``person``, if it has one.
        only_labelled: Whether photos without a row, or with a blank label, are left out and not just unlabeled. The
            number of photos with a label is then the number of rows, which is public.
        skip_missing: Whether rows without a photo are left out and not refused.
        patients: Whether the person on each photo is the patient that its DICOM file names.
    """

    path: Path | None = None
    file_column: str = FILE_NAME
    label_column: str | None = None
    person_column: str | None = None
    only_labelled: bool = False
    skip_missing: bool = False
    patients: bool = False


NO_TABLE = LabelTable()


def plan(source: Path, folders: str | None = None, labels: LabelTable = NO_TABLE, faces: int = 1) -> Planned:
    """List the photos below a folder, in the order of their names, with labels and person.

    Args:
        source: The folder; hidden files are left out.
        folders: Meaning of its subfolders: "label", "person" or "none"; None = not given. Where folders lie in folders,
            "label:2" or "person:2" says that those of the second level are meant.
        labels: The table of labels, maybe with a column ``person``.
        faces: Rows of every photo, whatever it shows. With several the column ``cut_from`` names the photo of a row.

    Raises:
        DataError: If there are no photos, if there are subfolders without a declared meaning, if there are people and
            several faces a photo, if photos would get the same name, if a person or class has no photo, or if the table
            does not fit the photos.
    """
    if not source.is_dir():
        raise DataError(f"There is no folder {source}. Name the folder of photos.")
    tables = metadata.tables_in(source) if labels.path is None else []
    labels = labels._replace(path=tables[0]) if tables else labels
    table = _table_of(source, folders, labels, tables)  # before the folder is walked, which may take long
    again = table is not None and (table.path.parent / metadata.PREPARED).is_file()  # what was prepared before
    beside = {labels.path, *tables, *([source / metadata.SHEET] if again else ())}
    files = [path for path in image_files.walk(source) if path not in beside]
    bare = {path for path in files if path.suffix.lower() not in SUFFIXES and dicom.is_dicom(path)}
    bare = bare if any(map(dicom.begins, sorted(bare))) else set()  # one is enough: an emptied one keeps its position
    named = [path for path in files if path.suffix.lower() in SUFFIXES or path in bare]
    readable = {path.with_suffix("") for path in named if path.suffix.lower() not in RAW}
    twins = tuple(path for path in named if path.suffix.lower() in RAW and path.with_suffix("") in readable)
    photos = [path for path in named if path not in set(twins)]
    if table is not None and again and not labels.skip_missing:  # its null records keep their positions
        nulls = {table.path.parent / name for name in metadata.file_names(table)} - set(photos)
        photos = sorted([*photos, *nulls], key=os.path.split)
    if not photos:
        raise DataError(f"{source} holds no photos ({' '.join(SUFFIXES)}). Name another folder.")
    names = [path.relative_to(source).as_posix() for path in photos]
    columns, values, labelled, missing = _values(source, names, folders, labels, table)
    kept = [index for index in range(len(photos)) if labelled[index] or not labels.only_labelled]
    if not kept:
        raise DataError(f"{labels.path} has a label for none of the {len(photos):,} photos. Name another column.")
    targets = _targets([names[index] for index in kept])
    rows = [Photo(photos[index], target, values[index]) for index, target in zip(kept, targets, strict=True)]
    if faces > 1:
        if PERSON in columns:
            raise DataError(
                f"--faces {faces} cuts several faces out of a photo, and who is on which face is not said: the unit is "
                "then the photo, and a person would have none. Leave the people out, or take one face a photo."
            )
        columns = (*columns, metadata.CUT_FROM)
        rows = [
            Photo(
                row.source,
                f"{PurePosixPath(row.file_name).with_suffix('')}-{number + 1}.png",
                (*row.values, row.source.relative_to(source).as_posix()),
                number,
            )
            for row in rows
            for number in range(faces)
        ]
    return Planned(
        tuple(rows),
        columns,
        tuple(path for path in files if path not in bare and path.suffix.lower() not in SUFFIXES),
        twins,
        image_files.leftovers(source, SUFFIXES),
        len(photos) - len(kept),
        missing,
        sum(not labelled[index] for index in kept) if columns else 0,
    )


def _targets(names: Sequence[str]) -> list[str]:
    """Return the distinct names of the PNGs; refuse all photos at once that would get the same one."""
    targets: dict[str, str] = {}
    twice = []
    for name in names:
        cells.check_names([name], "the photo", files=True)
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{name!a} is not UTF-8 text. Rename the photo or its folder.") from error
        if "\\" in name:
            raise DataError(
                f"{name} holds a \\, which divides folders on other systems. Rename the photo or its folder."
            )
        path = PurePosixPath(name)
        target = str(path.with_suffix(".png")) if path.suffix.lower() in SUFFIXES else f"{name}.png"
        if target in targets:
            twice.append(f"{targets[target]} and {name} would both become {target}")
        targets.setdefault(target, name)
    if twice:
        raise DataError(f"{metadata.some_of(twice)}. Rename one of them.")
    return list(targets)


def metadata_csv(planned: Planned, refused: Sequence[bool]) -> str:
    """Return the content of metadata.csv; a refused photo keeps its row and its person or photo, but no label."""
    keeps = [name in (PERSON, metadata.CUT_FROM) for name in planned.columns]
    return metadata.written(
        [FILE_NAME, *planned.columns],
        (
            [
                photo.file_name,
                *(value if kept or not null else "" for kept, value in zip(keeps, photo.values, strict=True)),
            ]
            for photo, null in zip(planned.photos, refused, strict=True)
        ),
    )


def _values(
    source: Path, names: Sequence[str], folders: str | None, labels: LabelTable, table: metadata.Table | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]], list[bool], tuple[str, ...]]:
    """Return the columns, each photo's values of them, which photos have a label, and rows that are left out."""
    parts = [PurePosixPath(name).parts for name in names]
    if labels.path is None and folders is None and any(len(part) > 1 for part in parts):
        some = ", ".join(itertools.islice(dict.fromkeys(part[0] for part in parts if len(part) > 1), 3))
        raise DataError(
            f"{source} has subfolders ({some}, ...), and what they mean is not said. Give --folders label (a folder is "
            "a class), --folders person (a folder is a person), --folders none, or a table with --table."
        )
    columns, missing = ({}, ()) if table is None else _columns_of(table, labels, source, names)
    if folders not in (None, "none"):
        column = metadata.LABEL if folders.startswith("label") else PERSON
        columns[column] = _of_folders(source, parts, folders)
    if labels.patients:
        columns[PERSON] = dicom.patients([source / name for name in names])
    said = [columns[name] for name in columns if name != PERSON] or [columns[name] for name in columns]
    labelled = [any(row) for row in zip(*said, strict=True)] or [False] * len(names)
    if PERSON in columns:
        columns[PERSON] = columns.pop(PERSON)  # moves the person to the end
        lacking = [
            name
            for name, person, has_label in zip(names, columns[PERSON], labelled, strict=True)
            if not person and (has_label or not labels.only_labelled)
        ]
        if lacking:
            raise DataError(
                f"{lacking[0]} has no person in {labels.path} ({len(lacking)} of {len(names)} photos have none: "
                f"{metadata.some_of(lacking)}). Name one for each, a person of its own where nobody else is on it"
                f"{'' if labels.only_labelled else ', or leave photos without a label or row out (--only-labelled)'}."
            )
        warn_of_spellings(columns[PERSON], str(labels.path or source))
    values: list[tuple[str, ...]] = list(zip(*columns.values(), strict=True)) if columns else [()] * len(names)
    return tuple(columns), values, labelled, missing


def _of_folders(source: Path, parts: Sequence[tuple[str, ...]], folders: str) -> list[str]:
    """Return the folder of each photo on the level that is meant; refuse a photo without one, and an empty folder."""
    meaning, _, number = folders.partition(":")
    levels = max(map(len, parts)) - 1
    if levels > 1 and not number:
        known = [list(dict.fromkeys(part[k] for part in parts if len(part) > k + 1)) for k in range(levels)]
        raise DataError(
            f"{source} has folders in folders, and which of them is a {meaning} is not said. Give --folders "
            + ", or ".join(
                f"{meaning}:{k} ({len(names):,} there: {', '.join(names[:3])}{', ...' * (len(names) > 3)})"
                for k, names in enumerate(known, start=1)
            )
            + ", or a table with --table."
        )
    level = int(number or 1)
    stray = next((part for part in parts if len(part) <= level), None)
    if stray is not None:
        raise DataError(
            f"{source.joinpath(*stray)} lies beside the subfolders that --folders {folders} reads. Move it into one."
        )
    used, places = {part[:level] for part in parts}, [source]
    for _ in range(level):
        places = [path for place in places for path in image_files.entries(place) if path.is_dir()]
    empty = next((path for path in places if path.relative_to(source).parts not in used), None)
    if empty is not None:
        raise DataError(f"{empty} holds no photo, but --folders {folders} makes a {meaning} of it. Remove the folder.")
    names = [part[level - 1] for part in parts]
    cells.check_names(dict.fromkeys(names), f"{source}: the folder")
    return [cells.read(name) for name in names]


def _table_of(source: Path, folders: str | None, labels: LabelTable, tables: Sequence[Path]) -> metadata.Table | None:
    """Read the wanted columns of the table, or of those of the folder's parts; None where there is none."""
    meant = (folders or "none").partition(":")[0]
    if labels.patients and meant == PERSON:
        raise DataError("--patients and --folders both say who is on a photo. Give one.")
    if labels.path is None:
        return None
    read = [metadata.read_table(path, labels.file_column, labels.person_column) for path in tables or [labels.path]]
    table = metadata.joined(read, source) if tables else read[0]
    wanted = [name for name in table.columns if name not in table.nested]
    if labels.label_column is not None:
        table.column(labels.label_column)  # raises where there is none
        wanted = [name for name in wanted if name in (FILE_NAME, labels.label_column, PERSON)]
    if meant in wanted and meant != "none":  # "label" and "person" are the names of columns too
        raise DataError(f"{labels.path} has a column '{meant}', and --folders {folders} makes one too. Give one.")
    if labels.patients and PERSON in wanted:
        raise DataError(f"--patients and {labels.path} both say who is on a photo. Give one.")
    columns = [table.written(name) for name in wanted]
    return table._replace(columns=tuple(wanted), rows=tuple(zip(*columns, strict=True)))


def _columns_of(
    table: metadata.Table, labels: LabelTable, source: Path, names: Sequence[str]
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the columns, with a value for every photo, and rows that are left out; what does not fit is one error."""
    problems, photos = metadata.file_problems(table), set(names)
    by_key = {key: name for name in reversed(names) for key in _keys(name)}
    wanted = [name for name in table.columns if name != FILE_NAME]
    values = {name: table.people(name) if name == PERSON else table.column(name) for name in wanted}
    below = {} if table.ours else metadata.in_subfolders(map(str.strip, table.column(FILE_NAME)), names)
    nearest = {key: files[0] for name, files in below.items() for key in _keys(name)} | by_key
    rows, gone, doubtful = {}, list[str](), dict[str, list[str]]()
    for row, name in enumerate(str(PurePosixPath(name)) for name in table.column(FILE_NAME)):
        name = name if name in photos else str(PurePosixPath(name.strip()))
        if name not in photos:  # a Mac and others write accents in two ways
            name = by_key.get(metadata.composed(name), name)
        if name not in photos and (found := below.get(metadata.composed(name))):
            doubtful[name], name = found, found[0]
        rows[name] = row
        if name not in photos:
            near = next((nearest[key] for key in _keys(name) if key in nearest), None)
            gone.append(name if near is None else f"{name} (did you mean {near}?)")
    if gone and not (labels.skip_missing and len(gone) < len(rows)):
        problems.append(
            f"names {metadata.some_of(sorted(gone))}, which {'is not a photo' if len(gone) == 1 else 'are not photos'} "
            f"in {source} ({len(gone)} of {len(rows)} rows). Write {labels.file_column} as a path below that folder, "
            f"such as {names[0]}, or leave rows without a photo out (--skip-missing)."
        )
    problems += metadata.doubtful_names(doubtful)
    if problems:
        raise DataError(f"{table.path} {' '.join(problems)}")
    said = [f"{name}: {blank}" for name in wanted if name != PERSON and (blank := table.blanks(name))]
    if said:
        warn_once(
            f"{table.path}: taken as no value, {'; '.join(said)}. If one is the name of a class, write it otherwise."
        )
    columns = {name: [of[rows[photo]] if photo in rows else "" for photo in names] for name, of in values.items()}
    return columns, tuple(gone)


def _keys(name: str) -> list[str]:
    """Return what tells which photo a table may mean, nearest first: accents, case and slashes, the suffix."""
    key = metadata.composed(name.replace("\\", "/")).casefold()
    return [metadata.composed(name), key, str(PurePosixPath(key).with_suffix(""))]


# Pixels -----------------------------------------------------------------------------------------------------------


def photo_pixels(
    path: Path, channels: int, size: tuple[int, int], crop: str, view: dicom.View = dicom.AS_STORED
) -> tuple[np.ndarray, tuple[int, int]]:
    """Decode, cut and resize one photo; arguments, result and errors as of `open_photo` and `cut`."""
    with open_photo(path, channels, _DRAFT * max(size), view) as photo:
        return cut(photo, size, crop)


@contextmanager
def open_photo(path: Path, channels: int, least: int, view: dicom.View = dicom.AS_STORED) -> Iterator[Image.Image]:
    """Decode one photo to L or RGB; its memory counts as taken until the block ends.

    Args:
        least: px: a JPEG with larger sides may be decoded at a fraction of its size that has at least these.
        view: How DICOM files are shown.

    Raises:
        DataError: If the file cannot be used; the message is the rest of a sentence that begins with the file's name.
    """
    if not os.path.lexists(path):
        raise DataError("is a null record of its folder")
    if path.suffix.lower() in RAW:  # some show a small preview to who reads them as TIFF
        raise DataError("is not a picture that can be read here; convert it to JPEG or PNG")
    if dicom.is_dicom(path):
        yield image_files.as_channels(dicom.picture(path, view), channels)
        return
    with image_files.opened(path) as picture:
        picture.draft(None, (least, least))
        with image_files.ROOM.taken(picture.size):
            yield image_files.as_channels(image_files.decoded(picture), channels)


def cut(photo: Image.Image, size: tuple[int, int], crop: str) -> tuple[np.ndarray, tuple[int, int]]:
    """Cut and resize one photo.

    Args:
        size: (H, W) of the result in px.
        crop: "center" cuts the largest part of that shape from the middle; "none" squeezes the whole photo into it.

    Returns:
        uint8 (H, W) or (H, W, 3), and height and width of the part that was resized.
    """
    left, top = 0.0, 0.0
    if crop == "center":  # the largest box of the target shape
        scale = min(photo.width / size[1], photo.height / size[0])
        left, top = (photo.width - scale * size[1]) / 2, (photo.height - scale * size[0]) / 2
    box = left, top, photo.width - left, photo.height - top
    resized = photo.resize((size[1], size[0]), Image.Resampling.LANCZOS, box=box, reducing_gap=_GAP)
    return np.asarray(resized), (round(box[3] - box[1]), round(box[2] - box[0]))
