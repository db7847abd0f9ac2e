"""What a source of images answers: the interface of `mnist.py`, `folder.py`, `digits.py` and those to come."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from idpgan.data.config import DataConfig
from idpgan.data.images import Images
from idpgan.progress import Progress

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Found:
    """The facts of a source before a pixel is read."""

    num_images: int
    num_test: int | None  # None: the source brings no test images, so 20 % of num_images are taken
    image_shape: tuple[int, int, int]  # (C, H, W)
    classes: tuple[str, ...]  # empty: unlabeled
    attribute_names: tuple[str, ...] = ()  # empty: the source has no attributes
    people: tuple[int, ...] = ()  # images of each person, in the order of their numbers; empty: no identities known
    person_names: tuple[str, ...] = ()  # how the files call people, as far as they do; for the curator alone


class Refused(NamedTuple):
    """A file that stands as a null record. Curator only: which files those are is private."""

    path: Path
    reason: str  # a sentence that names the file


class Read(NamedTuple):
    """The images of a source."""

    images: Images  # all positions but those of `test`
    test: Images | None = None  # the set's own test images, where it brings some
    refused: tuple[Refused, ...] = ()  # of both


class Source(Protocol):
    """A module that reads one kind of data set. Heavy imports stay inside its functions."""

    def read(self, config: DataConfig, progress: Progress) -> Read:
        """Return all images, and the set's own test images if it has some; any fault is a `DataError`.

        A single file that cannot be used is not a fault: it keeps its position as a null record, and is listed. Colors
        are converted as `config.channels` says; only grey images may stay grey, `load` repeats them to RGB.
        """

    def describe(self, config: DataConfig) -> Found | None:
        """Return the facts that are known without reading images; None if the files are missing."""


def warn_of_null(refused: Sequence[Refused], num: int) -> None:
    """Tell the curator which of ``num`` records stand as null records: on the terminal, and in nothing released."""
    if refused:
        _LOG.warning(
            "%d of %d files cannot be used as declared and stand as null records: they keep their positions and count "
            "in N.%s Replace such a file, or leave it where it is: without it all files behind it would move. The "
            "first: %s",
            len(refused), num, " Is it the right folder?" if 2 * len(refused) > num else "",
            " ".join(file.reason for file in refused[:3]),
        )  # fmt: skip
