"""`metadata.csv` of a folder of images, in the convention of Hugging Face's `ImageFolder`.

    file_name,expression,person
    anna/1.png,happiness,anna

Each row is a position, in the order of the file: emptying an image or a label moves no other row. ``file_name`` is a
path below the folder, or the name alone of a file in subfolders; ``person`` says who is on the image or, in its place,
``cut_from`` which photo the image was cut out of (`idpgan prepare --faces`); any other column may hold labels.
Positions, people and photos are public; values of labels are private. Landmarks are private too; they are in a separate
table, `LANDMARKS`.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from idpgan.config import nearest_hint, text_of
from idpgan.data import cells, image_files
from idpgan.data.declared import warn_of_spellings
from idpgan.data.labels import in_order
from idpgan.data.source import warn_once
from idpgan.errors import DataError, InputError
from idpgan.files import parse_json, printable, read_plain

METADATA = "metadata.csv"
PREPARED, SHEET = "prepared.json", "prepared.png"  # beside it, where `idpgan prepare` made the folder
MANIFEST, SAMPLES = "manifest.json", "idpgan samples"  # likewise where `idpgan sample` did, and how its format begins
JSON_LINES = ".jsonl"  # suffix of a table with a JSON object a line, as Hugging Face has them too
PARTS = ("train", "test", "val", "valid", "validation")  # folders of a set that is split, which alone are no classes
LANDMARKS = "landmarks.csv"
FILE_NAME, PERSON, LABEL = "file_name", "person", "label"  # LABEL: default column of classes
CUT_FROM = "cut_from"  # the photo that an image was cut out of
_MOST_BYTES = 1 << 30
_NO_TABLES = (  # how the file begins, what it holds, what it is
    (b"PK\3\4", b"xl/", "an Excel file: save it there as CSV (CSV UTF-8)"),
    (b"PK\3\4", b"opendocument", "an OpenDocument file: save it there as CSV, in UTF-8"),
    (b"PK\3\4", b"", "an archive (ZIP): unpack the table, and name that"),
    (b"\xd0\xcf\x11\xe0", b"", "an Excel file of old (.xls): save it there as CSV (CSV UTF-8)"),
    (b"\x1f\x8b", b"", "packed by gzip: unpack it, and name what comes out"),
    (b"PAR1", b"", "a Parquet file: save it as CSV (pandas: read_parquet, then to_csv(index=False))"),
)
_DOUBTFUL = re.compile(  # control characters, three letters with accents, signs inside a word
    r"[\x00-\x08\x0e-\x1f\x7f]|[^\W\d_a-zA-Z]{3}|\w[\u2018\u201a\u201c\u201e\u2020-\u2039\u02c6\u02dc\u00a1-\u00af\u00b3\u00b8\u00b9\u00bf]\w"
)
_UTF_8 = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}")


class Table(NamedTuple):
    """The cells of a CSV file.

    Attributes:
        rows: As they are written; `column` reads them by the rules of `cells`.
        ours: Whether this package wrote it, so that names stand in it as they are.
        nested: Columns of JSON lines that hold lists or objects, which are no labels.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    ours: bool = False
    nested: frozenset[str] = frozenset()

    def written(self, name: str) -> list[str]:
        """Return the cells of a column as they are written; raises `DataError` if it is missing, or nested."""
        if name not in self.columns:
            raise DataError(f"{self.path} has no column '{name}'. {nearest_hint(name, self.columns)}")
        if name in self.nested:
            raise DataError(f"{self.path}: the column '{name}' holds lists or objects. Write a text or a number.")
        place = self.columns.index(name)
        return [row[place] for row in self.rows]

    def column(self, name: str, known: Collection[str] = ()) -> list[str]:
        """Return the values of a column; those of ``known`` are names of classes. Errors as of `written`."""
        if name == FILE_NAME:
            return self.written(name)
        if self.ours:
            return [*map(cells.unquoted, self.written(name))]
        rule = cells.TABLE if name in (PERSON, CUT_FROM) else cells.LABEL
        return [cells.read(cell, rule, known) for cell in self.written(name)]

    def people(self, name: str) -> list[str]:
        """Return who, or which photo, a column names; refuse names that no person could be told by."""
        people = self.column(name)
        if said := self.blanks(name):
            raise DataError(
                f"{self.path}: column '{name}': {said}, as tables write that nobody is known. Name a person of its own "
                "in each such row; who is called so, in other letters."
            )
        cells.check_names(dict.fromkeys(people), f"{self.path}: the {name}")
        return people

    def blanks(self, name: str, known: Collection[str] = ()) -> str:
        """Say which cells of a column are no value although they are not empty; see `cells.blanks_of`."""
        return "" if self.ours else cells.blanks_of(self.written(name), known)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """Columns that may hold labels."""
        apart = (FILE_NAME, PERSON, CUT_FROM, *self.nested)
        return tuple(name for name in self.columns if name not in apart)


