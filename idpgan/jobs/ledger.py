"""``idpgan ledger``: all charges on the images of a folder, as far as they can be found, and their total.

Publications and obfuscations stand on the ledgers of the folder, of the folders around it and of those inside it. A run
has its own ledger and names its images in its config. A stream names no images, so every stream beside the folder
counts. Releases of the same people that a run contains count too, unless the run that charged them is among those
found. Nothing private is read, and nothing is written.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idpgan.data.config import DataConfig
from idpgan.errors import InputError
from idpgan.files import read_plain
from idpgan.jobs.stream import ANSWERS, price_of
from idpgan.jobs.train import load_config
from idpgan.privacy.accounting import compose_epsilon
from idpgan.privacy.books import Books
from idpgan.privacy.composition import Part
from idpgan.privacy.composition import total as total_of_parts
from idpgan.privacy.event import Event
from idpgan.privacy.folder_ledger import NESTED, Chain, FolderLedger, Publication, Total, chains, ledger_of, total
from idpgan.privacy.guarantee import Guarantee, Relation, Unit, number_to_json
from idpgan.release.folder import PRIVACY
from idpgan.release.received import read_privacy
from idpgan.run import RunFolder
from idpgan.training.config import RunConfig

UNKNOWN = (
    "Not known here: copies of the folder, and links to it; other machines; runs and streams that lie elsewhere "
    "(--runs DIR), were moved or deleted; ledgers under other names (--ledger FILE); fits and releases in memory, from "
    "Python, which leave no trace; and who is on images of other folders too."
)
_MOST_BYTES = 1 << 27
_MADE_HERE = ("digits", "faces", "fonts")  # sources that read no folder


@dataclass(frozen=True)
class Spending:
    """One publication, run or stream.

    Attributes:
        kind: "publication", "run", "stream", or "contained": in the release of a run.
        path: Of its ledger, its run folder or its state.
        item: What it is, with its charges.
    """

    kind: str
    path: Path
    item: Publication

    @property
    def epsilon(self) -> float:
        """What is proven of it by itself, at its delta."""
        return compose_epsilon(self.item.events, self.item.delta)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        item = self.item
        return {
            "kind": self.kind,
            "path": str(self.path),
            "method": item.method,
            "unit": str(item.unit),
            "relation": str(item.relation),
            "epsilon": number_to_json(self.epsilon),
            "delta": item.delta,
            "date": item.date,
            "out": item.out,
        }


@dataclass(frozen=True)
class Spent:
    """All charges that were found for a folder.

    Attributes:
        folder: Itself, whatever link leads there.
        spending: Oldest first.
        totals: Of the dearest image, one for each unit and relation that occur.
        added: For each unit of images a bound on all charges for images and for people, of both relations, where no
            single total has them all: for zero-out-one, see `idpgan.privacy.composition`.
        remarks: What was found and could not be counted.
    """

    folder: Path
    spending: tuple[Spending, ...]
    totals: tuple[Total, ...]
    added: tuple[Guarantee, ...]
    remarks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        return {
            "folder": str(self.folder),
            "spending": [each.to_json() for each in self.spending],
            "totals": [each.to_json() for each in self.totals],
            "added": [each.to_json() for each in self.added],
            "remarks": list(self.remarks),
            "unknown": UNKNOWN,
        }


def spent(folder: Path, ledger: Path | None = None, places: Sequence[Path] = ()) -> Spent:
    """Find what was spent on the images of a folder.

    Args:
        folder: Of images.
        ledger: Its ledger; None = beside it.
        places: Folders in which runs are looked for at any depth, and streams. Besides they are looked for beside the
            folder and in the current directory, and runs in the ``runs/`` of both and beside the folders around it too.

    Raises:
        InputError: If a folder is missing, or a ledger cannot be used.
        DataError: If the folder cannot be listed.
    """
    for path in (folder, *places):
        if not path.is_dir():
            raise InputError(f"There is no folder {path}. Name {'the folder of images' if path == folder else 'it'}.")
    root, remarks = folder.resolve(), list[str]()
    found: dict[Path, list[FolderLedger]] = defaultdict(list)
    runs = [read for run in _runs(root, places) if (read := _read(remarks, run, root))]
    kinds = {read.run.path: "run" for read in runs} | {read.run.release: "contained" for read in runs}
    for read in runs:
        found[read.place].append(FolderLedger(read.run.path, read.place.name, (read.charges,)))
        if contained := _contained(read, runs):
            found[read.place].append(FolderLedger(read.run.release, read.place.name, contained))
    streams = _streams((root.parent, Path.cwd(), *places), remarks)
    kinds |= {ledger.path: "stream" for ledger in streams}
    found[root] += streams
    own = FolderLedger.read(ledger or ledger_of(folder), root.name)
    reached = chains(folder, own, found)
    ledgers = {each.path: each for chain in reached for each in chain}.values()
    rows = [Spending(kinds.get(at.path, "publication"), at.path, item) for at in ledgers for item in at.publications]
    pairs = sorted({(row.item.unit, row.item.relation) for row in rows})
    added = (_added(reached, unit) for unit in NESTED if unit in {unit for unit, _ in pairs})
    return Spent(
        folder=root,
        spending=tuple(sorted(rows, key=lambda row: row.item.date)),
        totals=tuple(total(reached, unit, relation) for unit, relation in pairs),
        added=tuple(bound for bound in added if bound is not None),
        remarks=tuple(remarks),
    )


def _added(reached: Sequence[Chain], unit: Unit) -> Guarantee | None:
    """Return what all charges cost a unit of images, those for people or photos too; None where one total has all."""
    units = (*NESTED[NESTED.index(unit) :], Unit.PERSON, Unit.PHOTO)
    found = [[item for ledger in chain for item in ledger.publications if item.unit in units] for chain in reached]
    if len({(item.unit if item.unit.of_images else unit, item.relation) for items in found for item in items}) < 2:
        return None
    delta, bounds = max(item.delta for items in found for item in items), []
    for chain, items in zip(reached, found, strict=True):
        sound = all(item.sound for ledger in chain for item in ledger.publications)
        parts = tuple(Part(tuple(map(_of_image, item.events)), item.delta) for item in items)
        bounds.append(total_of_parts(Part((), delta), parts, Unit.IMAGE, Relation.ZERO_OUT) if sound else None)
    if any(bound is None or not bound.finite for bound in bounds):
        return Guarantee(math.inf, 0.0, unit, Relation.ZERO_OUT, "not all of it is proven")
    epsilon, delta = (max(getattr(bound, name) for bound in bounds if bound) for name in ("epsilon", "delta"))
    return Guarantee(epsilon, delta, unit, Relation.ZERO_OUT, "all charges for images and people together")


def _of_image(event: Event) -> Event:
    """Return an event of a column or a pixel as one of an image, so that it composes with those that hold for it."""
    return dataclasses.replace(event, unit=Unit.IMAGE) if event.unit in NESTED else event


# Runs ----------------------------------------------------------------------------------------------------------


def _runs(root: Path, places: Sequence[Path]) -> Iterator[RunFolder]:
    """Yield the run folders that are found, whatever they were trained on."""
    bases, name = {*root.parents, Path.cwd()}, RunFolder(Path()).config.name
    configs = [path for base in bases for path in (*base.glob(f"*/{name}"), *(base / "runs").rglob(name))]
    configs += [path for place in places for path in place.rglob(name)]
    for path in sorted({config.parent.resolve() for config in configs}):
        run = RunFolder(path)
        if run.state_dir.is_dir() or (run.release / PRIVACY).is_file():
            yield run


@dataclass(frozen=True)
class _Read:
    """A run that read the images of ``place``, and what it charged for them."""

    run: RunFolder
    config: RunConfig
    place: Path
    charges: Publication


def _read(remarks: list[str], run: RunFolder, root: Path) -> _Read | None:
    """Return a run that read these images, if it did and charged anything."""
    try:
        config = load_config(run.config)
        place = _read_by(run, config.data, config.data.data_root, root)
        public = config.data.public_root
        if (place and config.data.public_share) or (public and _read_by(run, config.data, public.expanduser(), root)):
            remarks.append(f"The run {run.path} took images of it as public: nothing protects them there.")
        charges = _charges(run, config) if place else None
        return _Read(run, config, place, charges) if place and charges else None
    except (InputError, OSError) as error:
        remarks.append(f"NOT COUNTED: the run {run.path}, of whichever images it is: {error}")
        return None


def _contained(read: _Read, runs: Sequence[_Read]) -> tuple[Publication, ...]:
    """Return the charges that a run's release contains for the same people, without those of runs that are found."""
    left = list(read.config.contained) if read.config.counted else []
    for named in filter(None, (read.config.data.public_generator, read.config.data.public_root)):
        for part in _charged_at(named.expanduser(), read, runs, [each.part for each in left]):
            same = next((each for each in left if each.part == part), None)
            left = [each for each in left if each is not same]
    num, date = read.charges.num, read.charges.date
    return tuple(
        Publication(each.method, None, each.delta, each.num_private or num, read.run.path.name, date, each.part.events)
        for each in left
    )


