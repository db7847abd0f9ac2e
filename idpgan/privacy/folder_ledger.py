"""The ledger of a folder that is published again and again: every publication, and what they cost together.

The file lies beside the folder and belongs to it by name, not by content: a folder with one more image is still the
same folder. The file lists the publications, each with its charges; the books of one unit and relation are those
charges, in order, and are composed as any ledger's. A publication is recorded on the disk before its images are read.

A guarantee for an image holds for a column and a pixel of it: publications of a coarser unit (in the order pixel,
column, image) count in the total of a finer one. Publications of a finer unit bound a coarser one only through the
number of finer units in it, so they are named beside the total (`Total.finer`).

Folders may be nested. An image is read by the publications of every folder on its path, and by no others. Given all
other images, the other publications reveal nothing about it, and the releases along its path compose, in whatever order
they came. So the cost of an image is the composition of a chain of ledgers, from the outermost folder to the innermost.
The cost of a folder is that of its most expensive image: the largest over its chains (`chains`), not their sum.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from idpgan.data.image_files import LEDGER, walk
from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, read_plain, write_text_atomic
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.books import checksum, locked, parsed, unsealed
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, Relation, Unit

FORMAT = "idpgan folder ledger 1"
_MOST_BYTES = 1 << 26
_REMEDY = "What was spent is unknown: restore it from a copy."
NESTED = (Unit.PIXEL, Unit.COLUMN, Unit.IMAGE)  # each is part of the next


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
    def relation(self) -> Relation:
        """Of all its charges."""
        return self.events[0].relation

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
    def read(cls, path: Path, folder: str | None) -> Self:
        """Read a ledger (of any folder if ``folder`` is None); return an empty one if there is none yet.

        Raises:
            InputError: If the file is damaged, changed or foreign, or of another folder.
        """
        if not path.exists() and not path.is_symlink():
            return cls(path, folder or "")
        found = parsed(read_plain(path, _MOST_BYTES), path, functools.partial(cls.from_json, path), _REMEDY)
        if folder not in (None, found.folder):
            raise InputError(
                f"the ledger {path} belongs to a folder named {found.folder!a}, not {folder!a}. Name this folder's own "
                "ledger with --ledger, or give the folder its name back."
            )
        return found

    @classmethod
    def from_json(cls, path: Path, data: Any) -> Self:
        """Rebuild what `write` wrote; another format or checksum, or an unknown entry, raises `InputError`."""
        with unsealed(data, FORMAT):
            if not isinstance(data["folder"], str):
                raise TypeError("it belongs to no folder")
            publications = tuple(map(Publication.from_json, data["publications"]))
        return cls(path, data["folder"], publications)

    @classmethod
    @contextmanager
    def locked(cls, path: Path, folder: str) -> Iterator[Self]:
        """Read a ledger and keep every other publication from it until the block ends.

        Raises:
            InputError: As `read`, and if another publication of the folder is running.
        """
        with locked(path, busy=f"another publication on the ledger {path} is running. Wait for it."):
            yield cls.read(path, folder)

    def charged(self, publication: Publication) -> Self:
        """Return the ledger with one more publication, which is not written to the disk yet."""
        return dataclasses.replace(self, publications=(*self.publications, publication))

    def write(self) -> None:
        """Write the ledger durably, under the lock."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "folder": self.folder,
            "publications": [publication.to_json() for publication in self.publications],
        }
        text = json.dumps({**content, "checksum": checksum(content)}, indent=1, allow_nan=False) + "\n"
        write_text_atomic(self.path, text, mode=PRIVATE_FILE)


Chain = tuple[FolderLedger, ...]  # the ledgers that charge the images of one place, the named folder's own first


def ledger_of(folder: Path) -> Path:
    """Return where the ledger of a folder lies: beside it, whatever link leads there."""
    real = folder.resolve()
    return real.with_name(real.name + LEDGER)