def read_table(path: Path, file_column: str = FILE_NAME, person_column: str | None = None) -> Table:
    """Read a table of images: one line of columns, values separated by commas, semicolons or tabs; or JSON lines.

    The text is UTF-8, UTF-16 with a mark, or surely Windows-1252 (`_text`). A first line ``sep=;``, which Excel writes,
    says what separates values. The running numbers that pandas and R put before the columns are left out.

    Args:
        file_column: The column of the image files; the result calls it file_name.
        person_column: The column of the people; the result calls it person. None = ``person``, if there is one.

    Raises:
        DataError: If it cannot be read, lacks such a column or has a column twice, or a row of another length.
    """
    if not path.is_file():
        raise DataError(f"There is no file {path}. Name a CSV file with the columns file_name and your labels.")
    text = _text(read_plain(path, _MOST_BYTES, follow=True), path)
    try:
        lines, nested = _of_json(text) if path.suffix.lower() == JSON_LINES else (_of_csv(text), frozenset())
    except InputError:
        raise
    except (ValueError, csv.Error) as error:
        kind = "a file of JSON objects, one a line," if path.suffix.lower() == JSON_LINES else "a CSV file"
        raise DataError(f"{path} is not {kind} in UTF-8: {error}. Save it as one.") from error
    if lines and lines[0] and lines[0][0].strip() not in (file_column, person_column):
        lines = _without_index(lines, path)
    header = tuple(name.strip() for name in lines[0]) if lines else ()
    if file_column not in header:
        raise DataError(
            f"{path} must begin with a line of column names, one of them '{file_column}', but has "
            f"{', '.join(header)[:200] or 'nothing'}. Name the column of the image files so, or say how it is named "
            "(idpgan prepare --file-column)."
        )
    if person_column not in (None, *header):
        raise DataError(f"{path} has no column '{person_column}' of people. {nearest_hint(str(person_column), header)}")
    header = tuple({file_column: FILE_NAME, person_column: PERSON}.get(name, name) for name in header)
    twice = next((name for name in header if header.count(name) > 1 or not name or not printable(name)), None)
    if twice is not None:
        raise DataError(f"{path} has the column {twice!a} twice or without a name. Give each column one name.")
    rows = []
    for number, line in enumerate(lines[1:], start=2):
        if line and len(line) != len(header):
            raise DataError(f"{path}: row {number} has {len(line)} values for {len(header)} columns. Mend the row.")
        if line:
            rows.append(tuple(line))
    return Table(path, header, tuple(rows), _is_ours(path), nested)


def _is_ours(path: Path) -> bool:
    """Tell by what lies beside it whether a table is one that this package wrote."""
    manifest = path.parent / MANIFEST
    if path.name != METADATA or (path.parent / PREPARED).is_file():
        return path.name == METADATA
    return manifest.is_file() and f'"{SAMPLES}' in manifest.read_text(encoding="utf-8", errors="replace")


