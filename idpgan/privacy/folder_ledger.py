"""The ledger of a folder that is published again and again: every publication, and what they cost together.

The file lies beside the folder and belongs to it by name, not by content: a folder with one more image is still the
same folder. The file lists the publications, each with its charges, and `idpgan.privacy.totals` says what they cost
together. A publication is recorded on the disk before its images are read.

Folders may be nested. An image is read by the publications of every folder on its path, and by no others: its history
is a chain of ledgers (`chains`), from the outermost folder to the innermost. The cost of a folder is that of its most
expensive image: the largest over its chains, not their sum.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from idpgan.data.image_files import LEDGER, walk
from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, read_plain, write_text_atomic
from idpgan.privacy import totals
from idpgan.privacy.books import checksum, locked, parsed, unsealed
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Relation, Unit
from idpgan.privacy.totals import Part, Total

FORMAT = "idpgan folder ledger 1"
_MOST_BYTES = 1 << 26
_REMEDY = "What was spent is unknown: restore it from a copy."


@dataclasses.dataclass(frozen=True)
class Publication(Part):
    """One publication of a folder: at least one charge, where its epsilon is stated, and words for the reader.

    Attributes:
        method: Name of the publisher.
        epsilon: Asked for, or claimed by the method; None where it states none.
        num: Images of the folder, then.
        out: Name of the folder that it was written to.
        date: Day and time, ISO 8601.
    """

    method: str
    epsilon: float | None
    num: int
    out: str
    date: str

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "events": [event.to_json() for event in self.events]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`; raises all sorts of errors on anything else."""
        kinds = {"method": str, "epsilon": float, "delta": float, "num": int, "out": str, "date": str, "events": list}
        if data.get("epsilon", 0.0) is None:
            kinds["epsilon"] = type(None)
        if set(data) != set(kinds) or any(type(data[name]) is not kind for name, kind in kinds.items()):
            raise TypeError("a publication has other entries")
        if not data["events"]:
            raise ValueError("a publication has no charges")
        return cls(**{**data, "events": tuple(Event.from_json(item) for item in data["events"])})


@dataclasses.dataclass(frozen=True)
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


def places_of(root: Path) -> set[tuple[Path, Path]]:
    """Return the folders below a folder that hold files, as they are named and as they lie, whatever links lead there.

    Raises:
        DataError: If the folder cannot be listed.
    """
    real = functools.cache(Path.resolve)
    return {(path.parent, path.resolve().parent if path.is_symlink() else real(path.parent)) for path in walk(root)}


def chains(
    folder: Path, own: FolderLedger, runs: Mapping[Path, Sequence[FolderLedger]] | None = None
) -> tuple[Chain, ...]:
    """Return the ledgers that charge the images of a folder: one chain for all places inside that share it.

    They are the ledgers of the folders around it, up to the root of the file system, its own, and those of the folders
    inside it. Where a link inside leads elsewhere, the folders around its target are on the path too. A ledger inside
    that is not called after its folder counts for all places, since its folder may lie anywhere.

    Args:
        folder: A folder of images, at any depth.
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
    places |= places_of(root)
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


def total(chains: Sequence[Chain], unit: Unit, relation: Relation = Relation.REPLACE_ONE) -> Total:
    """Return what all publications in the chains cost a unit, at the largest delta that one states.

    How many images a person has nobody says here: what was charged for images is left out of a person's total.

    Args:
        chains: What `chains` returned.
        unit: Unit of the total.
        relation: Relation of the total.
    """
    histories = [[item for ledger in chain for item in ledger.publications] for chain in chains]
    found = totals.total(histories, unit, relation)
    own = sum(totals.steps(item.pair, (unit, relation)) is not None for item in chains[0][0].publications)
    return dataclasses.replace(found, elsewhere=found.counted - own)
