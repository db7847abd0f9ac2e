"""``idpgan ledger``: all charges on the images of a folder, as far as they can be found, and their total.

Publications stand on the ledgers of the folder, of the folders around it and of those inside it. A run
has its own ledger and names its images in its config. A stream names no images, so those beside the folder are listed,
and no total has them. Releases of the same people that a run contains count too, unless the run that charged them is
among those found. What was found and is not in the totals is said. Nothing private is read. Nothing is written but a
limit that is set or raised (`idpgan.commands.ledger_limit`).
"""

from __future__ import annotations

import dataclasses
import datetime
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from idpgan.commands.command import Answer, command
from idpgan.commands.folder import FolderLedgerFile
from idpgan.commands.ledger_limit import new_limit, rows_of, set_limit
from idpgan.errors import InputError
from idpgan.run import RunFolder

if TYPE_CHECKING:
    from idpgan.data.config import DataConfig
    from idpgan.privacy.folder_ledger import Chain, Limit, Publication
    from idpgan.privacy.guarantee import Guarantee
    from idpgan.privacy.totals import Part, Total
    from idpgan.training.config import RunConfig

_UNKNOWN = (
    "copies of the folder, links to it and to its files, and what it cost before it was moved far",
    "other machines",
    "runs and streams that lie elsewhere (--runs DIR), were moved or deleted",
    "ledgers under other names (--ledger FILE)",
    "fits and releases of images in memory, from Python, which leave no trace",
    "who is on images of other folders too",
)
UNKNOWN = f"Not known here: {'; '.join(_UNKNOWN[:-1])}; and {_UNKNOWN[-1]}."
_EXPORT = "idpgan ledger export 1"
_MOST_BYTES = 1 << 27


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

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        from idpgan.privacy.guarantee import number_to_json

        item, (unit, relation) = self.item, self.item.pair
        return {
            "kind": self.kind,
            "path": str(self.path),
            "method": item.method,
            "unit": str(unit),
            "relation": str(relation),
            "epsilon": number_to_json(item.proven.epsilon),
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
        totals: Of the dearest place, one for each unit that occurs but for that of streams: each has all charges that
            bound that unit, whatever their own unit and relation, and says how many do not. For zero-out-one where any
            charge is, as what holds for replace-one holds for it.
        of_proven: Where a total is infinite, of the same unit that of the charges that prove something.
        remarks: What was found and could not be counted.
        limits: By their ledgers, each with what the images under it have cost at most.
        uncharged: Runs that stand on no ledger of a folder, so that a limit would not know them, with their charges.
    """

    folder: Path
    spending: tuple[Spending, ...]
    totals: tuple[Total, ...]
    remarks: tuple[str, ...]
    of_proven: tuple[Total, ...] = ()
    limits: tuple[tuple[Path, Limit, Guarantee], ...] = ()
    uncharged: Mapping[_FoundRun, Sequence[Publication]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict."""
        from idpgan.privacy.guarantee import number_to_json

        return {
            "folder": str(self.folder),
            "spending": [row.to_json() for row in self.spending],
            "totals": [total.to_json() for total in self.totals],
            "totals_of_proven": [total.to_json() for total in self.of_proven],
            "limits": [
                {"ledger": str(path), **limit.to_json(), "spent": number_to_json(cost.epsilon)}
                for path, limit, cost in self.limits
            ],
            "remarks": list(self.remarks),
            "unknown": UNKNOWN,
        }


@command
def ledger(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of images.")],
    ledger: FolderLedgerFile = None,
    runs: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Look for runs in DIR too, at any depth; repeatable.")
    ] = None,
    limit: Annotated[float | None, typer.Option(metavar="E", help="Never spend more than epsilon E on DIR.")] = None,
    reason: Annotated[str, typer.Option(help="Why a limit is raised; recorded.")] = "",
    delta: Annotated[float | None, typer.Option(help="Of the limit; default: min(1e-5, 1 / (10 N)).")] = None,
    unit: Annotated[str | None, typer.Option(help="Of the limit: image, person, pixel ...; default: image.")] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Also write the charges for other accountants.")
    ] = None,
) -> Answer:
    """Print what was spent on the images of a folder, as far as it can be found: publications, runs, streams, totals.

    Folders around it and inside it count; runs are looked for beside them, in the current directory, and in runs/ of
    both. Nothing is written but a limit, which publish, train and fit then keep to, and what is asked for by --export:
    every mechanism with its sensitivity and noise, rho, mu, and the tree of a DpEvent of dp_accounting.

    Example: idpgan ledger faces --limit 3
    """
    from idpgan.files import write_private_json
    from idpgan.privacy.exchange import exchanged
    from idpgan.release.folder import check_output

    places = tuple(runs or ())
    if limit is not None or reason or delta is not None or unit is not None:
        if ledger is not None:
            raise InputError("--limit is for the ledger beside DIR, which every charge asks. Leave --ledger out.")
        _set(folder, new_limit(folder, limit, delta=delta, unit=unit, reason=reason), places)
    if export is not None:
        check_output(export, _EXPORT, option="--export", images=[folder])
    result = spent(folder, ledger, places)
    if export is not None:
        rows = [{**row.to_json(), **exchanged(row.item.events)} for row in result.spending]
        write_private_json(export, {"format": _EXPORT, **result.to_json(), "spending": rows})

    def show() -> None:
        _print(result)
        if export is not None:
            print(f"Exported: {export}")

    return Answer(result, show)