def _text(content: bytes, path: Path) -> str:
    """Return the text of a table; refuse what is none, by what it is.

    Windows-1252 is certain where no two bytes make a letter of UTF-8 and nothing is `_DOUBTFUL`, as it is where other
    alphabets are read so.
    """
    kind = next((kind for first, within, kind in _NO_TABLES if content.startswith(first) and within in content), None)
    if kind is not None:
        raise DataError(f"{path} is {kind}.")
    with suppress(UnicodeDecodeError):
        if "\0" not in (text := text_of(content)):
            return text
    with suppress(UnicodeDecodeError):
        text = content.decode("cp1252")
        if not _DOUBTFUL.search(text) and not _UTF_8.search(content):
            example = next(word for word in text.split() if not word.isascii())[:40]
            warn_once(
                f"{path} is not UTF-8 and was read as Windows-1252, as {example}. If that is wrong, save it as UTF-8."
            )
            return text
    raise DataError(f"{path} is no text in UTF-8 or surely in Windows-1252. Save it as a CSV file in UTF-8.")


def _without_index(lines: list[list[str]], path: Path) -> list[list[str]]:
    """Leave an unnamed first column of numbers, each once, out: pandas and R write it."""
    numbers = [line[0].strip() for line in lines[1:] if line]
    known = all(number.isascii() and number.isdigit() for number in numbers) and len({*numbers}) == len(numbers)
    if lines[0][0].strip() not in ("", "Unnamed: 0") or not known:
        return lines
    warn_once(f"{path}: the first column, of running numbers without a name, is left out (pandas: index=False).")
    return [line[1:] for line in lines]


def _of_csv(text: str) -> list[list[str]]:
    first, _, rest = text.partition("\n")
    declared = first.strip().strip('"').lower()
    if declared.startswith("sep=") and len(declared) <= 5:
        delimiter, text = declared[4:] or "\t", rest  # a tab is stripped
    else:
        delimiter = max(",;\t", key=first.count)  # a comma if none occurs
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))


def _of_json(text: str) -> tuple[list[list[str]], frozenset[str]]:
    """Return columns and rows, and which columns hold lists or objects; null is an empty cell."""
    rows = [parse_json(line.encode()) for line in text.split("\n") if line.strip()]
    wrong = next((number for number, row in enumerate(rows, start=1) if not isinstance(row, dict)), None)
    if wrong is not None:
        raise ValueError(f"line {wrong} holds no object")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    nested = frozenset(name for row in rows for name, value in row.items() if isinstance(value, list | dict))
    return [columns, *([cells.read(row.get(name)) for name in columns] for row in rows)], nested


def written(header: Sequence[str], rows: Iterable[Sequence[str]], end: str = "\n") -> str:
    """Return a table of ours, whose first column is of files: `Table.column` reads exactly these names back."""
    lines = ([row[0], *map(cells.quoted, row[1:])] for row in itertools.chain([header], rows))
    return "".join(",".join(map(_of_cell, line)) + end for line in lines)


def _of_cell(text: str) -> str:
    """Return a cell of a CSV file; the module csv forgets to quote a carriage return."""
    return '"' + text.replace('"', '""') + '"' if re.search('[",\r\n]', text) else text


def tables_in(root: Path) -> list[Path]:
    """List the tables where Hugging Face's `ImageFolder` has them: in the folder, or else in the parts of the set."""
    names = (METADATA, f"metadata{JSON_LINES}")
    tables = [root / name for name in names if (root / name).is_file()]
    return tables[:1] or [path for part in PARTS for name in names if (path := root / part / name).is_file()]


def joined(tables: Sequence[Table], root: Path) -> Table:
    """Return one table of all rows, whose files are paths below ``root``.

    Raises:
        DataError: If they have different columns.
    """
    first = tables[0]
    for table in tables:
        if set(table.columns) != set(first.columns):
            raise DataError(f"{first.path} and {table.path} must have the same columns. Add those that one lacks.")
    rows, nested = [], frozenset[str]().union(*(table.nested for table in tables))
    for table in tables:
        below = table.path.parent.relative_to(root)
        for cells_of in table.rows:
            row = dict(zip(table.columns, cells_of, strict=True))
            row[FILE_NAME] = row[FILE_NAME].strip() and (below / row[FILE_NAME]).as_posix()
            rows.append(tuple(row[name] for name in first.columns))
    return Table(first.path, first.columns, tuple(rows), all(table.ours for table in tables), nested)


