"""Which class a label means: one rule for every door that takes labels or gives them.

A class has a name and a position. A text is a name. A number is the name of the class that is called by it: 3, "3",
"003" and a table's "3.0" are one number. Only where no class is called by it, and not all classes are called by
numbers, is a number a position. Whoever means a position says so: "position 3", the array ``positions`` of an npz
file, or a torch data set whose targets say its labels. What is given out is the number that a class is called by, or
its position where not all classes are called by numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from idpgan.config import nearest_hint
from idpgan.data import cells
from idpgan.errors import DataError, InputError
from idpgan.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Meaning = Literal["names", "positions", "either"]  # of numbers as labels; "either" in files of earlier versions
MOST_CLASSES = 1000  # distinct values of a column; with more, it is free text

NONE = -1  # the position of a label that is none of the classes
_POSITION = re.compile(r"position ([0-9]{1,9})")
_MOST_SHOWN, _LONGEST_SHOWN = 20, 40  # most class names, and letters of a label, in an error


def in_order(names: Iterable[str]) -> list[str]:
    """Sort the names of classes: as numbers where all are whole numbers, else as texts."""
    listed = sorted(names)
    values = [cells.number(name) for name in listed]
    return listed if None in values else [name for _, name in sorted(zip(values, listed, strict=True))]


def positions_of(labels: Iterable[object], classes: Sequence[str]) -> list[int]:
    """Return the position of the class that each label means, `NONE` where it means none."""
    named: dict[str, int] = {}
    for way in (lambda name: cells.read(name, cells.TABLE), cells.read, str):  # the last one counts first
        named |= {way(name): place for place, name in enumerate(classes)}
    values = [cells.number(name) for name in classes]
    times = Counter(values)
    called = {value: place for place, value in enumerate(values) if value is not None and times[value] == 1}

    def place(label: object) -> int:
        for text in (label, cells.read(label), cells.read(label, cells.TABLE)):
            if text and isinstance(text, str) and text in named:
                return named[text]
        number = int(label) if isinstance(label, bool) else cells.number(label)
        if number in called:
            return called[number]
        positional = not isinstance(label, str) and None in values
        return number if positional and number is not None and 0 <= number < len(classes) else NONE

    return [place(label) for label in labels]


def numbers(classes: Sequence[str]) -> list[int]:
    """Return the number by which each class is given out."""
    values = [value for name in classes if (value := cells.number(name)) is not None]
    return values if len(set(values)) == len(classes) else list(range(len(classes)))


def are_ambiguous(classes: Sequence[str]) -> bool:
    """Tell whether a class is called by the number of another's position, so that `numbers` could be misread."""
    return positions_of(numbers(classes), classes) != list(range(len(classes)))


def position_of(label: object, classes: Sequence[str], what: str = "label") -> int:
    """Return the position of a class that a user asks for, also by the words "position 3".

    Raises:
        InputError: If it is none.
    """
    [place] = positions_of([label], classes)
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


