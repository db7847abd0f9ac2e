"""``idpgan report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idpgan.commands.command import Answer, command
from idpgan.progress import Progress


@command
def report(
    source: Annotated[Path, typer.Argument(metavar="RUN|OUT", help="A run, or the output folder of publish.")],
    data_root: Annotated[Path | None, typer.Option(help="Where the data set lies now (data.root).")] = None,
    *,
    progress: Progress,
) -> Answer:
    """Gather all that is known of a run or a publication in one HTML page, for the curator only.

    The page needs no network. It shows real private images beside the generated ones.

    Example: idpgan report runs/demo
    """
    from idpgan.jobs.report import report as make

    path = make(source, data_root, progress)
    return Answer({"report": str(path)}, lambda: print(f"Curator only: {path}"))
