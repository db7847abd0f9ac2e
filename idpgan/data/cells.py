"""What a cell says: the one function that turns a label, a person or a file's name, wherever it stands, into a text.

Every door that takes labels, people or files of somebody reads them by `read` and a rule of this table; "" is no value.
Which class a text then means is for `labels`.

    rule            what is read                                   blanks   letters    "3.0"   no value
                                                                   around   composed   is "3"
    TABLE_CELL      any cell of a CSV file or JSON lines           go       no         no      "", null of JSON
    TABLE_LABEL     labels of a table: folders, `prepare`,         go       yes        yes     BLANKS
                    `init`, `evaluate --by`, `publish --keep`
    TABLE_PERSON    who is on an image, or its photo, by a table   go       no         no      "", which is refused
    FOLDER_CLASS    a folder that is a class                       stay     no         no      none
    FOLDER_PERSON   a folder that is a person                      stay     no         no      none
    MEMORY_LABEL    labels of `fit`, `evaluate`, `sample`, npz     go       yes        yes     BLANKS
                    files, data sets; names of classes, beside
                    which a text is first taken as it stands
    MEMORY_PERSON   people of `fit` and `publish_images`           stay     no         no      none
    DICOM_PATIENT   PatientID, before it is hashed                 go       no         no      "", which is refused
    FILE_NAME       files of tables, where they are compared       stay     yes        no      "", which is refused

In folders of public images without a config a value of the column ``label`` that is the name of a folder too is none of
`BLANKS`. CelebA has numbers alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

BLANKS = frozenset({"", "nan", "NaN", "NA", "N/A", "n/a", "NULL", "null", "None", "<NA>"})  # as tables write no value
_WHOLE_FLOAT = re.compile(r"(-?[0-9]{1,18})\.0+")
_BITS = {"1": 1, "true": 1, "yes": 1, "0": 0, "-1": 0, "false": 0, "no": 0}


class Rule(NamedTuple):
    """How a cell becomes a text.

    Attributes:
        strips: Whether blanks around it go.
        composes: Whether letters with accents are composed; a Mac writes the accent by itself, others do not.
        rounds: Whether "3.0" is "3", as pandas writes whole numbers beside missing ones.
        blanks: Texts that say no value.
        null: Whether None says no value, too.
    """

    strips: bool = False
    composes: bool = False
    rounds: bool = False
    blanks: frozenset[str] = frozenset()
    null: bool = False


TABLE_CELL = Rule(strips=True, null=True)
TABLE_PERSON = DICOM_PATIENT = Rule(strips=True)
TABLE_LABEL = MEMORY_LABEL = Rule(strips=True, composes=True, rounds=True, blanks=BLANKS)
FOLDER_CLASS = FOLDER_PERSON = MEMORY_PERSON = Rule()
FILE_NAME = Rule(composes=True)


def read(cell: object, rule: Rule) -> str:
    """Return what a cell says, "" for no value."""
    text = "" if cell is None and rule.null else str(cell)
    text = text.strip() if rule.strips else text
    text = unicodedata.normalize("NFC", text) if rule.composes else text
    whole = _WHOLE_FLOAT.fullmatch(text) if rule.rounds else None
    return whole[1] if whole else "" if text in rule.blanks else text


def bits(cells: Sequence[str]) -> list[int | None]:
    """Read attributes of a table: 1, true, yes or 0, -1, false, no; None for anything else."""
    return [_BITS.get(read(cell, TABLE_LABEL).lower()) for cell in cells]


def spellings(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return groups of names that differ in nothing but capitals, blanks or composed letters."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]
