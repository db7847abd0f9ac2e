"""What a source of images is: each file of `idpgan.data.sources` is one, and defines a `SOURCE`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from idpgan import host
from idpgan.data.config import DataConfig
from idpgan.data.images import Images
from idpgan.lazy import torch
from idpgan.progress import Progress

if TYPE_CHECKING:
    from torch import Tensor

_LOG = logging.getLogger(__name__)
_WARNS = threading.Lock()


@dataclasses.dataclass(frozen=True)
class PublicFacts:
    """What is public about a data set, known before a pixel is read."""

    num_images: int
    num_test: int | None  # None: the source brings no test images, so 20 % of num_images are taken
    image_shape: tuple[int, int, int]  # (C, H, W)
    classes: tuple[str, ...]  # empty: unlabeled
    attribute_names: tuple[str, ...] = ()  # empty: the source has no attributes
    people: tuple[int, ...] = ()  # images of each person, in the order of their numbers; empty: no identities known
    person_names: tuple[str, ...] = ()  # names of people in the files, if any; for the curator only
    of_photos: bool = False  # whether these "people" are photos that the images were cut out of


class Refused(NamedTuple):
    """A file that became a null record. Curator only: the names of these files are private."""

    path: Path
    reason: str  # a sentence that names the file


class Read(NamedTuple):
    """The images of a source."""

    images: Images  # all positions but those of `test`
    test: Images | None = None  # the set's own test images, if it has any
    refused: tuple[Refused, ...] = ()  # refused files of both


class DataSet(NamedTuple):
    """A data set whose files are there.

    Attributes:
        facts: What is public; where the format says it, a constant of the source.
        load: Reads all images, always in the same order; any fault raises a `DataError`. A single file that cannot be
            used is not a fault: it keeps its position as a null record, and is listed. Colors are converted as
            `config.channels` says; only grey images may stay grey, since `load.load` converts them to RGB.
    """

    facts: PublicFacts
    load: Callable[[Progress], Read]


def in_memory(images: Images) -> DataSet:
    """Return images that were read as a data set: all of them are for training, it brings no test images."""
    people = () if images.identities is None else torch.unique(images.identities, return_counts=True)[1].tolist()
    facts = PublicFacts(len(images), 0, images.image_shape, images.classes, people=tuple(people))
    return DataSet(facts, lambda _: Read(images, images.select(torch.arange(0))))


class Source(NamedTuple):
    """One kind of data set. Heavy imports stay inside its functions.

    Attributes:
        find: Returns the data set of a config without reading an image; None if its files are missing.
        missing: What to say then, a sentence with ``{root}``.
    """

    find: Callable[[DataConfig], DataSet | None]
    missing: str = "There are no files in {root}."


def labeled(images: Tensor, labels: Tensor, classes: tuple[str, ...], path: Path) -> tuple[Images, list[Refused]]:
    """Return images (N, C, H, W) with the labels (N,) of a file; those whose label is out of range are null records."""
    wrong = (labels < 0) | (labels >= len(classes))
    refused = [
        Refused(path, f"{path}: label {int(labels[place])} at position {place} is out of range.")
        for place in wrong.nonzero()[:, 0].tolist()
    ]
    part = Images(images, labels.where(~wrong, 0), classes)
    return part.zeroed_out(wrong) if refused else part, refused


def warn_of_null(refused: Sequence[Refused], num: int) -> None:
    """Report on the terminal, to the curator only, which of ``num`` records are null records; never in a release."""
    if refused:
        _LOG.warning(
            "%d of %d files cannot be used as declared and stand as null records.%s The first: %s",
            len(refused), num, " Is it the right folder?" if 2 * len(refused) > num else "",
            " ".join(file.reason for file in refused[:3]),
        )  # fmt: skip
        warn_once(
            "Null records keep their positions and count in N. Replace such a file, or leave it where it is: without "
            "it all files behind it would move."
        )


def warn_once(text: str) -> None:
    """Warn the curator on the terminal once in a public call, because several modules describe the same folder."""
    if _LOG.isEnabledFor(logging.WARNING):  # what is kept back is not said yet
        with _WARNS:
            _warn(text, host.call())


@functools.lru_cache(maxsize=1000)
def _warn(text: str, _: int) -> None:
    _LOG.warning("%s", text)


@contextlib.contextmanager
def logging_only(name: str, least: int) -> Iterator[None]:
    """Let a log say in the block what is at least of this level."""
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(least)
    try:
        yield
    finally:
        log.setLevel(level)


# Keeps warnings about data back, where they were said before or said otherwise.
SILENCED = host.Shared(functools.partial(logging_only, "idpgan.data", logging.ERROR))
