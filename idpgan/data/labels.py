"""Which class a label means: one rule for every door that takes labels or gives them.

A class has a name and a position. A text is a name. A number is the name of the class that is called by it: 3, "3",
"003" and a table's "3.0" are one number. Only where no class is called by it, and not all classes are called by
numbers, is a number a position. Whoever means a position says so: "position 3", the array ``positions`` of an npz
file, or a torch data set that names its classes. What is given out is the number that a class is called by, or its
position where not all classes are called by numbers.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from idpgan.config import nearest_hint
from idpgan.errors import InputError

NONE = -1  # the position of a label that is none of the classes
BLANKS = frozenset({"", "nan", "NaN", "NA", "N/A", "n/a", "NULL", "null", "None", "<NA>"})  # as tables write no value
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_WHOLE_FLOAT = re.compile(r"(-?[0-9]{1,18})\.0+")
_POSITION = re.compile(r"position ([0-9]{1,9})")
_MOST_SHOWN, _LONGEST_SHOWN = 20, 40  # most class names, and letters of a label, in an error


def spelled(label: object) -> str:
    """Return a label in its one spelling: composed letters, whole numbers without ".0", "" for no value."""
    text = unicodedata.normalize("NFC", str(label).strip())
    whole = _WHOLE_FLOAT.fullmatch(text)
    return whole[1] if whole else "" if text in BLANKS else text


def in_order(names: Iterable[str]) -> list[str]:
    """Sort the names of classes: as numbers where all are whole numbers, else as texts."""
    listed = sorted(names)
    values = [_value(name) for name in listed]
    return listed if None in values else [name for _, name in sorted(zip(values, listed, strict=True))]


def places(labels: Iterable[object], classes: Sequence[str]) -> list[int]:
    """Return the position of the class that each label means, `NONE` where it means none."""
    named = {spelled(name): place for place, name in enumerate(classes)} | {
        name: place for place, name in enumerate(classes)
    }
    values = [_value(name) for name in classes]
    times = Counter(values)
    called = {value: place for place, value in enumerate(values) if value is not None and times[value] == 1}

    def place(label: object) -> int:
        for text in (str(label), spelled(label)):
            if text and text in named:
                return named[text]
        number = int(label) if isinstance(label, bool) else _value(str(label))
        if number in called:
            return called[number]
        positional = not isinstance(label, str) and None in values
        return number if positional and number is not None and 0 <= number < len(classes) else NONE

    return [place(label) for label in labels]


def numbers(classes: Sequence[str]) -> list[int]:
    """Return the number by which each class is given out."""
    values = [value for name in classes if (value := _value(name)) is not None]
    return values if len(set(values)) == len(classes) else list(range(len(classes)))


def are_ambiguous(classes: Sequence[str]) -> bool:
    """Tell whether a class is called by the number of another's position, so that `numbers` could be misread."""
    return places(numbers(classes), classes) != list(range(len(classes)))


def asked_for(label: object, classes: Sequence[str], what: str = "label") -> int:
    """Return the position of a class that a user asks for, also by the words "position 3".

    Raises:
        InputError: If it is none.
    """
    [place] = places([label], classes)
    word = _POSITION.fullmatch(str(label).strip())
    if place == NONE and word and int(word[1]) < len(classes):
        return int(word[1])
    if place != NONE:
        return place
    known = "; ".join(classes[:_MOST_SHOWN]) + ("; ..." if len(classes) > _MOST_SHOWN else "")
    hint = nearest_hint(label, classes) if isinstance(label, str) and label.strip() else ""
    shown = ascii(label[:_LONGEST_SHOWN]) if isinstance(label, str) else str(label)[:_LONGEST_SHOWN]
    raise InputError(
        f"{what}: {shown} is not a class. The classes are {known}. Write names, or `position N`, N from 0 to "
        f"{len(classes) - 1} in that order. {hint if 'Did' in hint else ''}".rstrip()
    )


def spellings(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return groups of names that differ in nothing but capitals, blanks or composed letters."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _value(name: str) -> int | None:
    """Return the whole number that a class is called by, None if it is called otherwise."""
    text = spelled(name)
    return int(text) if _WHOLE.fullmatch(text) else None
