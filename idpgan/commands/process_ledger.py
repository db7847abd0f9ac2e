"""What this process has released of some images: several releases of the same images add up, and say so.

Images in memory are known by a keyed hash of their pixels, a folder by those of its place and of the files in it
(device and number, not content), a set for each release; the key is drawn at the start of the process and never leaves
it. So order does not matter, releases of some of the same images count together, and a folder is known again under
another name, through links, and around or inside another one. Whether images in memory are those of a folder, or one
folder a copy of another, is not known, and is said. What lies in other processes stands on no ledger here; a run that
is kept (`out`) and a publication of a folder have ledgers of their own.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idpgan.data.image_files import walk
from idpgan.data.images import Images
from idpgan.privacy.event import Event
from idpgan.privacy.folder_ledger import refuse_limited
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.totals import Part, Total, total

_LOG = logging.getLogger(__name__)
_KEY = secrets.token_bytes(32)
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Records:
    """By what images are known here."""

    hashes: frozenset[bytes]
    of_folder: bool


@dataclass(frozen=True)
class Together:
    """What the releases of some images in this process cost.

    Attributes:
        total: Of those that are known to have read some of them, for unit and relation of the last.
        unknown: Number of others of which that is not known; they are not in it.
    """

    total: Total
    unknown: int

    def __str__(self) -> str:
        known, lines = self.total.counted + self.total.left_out, []
        if known > 1:
            lines.append(
                f"{known} releases of these images, or of some of them, were made in this process. Together: "
                f"{self.total}."
            )
        if self.unknown:
            lines.append(
                f"NOT COUNTED: other releases in this process ({self.unknown}), of images that were given as another "
                "folder, or once as a folder and once as arrays. Whether they are of these images is not known; if so, "
                "they add up too."
            )
        return " ".join(lines)


_DONE: list[tuple[Records, Part, int]] = []


def records_of(images: Images | Path) -> Records:
    """Return by what images are known here; null records are nobody's."""
    if isinstance(images, Path):
        root, files = images.resolve(), [path.stat() for path in walk(images) if path.exists()]
        names = [str(root), *(f"{file.st_dev} {file.st_ino}" for file in files)]
        return Records(frozenset(_hash(name.encode()) for name in names), True)
    shape = repr(images.image_shape).encode()
    pictures = images.existing().images.cpu().numpy()
    return Records(frozenset(_hash(shape + picture.tobytes()) for picture in pictures), False)


def refuse_limited_paths(images: Any) -> None:
    """Refuse a list of paths of which one lies in a folder with a limit; see `refuse_limited`."""
    if isinstance(images, list | tuple):
        refuse_limited([Path(each) for each in images if isinstance(each, str | os.PathLike)])


def charge(
    records: Records,
    events: Sequence[Event],
    delta: float,
    unit: Unit,
    relation: Relation,
    most_per_person: int = 1,
) -> Together | None:
    """Note the charges of a release, and return what all that read some of the same images cost; None for the first.

    The dearest image of the release was read by these at most, so their composition bounds the cost of each. The
    curator is told on the terminal.
    """
    charges = Part(tuple(events), delta)
    with _LOCK:
        done = list(_DONE)
        if events:
            _DONE.append((records, charges, most_per_person))
    before = [(part, most) for known, part, most in done if known.hashes & records.hashes]
    others = [known for known, *_ in done if not known.hashes & records.hashes]
    unknown = sum(known.of_folder or records.of_folder for known in others)
    if not events or not (before or unknown):
        return None
    parts, most = [charges, *(part for part, _ in before)], max(most_per_person, *(most for _, most in before), 1)
    together = Together(total([parts], unit, relation, most_per_person=most), unknown)
    _LOG.warning("%s", together)
    return together


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16, key=_KEY).digest()
