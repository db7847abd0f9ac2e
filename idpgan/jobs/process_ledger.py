"""What this process has released of images in memory: several releases of the same images add up, and say so.

Images are known by a keyed hash of their pixels, a set for each release, whose key is drawn at the start of the process
and never leaves it: order does not matter, and releases of some of the same images count together. A folder is known by
its path. What lies in other processes stands on no ledger here; a run that is kept (`out`) has one of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from idpgan.data.images import Images
from idpgan.privacy.composition import Part, total
from idpgan.privacy.event import Event
from idpgan.privacy.folder_ledger import NESTED
from idpgan.privacy.guarantee import Guarantee, Relation, Unit

_LOG = logging.getLogger(__name__)
_KEY = secrets.token_bytes(32)
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Together:
    """What all releases of some images in this process cost.

    Attributes:
        guarantee: For unit and relation of the last of them.
        releases: How many are in it.
        finer: Those of a finer unit (a pixel or a column), which bound nothing of this one and are not in it.
    """

    guarantee: Guarantee
    releases: int
    finer: int = 0

    def __str__(self) -> str:
        finer = f"; {self.finer} of a finer unit not counted" if self.finer else ""
        return (
            f"{self.releases} releases of these images, or of some of them, were made in this process. Together: "
            f"{self.guarantee}{finer}."
        )


_DONE: list[tuple[frozenset[bytes], Part, int]] = []


def records_of(images: Images | Path) -> frozenset[bytes]:
    """Return by what images are known here; null records are nobody's."""
    if isinstance(images, Path):
        return frozenset([_hash(str(images.resolve()).encode())])
    shape = repr(images.image_shape).encode()
    return frozenset(_hash(shape + picture.tobytes()) for picture in images.existing().images.cpu().numpy())


def charge(
    records: frozenset[bytes],
    events: Sequence[Event],
    delta: float,
    unit: Unit,
    relation: Relation,
    most_per_person: int = 1,
) -> Together | None:
    """Note the charges of a release, and return what all that read some of the same images cost; None for the first.

    The dearest image of the release was read by these at most, so their composition bounds the cost of each.
    """
    own = Part(tuple(events), delta)
    with _LOCK:
        before = [(part, most) for known, part, most in _DONE if known & records]
        if events:
            _DONE.append((records, own, most_per_person))
    if not before or not events:
        return None
    counted = [part for part, _ in before if not _finer(part.pair[0], unit)]
    parts = tuple(_of_image(part) for part in counted)
    whole = Unit.IMAGE if unit in NESTED else unit
    found = total(_of_image(own), parts, whole, relation, max(most_per_person, *(most for _, most in before)))
    return Together(dataclasses.replace(found, unit=unit), len(counted) + 1, len(before) - len(counted))


def _finer(unit: Unit, than: Unit) -> bool:
    """Whether a unit is a part of another one, whose guarantee it does not bound."""
    order = (*NESTED, Unit.PERSON)
    return unit in order and than in order and order.index(unit) < min(order.index(than), order.index(Unit.IMAGE))


def _of_image(part: Part) -> Part:
    """Return charges for an image, a column or a pixel as charges for an image, so that they compose."""
    events = (dataclasses.replace(each, unit=Unit.IMAGE) if each.unit in NESTED else each for each in part.events)
    return Part(tuple(events), part.delta)


def say(together: Together) -> None:
    """Tell the curator on the terminal."""
    _LOG.warning("%s", together)


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16, key=_KEY).digest()
