"""``idpgan init``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from idpgan.commands.command import Answer, command
from idpgan.errors import InputError
from idpgan.files import pasted, write_text_atomic


@command
def init(
    source: Annotated[
        str, typer.Argument(metavar="FOLDER|NAME", help="Folder of images, a built-in source, or a config.")
    ],
    data_root: Annotated[Path | None, typer.Option(help="Where the files of a built-in source lie.")] = None,
    method: Annotated[
        str, typer.Option(help="What to train: a generator, or best = by a rule from public facts.")
    ] = "best",
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Do not try each method for two seconds to say how long it takes.")
    ] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the config there; default: stdout.")] = None,
) -> Answer:
    """Print a commented config for your images, ready to train, or one of the package's; or write it to a new file.

    Why this method, how long it takes on this machine, and the alternatives stand on stderr.

    Example: idpgan init faces48 > config.toml && idpgan train config.toml
    """
    from idpgan.jobs.init import init as write_config

    if out is not None and (os.path.lexists(out) or not out.absolute().parent.is_dir()):
        raise InputError(
            f"--out {out} is there already, or its folder is not. Name a new file in a folder that exists."
        )
    template = write_config(source, data_root, None if method == "best" else method, not no_probe)

    if out is not None:
        write_text_atomic(out, template.text)

    def show() -> None:
        print(template.text if out is None else f"{out} is written. Next: idpgan train {pasted(out)}\n", end="")
        for note in (*template.notes, *template.private_notes):
            print(note, file=sys.stderr)

    value = {"toml": template.text, "config": template.table, "private_notes": list(template.private_notes)}
    value["notes"] = list(template.notes)
    return Answer(value, show)
