"""``idpgan verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idpgan.cli.output import AsJson, print_json


def verify(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="Release folder, or a run that has one.")],
    as_json: AsJson = False,
) -> None:
    """Derive charges, numbers, card and pictures of a release again from its settings, and compare.

    It needs no data. "consistent" says that everything fits together; that the run was as stated is the word of whoever
    made it. Exit code 1: it is not consistent.

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
        for problem in found.problems:
            print(f"PROBLEM: {problem}")
        total = "" if found.report.total is None else f"; proven: {found.report.stated}"
        print(f"{'consistent' if found.consistent else 'NOT CONSISTENT'}{total}")
    if not found.consistent:
        raise typer.Exit(1)
