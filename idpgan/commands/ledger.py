"""``idpgan ledger``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.commands.command import Answer, command, print_table
from idpgan.jobs.options import FolderLedgerFile

if TYPE_CHECKING:
    from idpgan.jobs.ledger import Spent


@command
def ledger(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of images.")],
    ledger: FolderLedgerFile = None,
    runs: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Look for runs in DIR too, at any depth; repeatable.")
    ] = None,
) -> Answer:
    """Print what was spent on the images of a folder, as far as it can be found: publications, runs, streams, totals.

    Folders around it and inside it count; runs are looked for beside them, in the current directory, and in runs/ of
    both. Nothing is written.

    Example: idpgan ledger faces --runs experiments
    """
    from idpgan.jobs.ledger import UNKNOWN, spent

    found = spent(folder, ledger, tuple(runs or ()))
    return Answer(found, lambda: _print(found, UNKNOWN))


def _print(found: Spent, unknown: str) -> None:
    """Print a row for each expense, then the totals."""
    rows = []
    for row in found.spending:
        item, proven = row.item, row.item.proven
        epsilon = f"{proven.epsilon:.4g}" if proven.finite else "infinite"
        what = " ".join(dict.fromkeys((row.kind, item.method)))
        rows.append((item.date[:10], what, *item.pair, epsilon, f"{item.delta:.3g}", str(row.path)))
    if rows:
        head = ("when", "what", "unit", "relation", "epsilon", "delta", "where")
        print_table(head, rows, f"Spent on {found.folder}", frame=False, folded=("what", "where"))
    else:
        print(f"Nothing was found that was spent on {found.folder}.")
    for total in found.totals:
        print(f"Total at the dearest place, {total.counted} of {len(found.spending)} rows: {total}")
    for remark in (*found.remarks, unknown):
        print(remark)
