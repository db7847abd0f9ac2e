"""The ledger of a folder that is published again and again: every publication, and what they cost together.

The file lies beside the folder and belongs to it by name, not by content: with one more image in it, the folder is the
same. It lists the publications, each with its charges; the books of one unit and relation are those charges, in order,
and are composed as any ledger's. A publication is on the disk before its images are touched.

A guarantee for an image holds for a column and a pixel of it: publications of a coarser unit (in the order pixel,
column, image) count in the total of a finer one. Those of a finer unit do not bound a coarser one but by their number
in it, so that they are named beside the total (`Total.finer`).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, file_lock, parse_json, read_plain, write_text_atomic
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.books import checksum
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, Unit

FORMAT = "idpgan folder ledger 1"
_MOST_BYTES = 1 << 26
_NESTED = (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE)  # each lies in the next


@dataclass(frozen=True)
class Publication:
    """One publication of a folder.

    Attributes:
        method: Name of the publisher.
        epsilon: Asked for, or claimed by the method; None where it states none.
        delta: Where it is stated, in [0, 1).
        num: Images of the folder, then.
        out: Name of the folder that it was written to, for the reader.
        date: Day and time, ISO 8601, for the reader.
        events: Its charges: at least one, of one unit and relation.
    """

    method: str
    epsilon: float | None
    delta: float
    num: int
    out: str
    date: str
    events: tuple[Event, ...]

    @property
    def unit(self) -> Unit:
        """Of all its charges."""
        return self.events[0].unit

    @property
    def sound(self) -> bool:
        """Whether anything is proven of it."""
        return all(event.is_private for event in self.events)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "events": [event.to_json() for event in self.events]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Rebuild from `to_json`; raises all sorts of errors on anything else."""
        kinds = {"method": str, "epsilon": float, "delta": float, "num": int, "out": str, "date": str, "events": list}
        if data.get("epsilon", 0.0) is None:
            kinds["epsilon"] = type(None)
        if set(data) != set(kinds) or any(type(data[name]) is not kind for name, kind in kinds.items()):
            raise TypeError("a publication has other entries")
        made = cls(**{**data, "events": tuple(Event.from_json(item) for item in data["events"])})
        if len({(event.unit, event.relation) for event in made.events}) != 1 or not 0 <= made.delta < 1:
            raise ValueError("a publication has no charges, or of several units")
        return made


@dataclass(frozen=True)
class Total:
    """What all publications of a folder cost one unit of it.

    Attributes:
        guarantee: Of all together; infinite after one publication without a proof.
        counted: Publications in it.
        finer: Publications of a finer unit, which it leaves out.
    """

    guarantee: Guarantee
    counted: int
    finer: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {**self.guarantee.to_json(), "publications": self.counted, "of_finer_units": self.finer}


@dataclass(frozen=True)
class FolderLedger:
    """All publications of a folder, oldest first.

    Attributes:
        path: Where it is kept.
        folder: Name of the folder that it belongs to.
        publications: What stands on it.
    """

    path: Path
    folder: str
    publications: tuple[Publication, ...] = ()

    @classmethod
    def read(cls, path: Path, folder: str) -> Self:
        """Read a ledger; an empty one where there is none yet.

        Raises:
            InputError: If the file is damaged, changed or foreign, or of another folder.
        """
        if not path.exists() and not path.is_symlink():
            return cls(path, folder)
        content = read_plain(path, _MOST_BYTES)
        try:
            data = parse_json(content)
            if not isinstance(data, dict) or data.get("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT!r}")
            stated = data.pop("checksum", None)
            if stated != checksum(data):
                raise ValueError("it was changed: its checksum does not fit")
            owner, publications = data["folder"], tuple(map(Publication.from_json, data["publications"]))
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InputError(
                f"the ledger {path} cannot be used: {str(error)[:200].removesuffix('.')}. What was spent is unknown: "
                "restore it from a copy."
            ) from error
        if owner != folder:
            raise InputError(
                f"the ledger {path} belongs to a folder named {owner!a}, not {folder!a}. Name this folder's own ledger "
                "with --ledger, or give the folder its name back."
            )
        return cls(path, folder, publications)

    @classmethod
    @contextmanager
    def locked(cls, path: Path, folder: str) -> Iterator[Self]:
        """Read a ledger and keep every other publication from it until the block ends.

        Raises:
            InputError: As `read`, and if another publication of the folder is running.
        """
        lock = path.with_name(f".{path.name}.lock")
        with file_lock(lock, busy=f"another publication on the ledger {path} is running. Wait for it."):
            for part in path.parent.glob(f".{path.name}.*.part"):
                part.unlink(missing_ok=True)  # of a writer that was killed: all others wait for this lock
            yield cls.read(path, folder)

    def charged(self, publication: Publication) -> Self:
        """Return the ledger with one more publication, which is not on the disk yet."""
        return dataclasses.replace(self, publications=(*self.publications, publication))

    def write(self) -> None:
        """Make it durable, under the lock."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "folder": self.folder,
            "publications": [publication.to_json() for publication in self.publications],
        }
        text = json.dumps({**content, "checksum": checksum(content)}, indent=1, allow_nan=False) + "\n"
        write_text_atomic(self.path, text, mode=PRIVATE_FILE)

    def total(self, unit: Unit) -> Total:
        """Return what all publications cost a unit, at the largest delta that one of them states."""
        counted = [publication for publication in self.publications if unit in _covered(publication.unit)]
        events = [dataclasses.replace(event, unit=unit) for publication in counted for event in publication.events]
        finer = sum(
            publication.unit in _covered(unit) and publication.unit != unit for publication in self.publications
        )
        delta = max((publication.delta for publication in counted), default=0.0)
        sound = all(publication.sound for publication in self.publications)
        epsilon = compose_epsilon(events, delta) if sound else math.inf
        relation = self.publications[-1].events[0].relation
        basis = f"{len(counted)} publications together" if len(counted) > 1 else "one publication"
        guarantee = Guarantee(epsilon, delta if math.isfinite(epsilon) else 0.0, unit, relation, basis)
        return Total(guarantee, len(counted), finer)


def _covered(unit: Unit) -> tuple[Unit, ...]:
    """Return the units that a guarantee for this one holds for too."""
    return _NESTED[: _NESTED.index(unit) + 1] if unit in _NESTED else (unit,)
