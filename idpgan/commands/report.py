"""``idpgan report``: what is known of a run or a publication, gathered into one page for the curator.

The page shows real private images beside generated ones. They are read without a charge, as `idpgan attack` and
`idpgan evaluate` read them: what is on the page is for the curator only. Nothing else private is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idpgan.commands import audit, evaluate
from idpgan.commands.command import Answer, command
from idpgan.errors import InputError
from idpgan.files import PRIVATE_FILE, check_writable, write_text_atomic
from idpgan.progress import Progress, silent
from idpgan.run import RunFolder


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
    path = write_report(source, data_root, progress)
    return Answer({"report": str(path)}, lambda: print(f"Curator only: {path}"))


def write_report(source: Path, data_root: Path | None = None, progress: Progress = silent) -> Path:
    """Write the report of a run or a publication; return where.

    Args:
        source: A run folder, or the output folder of `idpgan publish`.
        data_root: Where the run's data set lies now; None = where it lay.
        progress: Told how far the images are read.

    Raises:
        InputError: If it is neither, or its release cannot be read, or something else lies where the report is to be.
    """
    from idpgan.attacks import findings
    from idpgan.commands import folder, publish
    from idpgan.kinds import KINDS
    from idpgan.release.folder import check_page
    from idpgan.report.page import FORMAT, render
    from idpgan.report.publication import Sheet, publication_page
    from idpgan.report.run import gathered, run_page
    from idpgan.trainer import load_config

    run, curator = RunFolder(source), source / "curator"
    if run.config.is_file():
        path = run.report
    elif not (curator / folder.REPORT).is_file():
        raise InputError(
            f"{source} is neither a run nor the output of `idpgan publish`: it holds neither config.toml nor "
            "curator/report.json. What was given away alone has no report: see its README.md, and `idpgan verify`."
        )
    elif data_root is not None:
        raise InputError(f"--data-root is for runs: the report of {source} reads nothing but that folder.")
    else:
        path = curator / "report.html"
    check_page(path, FORMAT)
    check_writable(path)
    if path == run.report:
        results = {"evaluation": evaluate.FORMAT, "attack": findings.FORMAT, "audit": audit.FORMAT}
        page = run_page(gathered(run, load_config(run.config, data_root=data_root), KINDS, results), progress)
    else:
        sheet = Sheet(curator / folder.SHEET, folder.SHOWN, folder.COLUMNS)
        page = publication_page(source, curator / folder.REPORT, publish.FORMAT, sheet, KINDS)
    write_text_atomic(path, render(page), mode=PRIVATE_FILE)
    return path