def chains(
    folder: Path, own: FolderLedger, runs: Mapping[Path, Sequence[FolderLedger]] | None = None
) -> tuple[Chain, ...]:
    """Return the ledgers that charge the images of a folder: one chain for all places inside that share it.

    They are the ledgers of the folders around it, up to the root of the file system, its own, and those of the folders
    inside it. Where a link inside leads elsewhere, the folders around its target are on the path too. A ledger inside
    that is not called after its folder counts for all places, since its folder may lie anywhere.

    Args:
        folder: Of images, at any depth.
        own: Its ledger, wherever that lies: the first of each chain.
        runs: Further charges, such as those of runs, by the real folder whose images they read.

    Raises:
        InputError: If a ledger cannot be used: what was spent is unknown.
        DataError: If the folder cannot be listed.
    """
    real, runs = functools.cache(Path.resolve), runs or {}
    root, mine = folder.resolve(), own.path.parent.resolve() / own.path.name
    inside = walk(root, ledgers=True)
    read = {real(path.parent) / path.name: FolderLedger.read(path, None) for path in inside}
    loose = {path for path, ledger in read.items() if path.name != ledger.folder + LEDGER}
    charged = [path.with_name(path.name.removesuffix(LEDGER)) for path in inside]
    places = {(path, real(path)) for path in (root, *charged, *runs) if path.is_relative_to(root)}
    for path in walk(root):  # as it is named, and as it lies
        places.add((path.parent, real(path).parent if path.is_symlink() else real(path.parent)))
    found: set[tuple[tuple[Path, ...], tuple[Path, ...]]] = set()
    for place in places:
        above = {each for way in place for each in (way, *way.parents)}
        paths = {real(each.parent) / (each.name + LEDGER) for each in above if each.name}
        read |= {path: FolderLedger.read(path, path.name.removesuffix(LEDGER)) for path in paths - {mine, *read}}
        nested = sorted(path for path in (paths | loose) - {mine} if read[path].publications)
        found.add((tuple(nested), tuple(sorted({real(each) for each in above} & set(runs)))))
    return tuple(
        (own, *(read[path] for path in nested), *(ledger for at in further for ledger in runs[at]))
        for nested, further in sorted(found)
    )


@dataclass(frozen=True)
class Total:
    """What all publications of a folder cost one unit of it.

    Attributes:
        guarantee: Of the dearest chain; infinite after one publication without a proof.
        counted: Publications in it.
        elsewhere: Those among them that stand on other ledgers than the folder's own.
        finer: Publications of a finer unit, which it leaves out.
    """

    guarantee: Guarantee
    counted: int
    elsewhere: int
    finer: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        counts = {"publications": self.counted, "on_other_ledgers": self.elsewhere, "of_finer_units": self.finer}
        return {**self.guarantee.to_json(), **counts}

    def __str__(self) -> str:
        if not (self.finer and self.guarantee.finite):
            return str(self.guarantee)
        return f"{self.guarantee}; {self.finer} of a finer unit not counted, which bound no {self.guarantee.unit}"


def total(chains: Sequence[Chain], unit: Unit, relation: Relation | None = None) -> Total:
    """Return what the most expensive chain costs a unit, at the largest delta that a publication in the chains states.

    Args:
        chains: As `chains` returns them; something in them counts for the unit.
        unit: That the total speaks of.
        relation: Only publications of this one are counted; None = of the only one that there is.

    Raises:
        InputError: If the publications are of several relations, and none is named: their events do not compose.
    """
    counts, finer = [other for other in Unit if unit in _covered(other)], set(_covered(unit)) - {unit}

    def of(ledgers: Iterable[FolderLedger], units: Collection[Unit]) -> list[Publication]:
        every = (item for ledger in ledgers for item in ledger.publications)
        return [item for item in every if relation in (None, item.relation) and item.unit in units]

    every = {ledger.path: ledger for chain in chains for ledger in chain}.values()
    delta = max((item.delta for item in of(every, counts)), default=0.0)
    if len({item.relation for item in of(every, counts)}) > 1:
        raise InputError("publications of different relations do not compose: `idpgan ledger` has a total of each.")

    prices: dict[tuple[Event, ...], float] = {}  # a folder a person: hundreds of chains with the same events
    dearest = (0.0, 0, 0)
    for chain in chains:
        counted = of(chain, counts)
        sound = all(item.sound for ledger in chain for item in ledger.publications)
        charges = tuple(event for item in counted for event in item.events)
        if sound and charges not in prices:
            prices[charges] = compose_epsilon([dataclasses.replace(event, unit=unit) for event in charges], delta)
        epsilon = prices[charges] if sound else math.inf
        dearest = max(dearest, (epsilon, len(counted), len(of(chain[1:], counts))))
    epsilon, num, elsewhere = dearest
    basis = f"{num} publications together" if num > 1 else "one publication"
    relation = relation or of(every, counts)[0].relation
    guarantee = Guarantee(epsilon, delta if math.isfinite(epsilon) else 0.0, unit, relation, basis)
    return Total(guarantee, num, elsewhere, len(of(every, finer)))


def _covered(unit: Unit) -> tuple[Unit, ...]:
    """Return the units for which a guarantee for this unit holds too."""
    return NESTED[: NESTED.index(unit) + 1] if unit in NESTED else (unit,)