def file_names(table: Table) -> list[str]:
    """Return the files of a table; raises `DataError` with all that `file_problems` finds."""
    problems, names, root = file_problems(table), table.column(FILE_NAME), table.path.parent
    if backwards := [name for name in names if "\\" in name]:
        problems.append(
            f"{backwards[0]} and {len(backwards) - 1:,} more have \\ between folders and files. Write / instead."
        )
    names = [name if name == name.strip() or (root / name).exists() else name.strip() for name in names]
    absent = [] if table.ours else [name for name in names if "/" not in name and not _on_disk(root, name).exists()]
    if absent and not problems:
        below = in_subfolders(names, [path.relative_to(root).as_posix() for path in image_files.walk(root)])
        found = {name: below.get(composed(name), [name]) for name in absent}
        names = [found.get(name, [name])[0] for name in names]
        problems = doubtful_names(found)
    if problems:
        raise DataError(f"{table.path} {' '.join(problems)}")
    return names


def file_problems(table: Table) -> list[str]:
    """Say in a sentence each which rows name a file a second time, or one outside the table's folder."""
    outside, again = list[str](), list[str]()
    seen: set[str] = set()
    for number, name in enumerate(table.column(FILE_NAME), start=2):
        name, path = (name if table.ours else name.strip()), PurePosixPath(name.strip())
        if not name or path.is_absolute() or ".." in path.parts or "\0" in name:
            outside.append(f"row {number} has the file_name {name[:200]!r}")
        elif composed(name) in seen:
            again.append(f"row {number} names {name} a second time")
        seen.add(composed(name))
    problems = []
    if outside:
        problems.append(
            f"{some_of(outside)}, which is not a path below its folder. Name the file; to take an image out, empty the "
            "file instead."
        )
    if again:
        problems.append(f"{some_of(again)}. Keep one row for each image.")
    return problems


def in_subfolders(names: Iterable[str], files: Iterable[str]) -> dict[str, list[str]]:
    """Return names of files, and the files in subfolders that are called so and that no row names by their path.

    A row with such a name alone means the only one of them. A file serves one row at most, so a file more or less
    empties or changes no other row.
    """
    named, found = {*map(composed, names)}, dict[str, list[str]]()
    for file in files:
        if "/" in file and composed(file) not in named:
            found.setdefault(composed(PurePosixPath(file).name), []).append(file)
    return found


def doubtful_names(found: Mapping[str, Sequence[str]]) -> list[str]:
    """Say in a sentence which names without a folder several files in subfolders have."""
    doubts = [f"{name}, which is {files[0]} or {files[1]}" for name, files in found.items() if len(files) > 1]
    return [f"names {some_of(doubts)}. Write the path below that folder."] if doubts else []


def composed(name: str) -> str:
    """Return a file's name as it is compared with others."""
    return cells.read(str(PurePosixPath(name)))


