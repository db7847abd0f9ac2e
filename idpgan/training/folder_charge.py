"""How a run keeps to the limits on the images that it reads: under a limit it is charged on the ledger of their folder.

A run's own ledger lies in the run, wherever that is. Where a limit stands, the whole plan of the run is charged on the
folder's ledger before the first read, so that it counts whatever becomes of the run. A continuation that repeats steps
with fresh noise is charged again. Charges of contained releases count too, also where their own run is on the ledger.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from idpgan.data.config import DataConfig
from idpgan.errors import InputError
from idpgan.privacy import folder_ledger
from idpgan.privacy.event import Event
from idpgan.run import RunFolder
from idpgan.training.plan import RunPlan

MADE_HERE = ("digits", "faces", "fonts")  # sources that read no folder


def folder_of(data: DataConfig, root: Path) -> Path | None:
    """Return the folder that holds the images of a run whose data root this is; None where there is none.

    A built-in set reads the folder of its name, not what else lies beside that.
    """
    if data.name in MADE_HERE or not root.is_dir():
        return None
    entries = () if data.name.endswith("folder") else sorted(root.iterdir())
    return next((path for path in entries if path.name.lower() == data.name and path.is_dir()), root).resolve()


def refuse_beyond_limits(planned: RunPlan) -> None:
    """Refuse a run for which a limit on its images leaves no room, before an image is read.

    Raises:
        InputError: Also if images under a limit are to be public, or a ledger cannot be used.
    """
    data = planned.config.data
    folder, root = folder_of(data, data.data_root), data.public_root
    public = folder if data.public_share else root.expanduser() if root is not None else None
    if public is not None and public.is_dir() and _is_limited(public):
        raise InputError(
            f"the images in {public} are under a limit (idpgan ledger) and cannot be taken as public: nothing protects "
            "these. Name other public images."
        )
    if folder is not None:
        publications = charges(planned, RunFolder(Path("run")), planned.price.events)
        ledger = _ledger(folder).charged(*publications)
        folder_ledger.refuse_beyond(folder, folder_ledger.chains(folder, ledger), publications)


def charge_folder(planned: RunPlan, run: RunFolder, events: Sequence[Event], *, contained: bool = False) -> None:
    """Charge events of a run on the ledger of its images' folder, before their reads, if a limit stands on the way.

    Args:
        contained: Whether the charges of contained releases are not on the ledger yet.

    Raises:
        LimitError: If a limit leaves no room.
        InputError: If a ledger cannot be used, or is in use.
    """
    folder = folder_of(planned.config.data, planned.config.data.data_root)
    if folder is not None and events and _is_limited(folder):
        with folder_ledger.FolderLedger.locked(folder_ledger.ledger_of(folder), folder.name) as ledger:
            ledger.pay(folder, charges(planned, run, events, contained=contained))


def charge_rest(planned: RunPlan, run: RunFolder, repeated: Sequence[Event]) -> None:
    """Charge what a run that goes on may still spend and its images' folder does not know: see `charge_folder`.

    Args:
        repeated: Charges of the run beyond its plan.
    """
    folder = folder_of(planned.config.data, planned.config.data.data_root)
    publications = [] if folder is None else _ledger(folder).publications
    charged = [event for item in publications if item.run == str(run.path.resolve()) for event in item.events]
    charge_folder(planned, run, _without((*planned.price.events, *repeated), charged), contained=not charged)


def charges(
    planned: RunPlan, run: RunFolder, events: Sequence[Event], *, contained: bool = True
) -> tuple[folder_ledger.Publication, ...]:
    """Return the rows of a run on a folder's ledger: its events, and the charges of the releases that it contains."""
    path, config = run.path.resolve(), planned.config
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    epsilon, num = planned.budget.epsilon if planned.budget else None, planned.shape.num_private
    publication = folder_ledger.Publication(
        tuple(events), planned.delta, config.method.name, epsilon, num, path.name, date, str(path)
    )
    releases = config.contained if contained and planned.contained else ()
    return (
        publication,
        *(
            folder_ledger.Publication(
                part.events, part.delta, release.method, None, num, path.name, date, str(path / run.release.name)
            )
            for release in releases
            for part in (release.part,)
        ),
    )


def _ledger(folder: Path) -> folder_ledger.FolderLedger:
    return folder_ledger.FolderLedger.read(folder_ledger.ledger_of(folder), folder.name)


def _is_limited(folder: Path) -> bool:
    """Whether a limit stands on the way of an image of a folder."""
    real = folder.resolve()
    return any(ledger.limit for chain in folder_ledger.chains(real, _ledger(real)) for ledger in chain)


def _without(events: Sequence[Event], charged: Sequence[Event]) -> list[Event]:
    """Return the events that are not among those held, or not so often."""
    counts: dict[Event, int] = {}
    for sign, group in ((1, events), (-1, charged)):
        for event in group:
            counts[event.single] = counts.get(event.single, 0) + sign * event.count
    return [event.repeated(count) for event, count in counts.items() if count > 0]
