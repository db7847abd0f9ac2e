"""``idpgan verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idpgan.cli.output import AsJson, print_json

_MOST_SHOWN = 40  # lines


def verify(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="Release folder, or a run that has one.")],
    as_json: AsJson = False,
) -> None:
    """Derive charges, numbers, card and pictures of a release again from its settings, and compare.

    It needs no data. "consistent" says that everything fits together; that the run was as stated is the word of whoever
    made it. What another version said in other words is shown. Exit code 1: it is not consistent.

    Example: idpgan verify runs/demo/release
    """
    from idpgan.jobs import verify as job

    found = job.verify(release)
    if as_json:
        print_json(found.to_json())
    else:
        print(f"proven:     {found.report.proven}")
        if found.recomputed is not None:
            print(f"recomputed: epsilon = {found.recomputed:.6g}")
        if found.words and found.consistent:
            print(f"words:      of idpgan {found.made_with}, not of this version; only their numbers were compared:")
            for line in found.words[:_MOST_SHOWN]:
                print(f"  {line}")
            if len(found.words) > _MOST_SHOWN:
                print(f"  and {len(found.words) - _MOST_SHOWN:,} more")
        for problem in found.problems:
            print(f"PROBLEM: {problem}")
        total = "" if found.report.total is None else f"; proven: {found.report.stated}"
        print(f"{'consistent' if found.consistent else 'NOT CONSISTENT'}{total}")
    if not found.consistent:
        raise typer.Exit(1)