def _on_disk(root: Path, name: str) -> Path:
    """Return the path of an image, in the way of writing accents that the disk has."""
    ways = (root / unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    return root / name if name.isascii() else next((way for way in (root / name, *ways) if way.exists()), root / name)


def warn_of_case(root: Path, paths: Sequence[Path]) -> None:
    """Name files that are there in other letters than a table has: as they stand, they are null records."""
    missing = [path for path in paths if not path.exists()]
    if missing:
        files = (Path(place, file) for place, _, files in os.walk(root) for file in files)
        like = {composed(str(path)).casefold(): path for path in files}
        near = [(path, like[key]) for path in missing if (key := composed(str(path)).casefold()) in like]
        if near:
            row, file = (path.relative_to(root) for path in near[0])
            warn_once(
                f"{root / METADATA} names {len(near):,} files in other letters than the disk, which stand as null "
                f"records: {row} is {file} there. Write the names as the files have them."
            )


def some_of(texts: Sequence[str], most: int = 10) -> str:
    """Join what was found with semicolons; beyond the first ten only their number is said."""
    more = len(texts) - most
    return "; ".join(texts[:most]) + (f"; and {more:,} more" if more > 0 else "")


class Rows(NamedTuple):
    """The metadata of each position, by rows."""

    paths: tuple[Path, ...]
    people: tuple[int, ...] | None  # numbers in the order in which people first appear; None: no such column
    values: tuple[tuple[str, ...], ...]  # values of the requested label columns, column by column
    columns: tuple[str, ...]  # columns that may hold labels
    person_names: tuple[str, ...] = ()  # in the order of the people's numbers
    blanks: str = ""  # which values of the columns are none although their cells are not empty
    of_photos: bool = False  # whether these "people" are photos that the images were cut out of


def read_rows(
    root: Path, label: Sequence[str] | None = None, key: str = "data.label", classes: Sequence[str] = ()
) -> Rows:
    """Read the metadata of a folder.

    Args:
        label: Columns of labels; None = all of them.
        key: What names them, for errors.
        classes: Declared names of classes, which are no blanks.

    Raises:
        DataError: If it cannot be used, lacks a column of `label`, or has a column of people but a row without a
            person.
    """
    table = read_table(root / METADATA)
    paths = tuple(_on_disk(root, name) for name in file_names(table))
    people, numbers = None, {}
    if PERSON in table.columns and CUT_FROM in table.columns:
        raise DataError(
            f"{table.path} has the columns {PERSON} and {CUT_FROM}, and only one of them can be what is protected as a "
            "whole. Take one out."
        )
    column = CUT_FROM if CUT_FROM in table.columns else PERSON
    if column in table.columns:
        names = table.people(column)
        if "" in names:
            raise DataError(
                f"{table.path}: row {names.index('') + 2} has no {column} ({names.count('')} of {len(names)} rows). "
                "Name one in each row, a person of its own where nobody else has that face, or take the column out."
            )
        warn_of_spellings(names, str(table.path))
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        people = tuple(numbers[name] for name in names)
    label = table.label_columns if label is None else label
    for name in label:
        if name not in table.label_columns:
            raise DataError(
                f"{key}: {table.path} has no column '{name}' of labels. {nearest_hint(name, table.label_columns)}"
            )
    values = tuple(tuple(table.column(name, classes)) for name in label)
    said = "; ".join(text for name in label if (text := table.blanks(name, classes)))
    return Rows(paths, people, values, table.label_columns, tuple(numbers), said, column == CUT_FROM)


def read_landmarks(root: Path, paths: Sequence[Path]) -> list[list[tuple[float, float]]]:
    """Read the landmarks of images from the table `LANDMARKS` of their folder: x and y in px, equally many per image.

    Its columns are file_name, x1, y1, x2, y2, ...; rows may have any order. A cell that is not a finite number becomes
    NaN.

    Raises:
        DataError: If it cannot be used, or an image is not in it.
    """
    table = read_table(root / LANDMARKS)
    num = (len(table.columns) - 1) // 2
    wanted = [f"{axis}{place}" for place in range(1, num + 1) for axis in "xy"]
    if num == 0 or set(table.columns) != {FILE_NAME, *wanted}:
        raise DataError(f"{table.path} must have the columns {FILE_NAME}, x1, y1, x2, y2, ... and no others.")
    columns = [table.column(name) for name in wanted]
    rows = {composed(name): row for row, name in enumerate(file_names(table))}
    landmarks = []
    for path in paths:
        name = composed(path.relative_to(root).as_posix())
        if name not in rows:
            raise DataError(f"{table.path} has no row for {name}. Mark that face too.")
        numbers = []
        for column in columns:
            try:
                number = float(column[rows[name]])
            except ValueError:
                number = math.nan
            numbers.append(number if math.isfinite(number) else math.nan)
        landmarks.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return landmarks


def class_values(values: Sequence[str]) -> list[str]:
    """List the distinct values of a column that may hold classes, in order, without blanks."""
    return in_order({*values} - {""})
