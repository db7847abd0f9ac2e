"""The ledger of a folder that is published again and again: every publication, and what they cost together.

The file lies beside the folder and belongs to it by name, not by content: a folder with one more image is still the
same folder. It also notes by what number the disk knows the folder: one that was renamed, or moved nearby, goes on with
the ledger that knew it, beside that of its new name. The file lists the publications, each with its charges, and
`idpgan.privacy.totals` says what they cost together. A publication is recorded on the disk before its images are read.

A ledger may have a limit, the curator's rule for whoever works with the images: it stops mistakes, and whoever can
write the ledger can write another. `FolderLedger.pay` is the one way onto a ledger, and asks the limit of every ledger
on the way of an image. Under a limit runs are charged there as well, before they begin, so that what was spent is known
wherever they lie.

Folders may be nested. An image is read by the publications of every folder on its path, and by no others: its history
is a chain of ledgers (`chains`), from the outermost folder to the innermost. The cost of a folder is that of its most
expensive image: the largest over its chains, not their sum.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from idpgan import files
from idpgan.data.image_files import LEDGER, places_of, walk
from idpgan.errors import InputError
from idpgan.privacy import books, totals
from idpgan.privacy.event import Event
from idpgan.privacy.guarantee import Guarantee, Relation, Unit, check_budget, parse_unit
from idpgan.privacy.totals import Part, Total

_LOG = logging.getLogger(__name__)
FORMAT, OLD_FORMAT = "idpgan folder ledger 2", "idpgan folder ledger 1"  # the old one has no limits and no runs
_MOST_BYTES = 1 << 26
_REMEDY = "What was spent is unknown: restore it from a copy."
_ROUNDING = 1e-9  # relative: prices that add up to the limit on paper may exceed it in the last digits
_SHARES = range(1, 9)  # of delta: what group privacy carries over adds deltas of its own


@dataclasses.dataclass(frozen=True)
class Publication(Part):
    """One publication of a folder, or a run on it: its charges, where its epsilon is stated, and words for the reader.

    Attributes:
        method: Name of the publisher.
        epsilon: Asked for, or claimed by the method; None where it states none.
        num: Images of the folder, then.
        out: Name of the folder that it was written to.
        date: Day and time, ISO 8601.
        run: Of a run that was charged here: its folder, or that of its release for what that contains; else "".
    """

    method: str
    epsilon: float | None
    num: int
    out: str
    date: str
    run: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "events": [event.to_json() for event in self.events]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`; raises all sorts of errors on anything else."""
        texts = dict.fromkeys(("method", "out", "date", "run"), str)
        kinds = {**texts, "epsilon": float, "delta": float, "num": int, "events": list}
        if data.get("epsilon", 0.0) is None:
            kinds["epsilon"] = type(None)
        if set(data) != set(kinds) or any(type(data[name]) is not kind for name, kind in kinds.items()):
            raise TypeError("a publication has other entries")
        if not data["events"]:
            raise ValueError("a publication has no charges")
        return cls(**{**data, "events": tuple(Event.from_json(item) for item in data["events"])})


class LimitError(InputError):
    """A charge that a limit leaves no room for."""