def resolved(
    labels: Any,
    num: int,
    what: str,
    *,
    classes: Sequence[str] | None = None,
    source_classes: Sequence[str] | None = None,
    meaning: Meaning = "names",
) -> tuple[Tensor, tuple[str, ...], Tensor]:
    """Return positions in the classes, int64 (num,), the names of these, and which labels mean none of them.

    Args:
        labels: Whole numbers or texts, ``num`` of them.
        what: What is labeled, for errors.
        classes: Names of the classes; None takes ``source_classes``, or the values that the labels have, in order.
        source_classes: Names that a data set or a file brings.
        meaning: What numbers are: names of classes, positions in ``source_classes``, or either of the two.

    Raises:
        DataError: If the labels cannot be classes, nothing says whether numbers are names or positions, or no image at
            all has a class.
    """
    order, values = distinct(labels, num, f"labels of {what}")
    names = tuple(map(str, source_classes if classes is None and source_classes is not None else classes or ()))
    source_classes = names if source_classes is None else tuple(map(str, source_classes))
    whole = all(isinstance(value, int) or value == "" for value in values)
    inside = [value if whole and value != "" and 0 <= value < len(source_classes) else NONE for value in values]
    renumbered = NONE not in positions_of(source_classes, names)  # each of the source's classes is one of these
    if meaning == "either":
        meant = positions_of(values, names)
        if NONE not in (*meant, *inside) and meant != inside:
            raise DataError(
                f"{what}: labels {', '.join(map(str, values[:10]))} could be names or positions in classes. Save "
                "positions=... beside them, or labels=... as texts."
            )
        meaning = "positions" if NONE in meant else "names"  # earlier versions call positions labels
    elif names and whole and are_ambiguous(names) and (meaning == "names" or not renumbered):
        raise DataError(
            f"classes are {', '.join(names[:20])}: a number could be the name of one and the position of another. Give "
            "the names of the classes as labels, as texts."
        )
    if meaning == "positions" and whole and renumbered:
        values = ["" if place == NONE else source_classes[place] for place in inside]
    if not names:
        names = tuple(in_order({cells.read(value) for value in values} - {""}))
        if len(names) > min(MOST_CLASSES, max(num // 2, 2)):
            raise DataError(
                f"labels have {len(names):,} values for {num:,} {what}, too many to be classes. Name the classes "
                "(classes=[...]), or leave the labels out."
            )
    positions = torch.tensor(positions_of(values, names), dtype=torch.int64)[order]
    if bool((positions == NONE).all()):
        raise DataError(
            f"none of the {num:,} labels of {what} is one of the classes "
            f"({', '.join(names[:20]) or 'labels are blank'}). Name the classes as the labels do (classes=[...])."
        )
    return positions.clamp(min=0), names, positions == NONE


def distinct(values: Any, num: int, what: str) -> tuple[Tensor, list[Any]]:
    """Return the place of each value among the sorted distinct ones, and these; whole numbers or texts, "" for none.

    Raises:
        DataError: If these are not ``num`` numbers or texts in a row.
    """
    try:
        if isinstance(values, torch.Tensor):  # NumPy has fewer kinds of floats
            values = (values.double() if values.is_floating_point() else values).detach().cpu()
        elif isinstance(values, list | tuple) or getattr(getattr(values, "dtype", None), "kind", "") == "O":
            values = [value.item() if getattr(value, "ndim", 1) == 0 else value for value in values]
        array = np.asarray(values)
        if isinstance(values, list) and array.ndim == 1 and (array.dtype.kind in "Uf" or len({*map(type, values)}) > 1):
            array = np.array(values, dtype=object)  # a NaN among texts became one, a large number another
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different lengths, nested tensors
        raise DataError(
            f"{what} must be {num:,} whole numbers or texts in a row, got {type(values).__name__}."
        ) from error
    listed = array.tolist() if array.ndim == 1 and array.dtype.kind in "fO" else []
    texts = [cells.read(value) if np.ndim(value) == 0 else None for value in listed]
    if listed and all(not text or isinstance(value, str | Real) for value, text in zip(listed, texts, strict=True)):
        array = np.array(texts)
    if array.shape != (num,) or array.dtype.kind not in "biuU":
        one_hot = " Give the number of the class, not a row of zeros and a one." if array.ndim == 2 else ""
        raise DataError(
            f"{what} must be {num:,} whole numbers or texts, one for each image, got {array.dtype} {array.shape}."
            f"{one_hot}"
        )
    ordered, order = np.unique(array, return_inverse=True)
    found = ordered.tolist()
    if listed and not any(isinstance(value, str) for value in listed):
        truths = {"True": True, "False": False}
        found = [int(text) if text.lstrip("-").isdecimal() else truths.get(text, text) for text in found]
    return torch.from_numpy(order.reshape(-1).astype(np.int64)), found