def _charged_at(named: Path, read: _Read, runs: Sequence[_Read], contained: Sequence[Part]) -> tuple[Part, ...]:
    """Return what the run that a config names has charged, if it is found and read at least the same images.

    Its own charges are among those contained: it was not trained anew. What it contains itself is counted with it.
    """
    places = {(base / named).resolve() for base in (Path.cwd(), *read.run.path.parents)}
    for source in runs:
        own = Part(source.charges.events, source.charges.delta)
        here = any(place.is_relative_to(source.run.path) for place in places)
        if here and own in contained and read.place.is_relative_to(source.place):
            return (own, *source.config.counted)
    return ()


def _read_by(run: RunFolder, data: DataConfig, place: Path, root: Path) -> Path | None:
    """Return the folder that a run read, if it is this one, or around it, or inside it.

    A relative path was named in an unknown directory: this may be the current one, or any directory that the run lies
    in. A built-in set reads the folder of its name, not what else lies beside that.
    """
    for base in () if data.name in _MADE_HERE else (Path.cwd(), *run.path.parents):
        read = (base / place).resolve()
        beside = root.relative_to(read).parts[:1] if root.is_relative_to(read) else ()
        if read.is_relative_to(root) or (beside and (data.name.endswith("folder") or beside[0].lower() == data.name)):
            return read
    return None