@dataclasses.dataclass(frozen=True)
class Limit:
    """At most epsilon at delta for one unit, zero-out-one: what holds for replace-one holds for it.

    Attributes:
        epsilon: Finite, above 0.
        delta: In [0, 1).
        date: Day and time when it was set, ISO 8601.
        reason: Why it was raised; "" for one that was not.
    """

    epsilon: float
    delta: float
    unit: Unit
    date: str
    reason: str = ""

    def __post_init__(self) -> None:
        check_budget(self.epsilon, self.delta)
        if not math.isfinite(self.epsilon):
            raise InputError("a limit is a finite epsilon.")

    @property
    def guarantee(self) -> Guarantee:
        """What it promises of everything together."""
        return Guarantee(self.epsilon, self.delta, self.unit, Relation.ZERO_OUT, "a limit")

    def allows(self, later: Limit) -> bool:
        """Whether another limit is no looser."""
        return later.unit is self.unit and later.epsilon <= self.epsilon and later.delta <= self.delta

    def cost(self, parts: Sequence[Part]) -> Guarantee:
        """Return what the parts of one history cost the unit: infinite where one bounds nothing of it.

        It is stated at the limit's delta, or below where charges that group privacy carries over bring their own.
        """
        for share in _SHARES:
            cost = totals.total([parts], self.unit, Relation.ZERO_OUT, delta=self.delta / share).whole
            if cost.delta <= self.delta:
                return cost
        return dataclasses.replace(cost, epsilon=math.inf, delta=0.0)

    def refuse_beyond(self, before: Sequence[Part], charges: Sequence[Part], ledger: Path) -> None:
        """Refuse charges with which a history would cost more; ``ledger`` is the one that the limit stands on.

        Raises:
            LimitError: Naming what was spent, what is asked, and the limit.
        """
        after = self.cost([*before, *charges])
        if after.epsilon <= self.epsilon * (1 + _ROUNDING):
            return
        words, folder = " and ".join(str(part.proven) for part in charges), ledger.name.removesuffix(LEDGER)
        raise LimitError(
            f"the limit on {ledger}, {self.guarantee}, leaves no room: spent is {_words(self.cost(before))}, asked "
            f"{words}, together {_words(after)}. Nothing was read or charged. Ask for less, or raise the limit: idpgan "
            f"ledger {files.pasted(ledger.with_name(folder))} --limit EPSILON --reason TEXT."
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {**vars(self), "unit": str(self.unit)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from `to_json`; raises all sorts of errors on anything else."""
        kinds = {"epsilon": float, "delta": float, "unit": str, "date": str, "reason": str}
        if set(data) != set(kinds) or any(type(data[name]) is not kind for name, kind in kinds.items()):
            raise TypeError("a limit has other entries")
        return cls(**{**data, "unit": parse_unit(data["unit"])})


@dataclasses.dataclass(frozen=True)
class FolderLedger:
    """All publications of a folder, oldest first.

    Attributes:
        path: Where it is kept.
        folder: Name of the folder that it belongs to.
        publications: What stands on it.
        limits: All that were ever set; the last one holds.
        known: Numbers (inodes) by which its disk knew the folders that lay under this name when it was written.
    """

    path: Path
    folder: str
    publications: tuple[Publication, ...] = ()
    limits: tuple[Limit, ...] = ()
    known: frozenset[int] = dataclasses.field(default=frozenset(), compare=False)

    @property
    def limit(self) -> Limit | None:
        """The limit that holds; None where none was set."""
        return self.limits[-1] if self.limits else None

    @classmethod
    def read(cls, path: Path, folder: str | None) -> Self:
        """Read a ledger (of any folder if ``folder`` is None); return an empty one if there is none yet.

        Raises:
            InputError: If the file is damaged, changed or foreign, of another folder, or gone with a limit on it.
        """
        if not path.exists() and not path.is_symlink():
            if books.is_marked(path):
                raise books.refusal(path, f"it is gone, and had a limit ({books.lock_of(path)} says so)", _REMEDY)
            return cls(path, folder or "")
        ledger = books.parsed(
            files.read_plain(path, _MOST_BYTES), path, functools.partial(cls.from_json, path), _REMEDY
        )
        if folder not in (None, ledger.folder):
            raise InputError(
                f"the ledger {path} belongs to a folder named {ledger.folder!a}, not {folder!a}. Name this folder's "
                "own ledger with --ledger, or give the folder its name back."
            )
        return ledger

    @classmethod
    def from_json(cls, path: Path, data: Any) -> Self:
        """Rebuild what `write` wrote; another format or checksum, or an unknown entry, raises `InputError`."""
        old = isinstance(data, dict) and data.get("format") == OLD_FORMAT
        with books.unsealed(data, OLD_FORMAT if old else FORMAT):
            if not isinstance(data["folder"], str):
                raise TypeError("it belongs to no folder")
            entries = [{**row, "run": ""} for row in data["publications"]] if old else data["publications"]
            publications = tuple(map(Publication.from_json, entries))
            limits = () if old else tuple(map(Limit.from_json, data["limits"]))
            known = data.get("known", [])
            if not isinstance(known, list) or any(type(number) is not int for number in known):
                raise TypeError("it knows a folder by what is no number")
        return cls(path, data["folder"], publications, limits, frozenset(known))

    @classmethod
    @contextmanager
    def locked(cls, path: Path, folder: str) -> Iterator[Self]:
        """Read a ledger and keep every other publication from it until the block ends.

        Raises:
            InputError: As `read`, and if another publication of the folder is running.
        """
        with books.locked(path, busy=f"another publication on the ledger {path} is running. Wait for it."):
            yield cls.read(path, folder)

    def charged(self, *publications: Publication) -> Self:
        """Return the ledger with further publications, which are not written to the disk yet."""
        return dataclasses.replace(self, publications=(*self.publications, *publications))

    def pay(self, folder: Path, publications: Sequence[Publication]) -> Self:
        """Charge durably, before an image is read; the caller holds the lock. Return the ledger as it stands then.

        Limits of other ledgers are asked under their locks: of two charges at once the later one counts both.

        Raises:
            LimitError: If a limit on the way of an image leaves no room. Nothing is charged then.
            InputError: If a ledger on that way cannot be used, or is in use.
        """
        after, mine = self.charged(*publications), _canonical(self.path)
        others = {ledger.path for ledger in _limited(chains(folder, after)) if _canonical(ledger.path) != mine}
        with contextlib.ExitStack() as locks:
            for path in sorted(others):
                locks.enter_context(
                    books.locked(path, busy=f"a publication on the ledger {path} is running. Wait for it.")
                )
            reached = chains(folder, after)
            refuse_beyond(folder, reached, publications)
            after.write()
        for line in moved(folder, reached):
            _LOG.warning("%s", line)
        return after

    def limited(self, limit: Limit) -> Self:
        """Set a limit, durably, under the lock; return the ledger with it.

        The file of the lock says from then on that there was a limit, so that a ledger that is gone is missed.
        """
        after = dataclasses.replace(self, limits=(*self.limits, limit))
        after.write()
        if not self.limits:
            files.append_line(books.lock_of(self.path), "limited")
        return after

    def write(self) -> None:
        """Write the ledger durably, under the lock."""
        content: dict[str, Any] = {
            "format": FORMAT,
            "folder": self.folder,
            "publications": [publication.to_json() for publication in self.publications],
            "limits": [limit.to_json() for limit in self.limits],
            "known": sorted(self._known_now()),
        }
        text = json.dumps({**content, "checksum": books.checksum(content)}, indent=1, allow_nan=False) + "\n"
        files.write_text_atomic(self.path, text, mode=files.PRIVATE_FILE)

    def _known_now(self) -> frozenset[int]:
        """Return what it knows with the folder beside it, if it is that one's by name; nothing is ever forgotten."""
        beside = self.path.with_name(self.folder) if self.path.name == self.folder + LEDGER else Path()
        return self.known | {number for number, _ in _on_disk(beside)}


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
        folder: A folder of images, at any depth.
        own: Its ledger, wherever that lies: the first of each chain.
        runs: Further charges, such as those of runs, by the real folder whose images they read.

    Raises:
        InputError: If a ledger cannot be used: what was spent is unknown.
        DataError: If the folder cannot be listed.
    """
    real, runs = functools.cache(Path.resolve), runs or {}
    root, mine = folder.resolve(), _canonical(own.path)
    inside = walk(root, ledgers=True)
    read = {real(path.parent) / path.name: FolderLedger.read(path, None) for path in inside}
    loose = {path for path, ledger in read.items() if path.name != ledger.folder + LEDGER}
    charged = [path.with_name(path.name.removesuffix(LEDGER)) for path in inside]
    places = {(path, real(path)) for path in (root, *charged, *runs) if path.is_relative_to(root)}
    places |= places_of(root)
    knowing = _knowing({root, *(way for place in places for way in place if not way.is_relative_to(root))}, read)
    ways: set[tuple[tuple[Path, ...], tuple[Path, ...]]] = set()
    numbers = functools.cache(_on_disk)
    for place in places:
        above = {around for way in place for around in (way, *way.parents)}
        paths = {real(around.parent) / (around.name + LEDGER) for around in above if around.name}
        read |= {path: FolderLedger.read(path, path.name.removesuffix(LEDGER)) for path in paths - {mine, *read}}
        known = [ledger for around in above for number in numbers(around) for ledger in knowing[number]]
        former = {_canonical(ledger.path): ledger for ledger in known}
        read, paths = former | read, paths | set(former)
        nested = sorted(path for path in (paths | loose) - {mine} if read[path].publications or read[path].limits)
        ways.add((tuple(nested), tuple(sorted({real(around) for around in above} & set(runs)))))
    return tuple(
        (own, *(read[path] for path in nested), *(ledger for at in further for ledger in runs[at]))
        for nested, further in sorted(ways)
    )


def _on_disk(folder: Path) -> tuple[tuple[int, int], ...]:
    """Return number and disk of a folder, whatever its name; nothing if there is none, or it is a disk of its own."""
    if not folder.name or not folder.is_dir():
        return ()
    status = folder.stat()
    return ((status.st_ino, status.st_dev),) if status.st_dev == folder.parent.stat().st_dev else ()


def _knowing(
    roots: Iterable[Path], read: Mapping[Path, FolderLedger] | None = None
) -> Mapping[tuple[int, int], list[FolderLedger]]:
    """Return the ledgers near real folders by the folders that they know: beside those around them, and one aside.

    One that cannot be read is passed over, unless it had a limit and its folder is gone: any other may be that folder.
    """
    found = dict(read or {})
    for path in books.ledgers_near({base for root in roots for base in root.parents}) - set(found):
        with contextlib.suppress(OSError):
            try:
                found[path] = FolderLedger.read(path, None)
            except InputError as error:
                if books.is_marked(path) and not path.with_name(path.name.removesuffix(LEDGER)).exists():
                    raise InputError(f"{error} If its folder is gone, and not renamed, move it away.") from None
    knowing = defaultdict[tuple[int, int], list[FolderLedger]](list)
    for path, ledger in found.items():
        with contextlib.suppress(OSError):
            disk = path.stat().st_dev
            for number in ledger.known:
                knowing[number, disk].append(ledger)
    return knowing


def _knows(ledger: FolderLedger, folder: Path) -> bool:
    """Whether a ledger knows a folder, whatever its name: another disk has other folders of the same numbers."""
    return any(number in ledger.known and ledger.path.stat().st_dev == disk for number, disk in _on_disk(folder))


def _known_by(ledger: FolderLedger, place: Path) -> list[Path]:
    """Return the real folders that a ledger knows, whatever their names: this one, those around it, or inside it."""
    ways, home = [place, *place.parents], _home(ledger)
    if home not in ways and not home.is_relative_to(place):
        inside = {way for _, real in places_of(place) for way in (real, *real.parents) if way.is_relative_to(place)}
        ways += sorted(inside - {place})
    return [way for way in ways if _knows(ledger, way)]


def moved(folder: Path, reached: Sequence[Chain]) -> Iterator[str]:
    """Say which ledgers in the chains of a folder are of before it, or one around or inside it, was renamed or moved.

    And say where the folder's own ledger, by its name, was begun for another folder.
    """
    place, own = folder.resolve(), reached[0][0]
    for ledger in {ledger.path: ledger for chain in reached for ledger in chain}.values():
        for known in _known_by(ledger, place):
            if ledger.path != ledger_of(known):
                yield (
                    f"{known} was {ledger.path.with_name(ledger.folder)}, whose ledger counts (charges: "
                    f"{len(ledger.publications)}{f', the limit {ledger.limit.guarantee}' if ledger.limit else ''}). If "
                    f"these are other images, move {ledger.path} away."
                )
    if own.known and {number for number, _ in _on_disk(place)}.isdisjoint(own.known):
        yield (
            f"the ledger {own.path} was begun for another folder of this name, or for this one before it was copied: "
            "what stands there counts. If these are other images, give the folder another name."
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
    cost = totals.total(histories, unit, relation)
    on_own = sum(totals.steps(item.pair, (unit, relation)) is not None for item in chains[0][0].publications)
    return dataclasses.replace(cost, elsewhere=cost.counted - on_own)


# Limits --------------------------------------------------------------------------------------------------------


def refuse_beyond(folder: Path, reached: Sequence[Chain], charges: Sequence[Publication]) -> None:
    """Refuse charges on a folder for which a limit leaves no room, or which a limited ledger would not see.

    Args:
        folder: Of the images.
        reached: Its chains, with the charges.
        charges: The charges; the ledger that is the first of each chain has them.

    Raises:
        LimitError: Naming what was spent, what is asked, and the limit.
    """
    limited = _limited(reached)
    if limited:
        _refuse_unseen(folder, reached[0][0], limited)
    new = {id(item) for item in charges}
    for chain in reached:
        before = [item for ledger in chain for item in ledger.publications if id(item) not in new]
        for ledger in chain:
            if ledger.limit is not None:
                ledger.limit.refuse_beyond(before, charges, ledger.path)


def refuse_limited(paths: Sequence[Path]) -> None:
    """Refuse to take files by themselves where a limit stands on a folder that they lie in: no ledger would see it.

    Raises:
        LimitError: Naming the folder.
    """
    for folder in sorted({above for path in paths for above in path.resolve().parents if above.name}):
        former = [ledger for number in _on_disk(folder) for ledger in _knowing([folder])[number]]
        if any(ledger.limit for ledger in (FolderLedger.read(ledger_of(folder), folder.name), *former)):
            raise LimitError(f"the images of {folder} are under a limit. Give the folder itself, whose ledger counts.")


def _words(cost: Guarantee) -> str:
    """Say what was spent; infinite is also what bounds nothing of the unit."""
    return f"epsilon = {cost.epsilon:.4g}" if cost.finite else f"infinite or of units that bound no {cost.unit}"


def _limited(reached: Sequence[Chain]) -> list[FolderLedger]:
    """Return the ledgers that have a limit, each once."""
    return list({ledger.path: ledger for chain in reached for ledger in chain if ledger.limit}.values())


def _refuse_unseen(folder: Path, own: FolderLedger, limited: Sequence[FolderLedger]) -> None:
    """Refuse to charge where a limit would not find it: on a ledger elsewhere, or of a folder that a link leads out of.

    A ledger finds those of the folders around its own, and inside it, under the names that belong to them.
    """
    place = folder.resolve()
    if _canonical(own.path) != ledger_of(folder):
        raise LimitError(
            f"the limit on {limited[0].path} counts what stands beside the folders, not {own.path}. Leave --ledger out."
        )
    for ledger in limited:
        home = _home(ledger)
        if not (place.is_relative_to(home) or home.is_relative_to(place) or _known_by(ledger, place)):
            raise LimitError(
                f"{folder} leads by a link to images of {home}, whose limit would not see this charge. Name that "
                "folder itself, or remove the link."
            )


def _home(ledger: FolderLedger) -> Path:
    """Return the folder that a ledger is beside, by its name."""
    return ledger.path.parent.resolve() / ledger.path.name.removesuffix(LEDGER)


def _canonical(path: Path) -> Path:
    """Return where a ledger lies, whatever link leads to its folder."""
    return path.parent.resolve() / path.name