def _set(folder: Path, limit: Limit, places: Sequence[Path]) -> None:
    """Write a limit on the ledger of a folder, and on their ledgers the runs that are found."""
    uncharged = spent(folder, None, places).uncharged
    rows = [(run.folder, row) for run, charges in uncharged.items() for row in rows_of(run.run, run.place, charges)]
    set_limit(folder, limit, rows)


def _print(result: Spent) -> None:
    """Print each expense with its place on a line of its own, which no terminal cuts, then what they cost together."""
    print(f"Spent on {result.folder}: {'' if result.spending else 'nothing was found.'}".rstrip())
    for row in result.spending:
        what = " by ".join(dict.fromkeys((row.kind, row.item.method)))
        print(f"  {row.item.date[:10]}  {what}, {row.item.proven}\n{'':14}{row.path}")
    for total in result.totals:
        print(f"Total, {total.counted} of {len(result.spending)} counted: {total}")
    for total in result.of_proven:
        print(f"Without what proves nothing, {total.counted} of {len(result.spending)} counted: {total}")
    if result.totals:
        print("What read the same images adds up; a total is that of the place in the folder that cost most.")
    for path, limit, cost in result.limits:
        since = f"since {limit.date[:10]}" + (f", raised: {limit.reason}" if limit.reason else "")
        print(f"Limit on {path}: {limit.guarantee}, {since}; spent there: {cost}")
    for remark in result.remarks:
        print(remark)
    print("Not counted, because nothing here knows of it:", *(f"  {place}" for place in _UNKNOWN), sep="\n")


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
    from idpgan.data.image_files import places_of
    from idpgan.privacy import totals
    from idpgan.privacy.folder_ledger import FolderLedger, chains, ledger_of, moved, total
    from idpgan.privacy.guarantee import Relation

    for path in (folder, *places):
        if not path.is_dir():
            raise InputError(f"There is no folder {path}. Name {'the folder of images' if path == folder else 'it'}.")
    root, remarks = folder.resolve(), list[str]()
    roots = {root, *(real for _, real in places_of(root) if not real.is_relative_to(root))}  # links lead out of it
    runs = [found for run in _runs(root, places) if (found := _find(remarks, run, roots))]
    uncharged = {found: (found.charges, *_contained(found, runs)) for found in runs if not found.is_charged()}
    of_runs: dict[Path, list[FolderLedger]] = defaultdict(list)
    for found, charges in uncharged.items():
        of_runs[found.place].append(FolderLedger(found.run.path, found.place.name, charges))
    reached = chains(folder, FolderLedger.read(ledger or ledger_of(folder), root.name), of_runs)
    ledgers = {ledger.path: ledger for chain in reached for ledger in chain}.values()
    rows = [_spending(ledger.path, item) for ledger in ledgers for item in ledger.publications]
    pairs = {row.item.pair for row in rows}
    weakest = Relation.ZERO_OUT if Relation.ZERO_OUT in {relation for _, relation in pairs} else Relation.REPLACE_ONE
    streams = _streams((root.parent, Path.cwd(), *places), remarks)
    whole = tuple(total(reached, unit, weakest) for unit in sorted({unit for unit, _ in pairs}))
    bare = [cost.guarantee.unit for cost in whole if not cost.guarantee.finite]
    sound = [[item for ledger in chain for item in ledger.publications if item.proven.finite] for chain in reached]
    return Spent(
        folder=root,
        spending=tuple(sorted([*rows, *streams], key=lambda row: row.item.date)),
        totals=whole,
        of_proven=tuple(totals.total(sound, unit, weakest) for unit in bare if any(sound)),
        remarks=(*remarks, *moved(folder, reached), *_gone(root, {ledger.path for ledger in ledgers})),
        limits=tuple(_limits(reached)),
        uncharged=uncharged,
    )