def _charges(run: RunFolder, config: RunConfig) -> Publication | None:
    """Return the charges of a run, from its ledger, or else from its release; None before the first."""
    stated = read_privacy(run.release / PRIVACY) if (run.release / PRIVACY).is_file() else None
    books = Books.parse(read_plain(run.ledger, _MOST_BYTES), run.ledger) if run.ledger.is_file() else None
    if books is None and stated is None:
        raise InputError("its ledger is gone, so that what it spent is unknown.")
    events = tuple(books.entries) if books is not None else stated.events if stated is not None else ()
    if not events:
        return None
    target = None if books is None else books.terms.target
    delta = config.privacy.delta or (target.delta if target else 0.0)
    if stated is not None:
        delta = float(stated.document["delta"])
        if not stated.report.private:  # not private, such as under a fixed noise seed
            events += (Event.non_private("its release is not private", events[0].unit, events[0].relation),)
    epsilon = None if target is None else target.epsilon
    num = config.data.num_images or 0
    return Publication(config.method.name, epsilon, delta, num, run.path.name, _date(run.config), events)


# Streams -------------------------------------------------------------------------------------------------------


def _streams(places: Sequence[Path], remarks: list[str]) -> list[FolderLedger]:
    """Return the streams that lie in some folders, whomever they count."""
    found = []
    for answers in sorted({path.resolve() for place in places for path in place.glob(f"*{ANSWERS}")}):
        state = answers.with_name(answers.name.removesuffix(ANSWERS))
        try:
            event = price_of(state)
        except (InputError, OSError) as error:
            remarks.append(f"NOT COUNTED: {error}")
            continue
        item = Publication("stream", event.pure, 0.0, 0, answers.name, _date(answers), (event,))
        found.append(FolderLedger(state, state.name, (item,)))
    return found


def _date(path: Path) -> str:
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).isoformat(timespec="seconds")
