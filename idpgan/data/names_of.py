"""Names that come with images: of people, and of classes of torch data sets, taken where they describe the items."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idpgan.data import cells, declared
from idpgan.data.labels import distinct
from idpgan.errors import DataError


def people(given: Any, num: int) -> Tensor:
    """Return a number of who is on each image, int64 (num,); refuse images of nobody."""
    order, known = distinct(given, num, "people")
    names = [cells.read(name) for name in known]
    if "" in names:
        nobody = int((order == names.index("")).sum())
        raise DataError(
            f"people: {nobody:,} of {num:,} are missing. Name one for each image, a person of its own where nobody "
            "else has that face."
        )
    cells.check_names(names, "people:")
    declared.warn_of_spellings(names, "people")
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}  # two ways of writing an accent: one
    return torch.tensor([numbers[name] for name in names])[order]


def classes(source: Any, labels: list[Any], what: str) -> tuple[list[Any], Sequence[str] | None]:
    """Return positions in the names of classes that torch data sets bring, and these, where these tell of the items.

    They do where the targets of the data set that has names, which may be a part of the source or around it, are the
    labels of its items; else labels stay as they are, and nothing is named.
    """
    labels = [label.item() if getattr(label, "ndim", 1) == 0 else label for label in labels]
    owners = [_owner(source, index) for index in range(len(labels))]
    of: dict[int, tuple[list[str], list[Any]]] = {}
    for owner, _ in owners:
        if id(owner) not in of:
            names = getattr(owner, "classes", None)
            of[id(owner)] = [*map(cells.read, names)] if isinstance(names, list | tuple) else [], _targets(owner)
    known = list(dict.fromkeys(name for names, _ in of.values() for name in names))
    places, named = {name: place for place, name in enumerate(known)}, list[int]()
    for label, (owner, index) in zip(labels, owners, strict=True):
        names, targets = of[id(owner)]
        if isinstance(label, int) and 0 <= label < len(names) and index < len(targets) and targets[index] == label:
            named.append(places[names[label]])
    if len(named) == len(labels):
        return named, known
    if known:
        declared.warn_once(
            f"{what}: the data set names its classes, but its targets are not the labels of all its items, which are "
            "taken as they are. Name the classes in their order (classes=[...]), or give texts as labels."
        )
    return labels, None


def _owner(source: Any, index: int) -> tuple[Any, int]:
    """Return the torch data set that an item comes from, the outermost one that names its classes, and its place."""
    while not hasattr(source, "classes"):
        if hasattr(source, "datasets") and hasattr(source, "cumulative_sizes"):
            part = bisect.bisect_right(source.cumulative_sizes, index)
            index -= source.cumulative_sizes[part - 1] if part else 0
            source = source.datasets[part]
        elif hasattr(source, "dataset"):
            index = int(source.indices[index]) if hasattr(source, "indices") else index
            source = source.dataset
        else:
            break
    return source, index


def _targets(source: Any) -> list[Any]:
    """Return the labels that a torch data set says of its items, as those of torchvision do."""
    for name in ("targets", "labels", "_labels"):
        if (targets := getattr(source, name, None)) is not None:
            return np.asarray(targets).tolist() if np.ndim(targets) == 1 else []
    samples = getattr(source, "samples", getattr(source, "_samples", None)) or ()
    return [sample[1] for sample in samples]


def without_empty(
    numbers: Tensor, names: tuple[str, ...], unlabeled: Tensor, what: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Leave out the names of a data set that no item has: they would be drawn as often as the others."""
    used = numbers[~unlabeled].unique()
    if len(used) == len(names):
        return numbers, names
    kept = tuple(names[place] for place in used.tolist())
    left = ", ".join(name for name in names if name not in kept)
    declared.warn_once(
        f"{what}: no item has the class {left[:200]}, left out. Name the classes to keep (classes=[...])."
    )
    return torch.searchsorted(used, numbers).clamp(max=len(kept) - 1), kept
