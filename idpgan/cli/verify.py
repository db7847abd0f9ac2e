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
    """Recompute the proven epsilon of a release from its charges, and check every file's hash.

    Example: idpgan verify runs/demo/release
    """
    from idpgan.report.verify import verify_release

    found = verify_release(release)
    if as_json:
        print_json(found.to_json())
    else:
        print(f"proven:     {found.report.proven}")
        print(f"recomputed: epsilon = {found.recomputed:.6g}")
        for problem in found.problems:
            print(f"PROBLEM: {problem}")
        print("NOT VERIFIED" if found.problems else "verified")
    if found.problems:
        raise typer.Exit(1)
