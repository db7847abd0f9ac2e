"""What a folder of photos will become, known by names alone: one row for each photo, with labels and person."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from idpgan.data.folder import entries, walk
from idpgan.data.metadata import FILE_NAME, METADATA, PERSON, Table, file_names, read_table
from idpgan.data.photos import SUFFIXES
from idpgan.errors import DataError

Folders = Literal["label", "person", "none"]
LABEL = "label"  # the column that subfolders make


class Photo(NamedTuple):
    """One position of the prepared folder."""

    source: Path
    file_name: str  # below the prepared folder
    values: tuple[str, ...]  # of the columns


class Planned(NamedTuple):
    """The rows of the prepared folder."""

    photos: tuple[Photo, ...]
    columns: tuple[str, ...]  # beside file_name: labels, then the person
    left_out: tuple[Path, ...]  # files that are no photos by their names


def plan(source: Path, folders: Folders | None = None, labels: Path | None = None) -> Planned:
    """List the photos below a folder, in the order of their names, with labels and person.

    Args:
        source: The folder; hidden files are left out.
        folders: What its subfolders mean; None = not said.
        labels: CSV file with ``file_name`` (path below the folder) and columns of labels, maybe ``person``; None = the
            folder's own metadata.csv, if it has one.

    Raises:
        DataError: If there are no photos, if subfolders are there and their meaning is not said, if two photos would
            get one name, if a person or class has no photo, or if the table does not fit the photos.
    """
    if not source.is_dir():
        raise DataError(f"There is no folder {source}. Name the folder of photos.")
    if labels is None and (source / METADATA).is_file():
        labels = source / METADATA
    files = [path for path in walk(source) if labels is None or path != labels]
    photos = [path for path in files if path.suffix.lower() in SUFFIXES]
    if not photos:
        raise DataError(f"{source} holds no photos ({' '.join(SUFFIXES)}). Name another folder.")
    names = [path.relative_to(source).as_posix() for path in photos]
    columns, values = _values(source, names, folders, labels)
    return Planned(
        tuple(Photo(*row) for row in zip(photos, _targets(names), values, strict=True)),
        columns,
        tuple(path for path in files if path.suffix.lower() not in SUFFIXES),
    )


def metadata_csv(planned: Planned, refused: Sequence[bool]) -> str:
    """Return the content of metadata.csv; a refused photo keeps its row and its person, but no label."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((FILE_NAME, *planned.columns))
    for photo, is_null in zip(planned.photos, refused, strict=True):
        values = zip(planned.columns, photo.values, strict=True)
        writer.writerow((photo.file_name, *("" if is_null and name != PERSON else value for name, value in values)))
    return text.getvalue()


def _targets(names: Sequence[str]) -> list[str]:
    """Return the names of the PNGs, no two alike."""
    targets: dict[str, str] = {}
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{name!a} is no UTF-8 text. Rename the photo or its folder.") from error
        target = str(PurePosixPath(name).with_suffix(".png"))
        if target in targets:
            raise DataError(f"{targets[target]} and {name} would both become {target}. Rename one of them.")
        targets[target] = name
    return list(targets)


def _values(
    source: Path, names: Sequence[str], folders: Folders | None, labels: Path | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    parts = [PurePosixPath(name).parts for name in names]
    if labels is None and folders is None and any(len(part) > 1 for part in parts):
        some = ", ".join(itertools.islice(dict.fromkeys(part[0] for part in parts if len(part) > 1), 3))
        raise DataError(
            f"{source} has subfolders ({some}, ...), and what they mean is not said. Give --folders label (a folder is "
            "a class), --folders person (a folder is a person), --folders none, or a table with --labels."
        )
    table = None if labels is None else read_table(labels)
    said = {} if table is None else _said(table, source, names)
    columns = {} if table is None else {name: index for index, name in enumerate(table.columns) if name != FILE_NAME}
    found: dict[str, list[str]] = {
        name: [said[photo][index] if photo in said else "" for photo in names] for name, index in columns.items()
    }
    if folders in ("label", "person"):
        column = LABEL if folders == "label" else PERSON
        if column in found:
            raise DataError(f"{labels} has a column '{column}', and --folders {folders} makes one too. Give one.")
        found[column] = _first_folders(source, parts, folders)
    if PERSON in found:
        found[PERSON] = found.pop(PERSON)  # last
        if "" in found[PERSON]:
            raise DataError(
                f"{names[found[PERSON].index('')]} has no person in {labels} ({found[PERSON].count('')} of "
                f"{len(names)} photos have none). Name one for each, a person of its own where nobody else is on it."
            )
    return tuple(found), list(zip(*found.values(), strict=True)) if found else [()] * len(names)


def _said(table: Table, source: Path, names: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the rows of a table, each under its photo's name."""
    rows = {str(PurePosixPath(name)): row for name, row in zip(file_names(table), table.rows, strict=True)}
    gone = sorted(set(rows) - set(names))
    if gone:
        raise DataError(
            f"{table.path} names {gone[0]}, which is no photo in {source} ({len(gone)} of {len(rows)} rows). "
            f"Write file_name as a path below that folder, such as {names[0]}, and take out rows without a photo."
        )
    return rows


def _first_folders(source: Path, parts: Sequence[tuple[str, ...]], folders: Folders) -> list[str]:
    beside = next((part for part in parts if len(part) == 1), None)
    if beside is not None:
        raise DataError(
            f"{source / beside[0]} lies beside the subfolders that --folders {folders} reads. Move it into one."
        )
    used = {part[0] for part in parts}
    empty = next((path for path in entries(source) if path.is_dir() and path.name not in used), None)
    if empty is not None:
        raise DataError(f"{empty} holds no photo, but --folders {folders} makes a {folders} of it. Remove the folder.")
    return [part[0] for part in parts]