def _spending(ledger: Path, item: Publication) -> Spending:
    """Return the row of what stands on a ledger, or in a run that was found."""
    if not item.run:
        return Spending("publication", ledger, item)
    path = Path(item.run)
    return Spending("contained" if path == RunFolder(path.parent).release else "run", path, item)


def _limits(reached: Sequence[Chain]) -> Iterator[tuple[Path, Limit, Guarantee]]:
    """Yield each limit with its ledger, and what the images under it have cost at the dearest place."""
    for limited in {ledger.path: ledger for chain in reached for ledger in chain if ledger.limit}.values():
        limit, around = limited.limits[-1], [chain for chain in reached if limited in chain]
        costs = [limit.cost([item for ledger in chain for item in ledger.publications]) for chain in around]
        yield limited.path, limit, max(costs, key=lambda cost: cost.epsilon)


def _gone(root: Path, counted: Collection[Path]) -> Iterator[str]:
    """Name the ledgers beside a folder whose own folder is gone and that do not know it: it may have had that name."""
    from idpgan.data.image_files import LEDGER

    for path in sorted(root.parent.glob(f"*{LEDGER}")):
        name = path.name.removesuffix(LEDGER)
        if path not in counted and not path.with_name(name).exists():
            yield (
                f"NOT COUNTED: {path}, whose folder is gone. If {root.name} was called {name} before, its images paid "
                "for that too: give it its name back."
            )


# Runs ----------------------------------------------------------------------------------------------------------


def _runs(root: Path, places: Sequence[Path]) -> Iterator[RunFolder]:
    """Yield the run folders that are found, whatever they were trained on."""
    from idpgan.release.statement import PRIVACY

    bases, name = {*root.parents, Path.cwd()}, RunFolder(Path()).config.name
    configs = [path for base in bases for path in (*base.glob(f"*/{name}"), *(base / "runs").rglob(name))]
    configs += [path for place in places for path in place.rglob(name)]
    for path in sorted({config.parent.resolve() for config in configs}):
        run = RunFolder(path)
        if run.state_dir.is_dir() or (run.release / PRIVACY).is_file():
            yield run


@dataclass(frozen=True, eq=False)
class _FoundRun:
    """A run that read the images of ``place``, and what it charged for them."""

    run: RunFolder
    config: RunConfig
    place: Path
    charges: Publication

    @property
    def folder(self) -> Path:
        """The folder on whose ledger its charges stand, or will."""
        from idpgan.trainer import folder_of

        return folder_of(self.config.data, self.place) or self.place

    def is_charged(self) -> bool:
        """Whether it stands on that ledger, as it does where there was a limit."""
        from idpgan.privacy.folder_ledger import FolderLedger, ledger_of

        ledger = FolderLedger.read(ledger_of(self.folder), self.folder.name)
        return any(item.run == str(self.run.path) for item in ledger.publications)


def _find(remarks: list[str], run: RunFolder, roots: set[Path]) -> _FoundRun | None:
    """Return a run that read these images, if it did and charged anything."""
    from idpgan.trainer import load_config

    try:
        config = load_config(run.config, earlier=True)
        place = _read_by(run, config.data, config.data.data_root, roots)
        public = config.data.public_root
        if (place and config.data.public_share) or (public and _read_by(run, config.data, public.expanduser(), roots)):
            remarks.append(f"The run {run.path} took images of it as public: nothing protects them there.")
        unknown = not place and _is_no_folder(run, config.data)
        charges = _charges(run, config) if place or unknown else None
        if charges and unknown:
            remarks.append(
                f"NOT COUNTED: the run {run.path}, whose images {config.data.data_root} are no folder here: gone, "
                "or arrays. If they are of this folder, it cost them too."
            )
        return _FoundRun(run, config, place, charges) if place and charges else None
    except (InputError, OSError) as error:
        remarks.append(f"NOT COUNTED: the run {run.path}, of whichever images it is: {error}")
        return None


