"""Classes made of binary attributes (`data.label`): one class per combination."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Sequence

import torch

from idpgan.config import nearest_hint
from idpgan.data.images import Images
from idpgan.errors import DataError
from idpgan.files import printable

_LOG = logging.getLogger(__name__)
LONGEST_CLASS_NAME = 200  # characters


def attribute_classes(label: Sequence[str]) -> tuple[str, ...]:
    """Return the class names of the combinations of attributes, in the order of `labeled_by`'s labels.

    Example:
        >>> attribute_classes(["glasses", "smiling"])
        ('no glasses, no smiling', 'glasses, no smiling', 'no glasses, smiling', 'glasses, smiling')
    """
    return tuple(
        ", ".join(name if number >> bit & 1 else f"no {name}" for bit, name in enumerate(label))
        for number in range(2 ** len(label))
    )


def check_label(label: Sequence[str], attribute_names: Sequence[str], source: str) -> None:
    """Raise a `DataError` if `data.label` names what the source does not have."""
    if label and not attribute_names:
        raise DataError(
            f"data.label = {', '.join(label)}, but '{source}' has no attributes. Leave data.label out, or take a "
            "source with attributes (faces, celeba, a folder with metadata.csv)."
        )
    for name in label:
        if name not in attribute_names:
            raise DataError(f"data.label: '{source}' has no attribute '{name}'. {nearest_hint(name, attribute_names)}")


def numbered_by(images: Images, classes: Sequence[str]) -> Images:
    """Return labeled images with the numbers that other classes, the set's own among them, give the same names."""
    if images.labels is None:
        return images
    number = torch.tensor([classes.index(name) for name in images.classes], device=images.labels.device)
    return dataclasses.replace(images, labels=number[images.labels], classes=tuple(classes))


def names_people(classes: Sequence[str], person_names: Sequence[str]) -> bool:
    """Tell whether classes are people, by what is declared of both: names in common, or equally many.

    No label is looked at, which is private: who is on which image, and the list of classes, are public.
    """
    people = {name.casefold() for name in person_names}
    return bool(people & {name.casefold() for name in classes}) or 0 < len(person_names) == len(classes)


@functools.cache  # once a data set, although several rooms describe it
def warn_of_names(classes: tuple[str, ...], where: str) -> None:
    """Say once that the names of classes will not be released."""
    _LOG.warning(
        "The classes of %s (%s) seem to be people, so a release calls them class-0 to class-%d. If their names may be "
        "known, give --keep-names (data.keep_names = true).",
        where, ", ".join(classes[:3]) + ", ..." * (len(classes) > 3), len(classes) - 1,
    )  # fmt: skip


def check_class_names(classes: Sequence[str]) -> None:
    """Refuse class names that cannot stand in a card: they are released, and shown to whoever opens it.

    Raises:
        DataError: If one is empty, longer than 200 characters, stands twice, or holds control characters, line breaks
            or bytes that are no UTF-8.
    """
    for name in classes:
        if not 0 < len(name) <= LONGEST_CLASS_NAME or not printable(name):
            shown = ascii(name) if len(name) <= 40 else f"{name[:40]!a}..."
            raise DataError(
                f"the class name {shown} ({len(name)} characters) cannot be released: a class name has 1 to "
                f"{LONGEST_CLASS_NAME} characters, all of them printable. Rename the class."
            )
    if len(set(classes)) < len(classes):
        twice = next(name for index, name in enumerate(classes) if name in classes[:index])
        raise DataError(f"the class name {twice!r} stands twice. Name each class once.")


def labeled_by(images: Images, label: Sequence[str], source: str) -> Images:
    """Return the images with the classes that the attributes make: label = sum over j of bit_j << j.

    Args:
        label: Names of attributes, bit 0 first; empty leaves the set as it is.
        source: Name of the source, for the error.

    Raises:
        DataError: If there is no attribute of such a name.
    """
    if not label:
        return images
    check_label(label, images.attribute_names, source)
    if images.attributes is None:
        raise DataError(f"'{source}' has no attributes.")
    columns = torch.tensor([images.attribute_names.index(name) for name in label], device=images.attributes.device)
    bits = images.attributes[:, columns].long()  # (N, A)
    labels = (bits << torch.arange(len(label), device=bits.device)).sum(1)
    return dataclasses.replace(images, labels=labels, classes=attribute_classes(label))
