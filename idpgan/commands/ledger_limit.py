"""``idpgan ledger DIR --limit``: what may ever be spent on a folder, written on its ledger.

From then on every charge is on the ledgers of the folders, those of runs too. So runs that were found are written there
first: one that is not finished with its whole plan, since it may go on without asking.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from idpgan.errors import InputError
from idpgan.files import pasted
from idpgan.run import RunFolder

if TYPE_CHECKING:
    from idpgan.privacy.folder_ledger import Limit, Publication


def new_limit(
    folder: Path, epsilon: float | None, *, delta: float | None = None, unit: str | None = None, reason: str = ""
) -> Limit:
    """Return the limit that is asked for, which is not written yet.

    Args:
        folder: Of images.
        epsilon: Of the limit; a looser one than the last takes a ``reason``, no other has one.
        delta: None = the last limit's, or the default for the number of images.
        unit: None = the last limit's, or "image".

    Raises:
        InputError: If a number cannot be one, or what is asked is looser than the last limit and not said to be.
    """
    from idpgan.privacy.folder_ledger import FolderLedger, Limit, ledger_of
    from idpgan.privacy.guarantee import Unit, check_delta, default_delta, parse_unit

    if epsilon is None or not 0 < epsilon < math.inf:
        raise InputError("give a finite epsilon above 0: --limit E; a looser one with --reason TEXT.")
    last, num = FolderLedger.read(ledger_of(folder), folder.resolve().name).limit, _num_records(folder)
    if delta is None:
        delta = default_delta(num) if last is None else last.delta
    check_delta(delta, num, "--delta")
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    known = parse_unit(unit) if unit is not None else Unit.IMAGE if last is None else last.unit
    limit = Limit(float(epsilon), float(delta), known, now, reason.strip())
    if last is not None and not last.allows(limit):
        if not limit.reason:
            raise InputError(
                f"the limit on {folder} is {last.guarantee}. To raise it: idpgan ledger {pasted(folder)} --limit "
                f"{epsilon:g} --reason TEXT, which is recorded."
            )
    elif reason:
        raise InputError(f"--reason TEXT says why a limit is raised, and there is none on {folder} that this raises.")
    return limit


def _num_records(folder: Path) -> int:
    """Return how many records a folder has: rows of its table, null records too, or images where it has none."""
    from idpgan.data.metadata import METADATA, read_rows
    from idpgan.data.sources.face_folder import tree

    return len(read_rows(folder, []).paths if (folder / METADATA).is_file() else tree(folder))


def rows_of(run: RunFolder, place: Path, spent: Sequence[Publication]) -> Sequence[Publication]:
    """Return the rows of a run for the ledger of its images' folder: what it spent, or may spend if it is not finished.

    Args:
        place: Its data root.
        spent: What it has charged, then the charges of releases that it contains.

    Raises:
        InputError: If it is not finished, and what it costs is not known.
    """
    from idpgan.data.load import known_shape
    from idpgan.privacy.books import Books
    from idpgan.release.statement import PRIVACY
    from idpgan.trainer import charges, load_config
    from idpgan.training.plan import plan_run

    if (run.release / PRIVACY).is_file():
        return spent
    config = load_config(run.config, data_root=place, earlier=True)
    planned, books = plan_run(config, known_shape(config.data)), Books.parse(run.ledger.read_bytes(), run.ledger)
    events = (*planned.price.events, *books.repeated)
    return *charges(planned, run, events, contained=False), *spent[1:]


def set_limit(folder: Path, limit: Limit, rows: Sequence[tuple[Path, Publication]]) -> None:
    """Write a limit on the ledger of a folder.

    Args:
        folder: Of images.
        limit: What `new_limit` returned.
        rows: Of runs that are on no ledger of a folder yet, each with the folder that has the images.

    Raises:
        InputError: If a ledger cannot be used, or a publication on it is running.
    """
    from idpgan.privacy.folder_ledger import FolderLedger, ledger_of

    for place in dict.fromkeys(place for place, _ in rows):
        with FolderLedger.locked(ledger_of(place), place.name) as ledger:
            ledger.charged(*(row for at, row in rows if at == place)).write()
    place = folder.resolve()
    with FolderLedger.locked(ledger_of(place), place.name) as ledger:
        ledger.limited(limit)
