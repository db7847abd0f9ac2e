"""What a cell says: the one function that turns a label, a person or a file's name, wherever it stands, into a text.

What is written is what is read back. Every door that takes labels, people or files of somebody reads them by `read` and
a rule of this table; "" is no value. Which class a text then means is for `labels`.

    rule    what is read                                                     says no value
    NAME    labels and people in memory, names of folders                    what is missing by its type: None, NaN,
                                                                             pandas' NA and NaT; ""
    TABLE   people of foreign tables, PatientID of DICOM: blanks around go   ""; `BLANKS` are refused
    LABEL   labels of foreign tables: blanks around go, "3.0" is "3"         `BLANKS`, unless a class is called so;
                                                                             they are counted and said

Letters with accents are composed by all three. Cells of tables of ours (`metadata.Table.ours`) are what `unquoted`
says. Files of tables are read as they stand, and by TABLE where there is no such file. CelebA has numbers alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from numbers import Integral, Real

from idpgan.errors import DataError

BLANKS = frozenset({"", "nan", "NaN", "NA", "N/A", "n/a", "NULL", "null", "None", "<NA>"})  # as tables write no value
_MISSING = ("NAType", "NaTType")  # of pandas
_WHOLE_FLOAT = re.compile(r"(-?[0-9]{1,18})\.0+")
_BITS = {"1": 1, "true": 1, "yes": 1, "0": 0, "-1": 0, "false": 0, "no": 0}
_NOT_SHOWN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")

Rule = Enum("Rule", ["NAME", "TABLE", "LABEL"])
NAME, TABLE, LABEL = Rule


def read(cell: object, rule: Rule = NAME, known: Collection[str] = ()) -> str:
    """Return what a cell says, "" for no value; a text of ``known``, which are names of classes, says itself."""
    if cell is None or type(cell).__name__ in _MISSING or cell != cell:
        return ""
    whole = isinstance(cell, Real) and not isinstance(cell, Integral) and float(cell).is_integer()
    text = str(int(cell) if whole else cell)  # type: ignore[call-overload]
    text = unicodedata.normalize("NFC", text if rule is NAME else text.strip())
    if rule is not LABEL or text in known:
        return text
    number = _WHOLE_FLOAT.fullmatch(text)
    return number[1] if number else "" if text in BLANKS else text


def blanks_of(cells: Iterable[str], known: Collection[str] = ()) -> str:
    """Say which cells of a foreign table are `BLANKS`, by spelling and count, "" if none but empty ones are."""
    counts = Counter(text for cell in cells if (text := read(cell, TABLE)) in BLANKS - {"", *known})
    return ", ".join(f"{count:,} of these are {text!r}" for text, count in counts.most_common())


def bits(cells: Sequence[str]) -> list[int | None]:
    """Read attributes of a table: 1, true, yes or 0, -1, false, no; None for anything else."""
    return [_BITS.get(read(cell, LABEL).lower()) for cell in cells]


def number(name: object) -> int | None:
    """Return the whole number that a name is: 3, "3", "003" and "3.0" are one; None if it is none."""
    text = read(name, LABEL)
    return int(text) if re.fullmatch("-?[0-9]{1,18}", text) else None


def spellings(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return groups of names that differ in nothing but capitals, blanks or composed letters."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def check_names(names: Iterable[str], what: str, *, files: bool = False) -> None:
    """Refuse names, where they are taken for the first time, that could not be told from others by looking at them.

    Raises:
        DataError: If one holds a character that does not show or, unless they are of files, has blanks around.
    """
    for name in names:
        for sign in name:
            if unicodedata.category(sign) in ("Cc", "Cf") or _NOT_SHOWN.match(sign):
                raise DataError(
                    f"{what} {name!a} holds U+{ord(sign):04X} ({unicodedata.name(sign, 'without a name')}), which "
                    "does not show, so that two names look alike. Write the name without it."
                )
        if name != name.strip() and not files:
            raise DataError(f"{what} {name!a} begins or ends with a blank. Write the name without it.")


# In tables that are given away --------------------------------------------------------------------------------------


def quoted(name: str) -> str:
    """Return the cell for a name: a spreadsheet must not take it for a formula, and `unquoted` gives it back."""
    return f"'{name}" if _FORMULA.match(name) and not _NUMBER.fullmatch(name) else name


def unquoted(cell: str) -> str:
    """Return the name that `quoted` wrote into a cell."""
    return cell[1:] if cell.startswith("'") and quoted(cell[1:]) == cell else cell
