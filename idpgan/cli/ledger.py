"""``idpgan ledger``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.cli.command import Answer, command
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
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Spent on {found.folder}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("when", "what", "unit", "relation", "epsilon", "delta", "where"):
        table.add_column(heading, no_wrap=heading not in ("what", "where"), overflow="fold")
    for row in found.spending:
        item, epsilon = row.item, f"{row.epsilon:.4g}" if math.isfinite(row.epsilon) else "infinite"
        what = " ".join(dict.fromkeys((row.kind, item.method)))
        table.add_row(item.date[:10], what, item.unit, item.relation, epsilon, f"{item.delta:.3g}", str(row.path))
    if found.spending:
        Console(markup=False).print(table)
    else:
        print(f"Nothing was found that was spent on {found.folder}.")
    for total in found.totals:
        print(f"Total at the dearest place, {total.counted} of {len(found.spending)} rows: {total}")
    for bound in found.added:
        print(f"Both relations added, since they do not compose: at most {bound}")
    for remark in (*found.remarks, unknown):
        print(remark)