def _contained(found: _FoundRun, runs: Sequence[_FoundRun]) -> list[Publication]:
    """Return the charges that a run's release contains for the same people, without those of runs that are found."""
    config, charges = found.config, found.charges
    remaining = list(config.contained) if config.counted else []
    for named in filter(None, (config.data.public_generator, config.data.public_root)):
        for part in _charged_at(named.expanduser(), found, runs, [release.part for release in remaining]):
            same = next((release for release in remaining if release.part == part), None)
            remaining = [release for release in remaining if release is not same]
    return [
        dataclasses.replace(
            charges,
            events=release.part.events,
            delta=release.delta,
            method=release.method,
            epsilon=None,
            num=release.num_private or charges.num,
            run=str(found.run.release),
        )
        for release in remaining
    ]


def _charged_at(
    named: Path, found: _FoundRun, runs: Sequence[_FoundRun], contained: Sequence[Part]
) -> tuple[Part, ...]:
    """Return what the run that a config names has charged, if it is found and read at least the same images.

    Its own charges are among those contained: it was not trained anew. What it contains itself is counted with it.
    """
    from idpgan.privacy.totals import Part

    places = {(base / named).resolve() for base in (Path.cwd(), *found.run.path.parents)}
    for source in runs:
        part = Part(source.charges.events, source.charges.delta)
        here = any(place.is_relative_to(source.run.path) for place in places)
        if here and part in contained and found.place.is_relative_to(source.place):
            return (part, *source.config.counted)
    return ()


def _read_by(run: RunFolder, data: DataConfig, place: Path, roots: set[Path]) -> Path | None:
    """Return the folder that a run read, if it is one of these, or around one, or inside it.

    A relative path was named in an unknown directory: this may be the current one, or any directory that the run lies
    in. A built-in set reads the folder of its name, not what else lies beside that.
    """
    from idpgan.trainer import MADE_HERE

    for base in () if data.name in MADE_HERE else (Path.cwd(), *run.path.parents):
        folder = (base / place).resolve()
        for root in roots:
            below = root.relative_to(folder).parts[:1] if root.is_relative_to(folder) else ()
            whole = data.name.endswith("folder") or (below and below[0].lower() == data.name)
            if folder.is_relative_to(root) or (below and whole):
                return folder
    return None


def _is_no_folder(run: RunFolder, data: DataConfig) -> bool:
    """Whether what a run read is gone, or a file, wherever a relative path may have been named."""
    from idpgan.trainer import MADE_HERE

    bases = () if data.name in MADE_HERE else (Path.cwd(), *run.path.parents)
    return bool(bases) and not any((base / data.data_root).is_dir() for base in bases)


def _charges(run: RunFolder, config: RunConfig) -> Publication | None:
    """Return the charges of a run, from its ledger, or else from its release; None before the first."""
    from idpgan.files import read_plain
    from idpgan.privacy.books import Books
    from idpgan.privacy.event import Event
    from idpgan.privacy.folder_ledger import Publication
    from idpgan.release.statement import PRIVACY, read_privacy

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
        delta = float(stated.delta)
        if not stated.report.private:  # not private, such as under a fixed noise seed
            events += (Event.non_private("its release is not private", events[0].unit, events[0].relation),)
    epsilon = None if target is None else target.epsilon
    num = config.data.num_images or 0
    date = _date(run.config)
    return Publication(events, delta, config.method.name, epsilon, num, run.path.name, date, str(run.path))


# Streams -------------------------------------------------------------------------------------------------------


def _streams(places: Sequence[Path], remarks: list[str]) -> list[Spending]:
    """Return the streams that lie in some folders, whomever they count."""
    from idpgan.continual.state import ANSWERS, price_of
    from idpgan.privacy.folder_ledger import Publication

    rows = []
    for answers in sorted({path.resolve() for place in places for path in place.glob(f"*{ANSWERS}")}):
        state = answers.with_name(answers.name.removesuffix(ANSWERS))
        try:
            event = price_of(state)
        except (InputError, OSError) as error:
            remarks.append(f"NOT COUNTED: {error}")
            continue
        item = Publication((event,), 0.0, "stream", event.pure, 0, answers.name, _date(answers))
        rows.append(Spending("stream", state, item))
    if rows:
        remarks.append(
            f"NOT COUNTED: what streams cost ({len(rows)} found). They name no images, so that whom they count is not "
            "known; streams of the same events add up."
        )
    return rows


def _date(path: Path) -> str:
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).isoformat(timespec="seconds")
