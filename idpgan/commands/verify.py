"""``idpgan verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idpgan.commands.command import Answer, command


@command
def verify(
    release: Annotated[
        Path, typer.Argument(metavar="RELEASE|PICTURE", help="Release folder, a run that has one, or a picture.")
    ],
) -> Answer:
    """Derive charges, numbers, card and pictures of a release again from its settings, and compare.

    It needs no data. "consistent" says that everything fits together; that the run was as stated is the word of whoever
    made it, and so is what stands beside "not checked". Exit code 1: it is not consistent.

    Of a picture, by whomever, it says what metadata and signature tell of how it was made. Exit code 1: it was changed
    after it was signed.

    Example: idpgan verify runs/demo/release
    """
    from idpgan import kinds
    from idpgan.release.detector import layers_of

    if release.is_file():
        layers = layers_of(release)
        return Answer(layers, lambda: print(*layers.lines, sep="\n"), code=0 if layers.signature.valid else 1)
    found = kinds.verify(release)
    lines = [f"proven:     {found.report.proven}"]
    if found.recomputed is not None:
        lines.append(f"recomputed: epsilon = {found.recomputed:.6g}")
    lines += [f"not checked: {sentence}." for sentence in found.unchecked if found.consistent]
    lines += [f"note: {note}" for note in found.notes]
    lines += [f"PROBLEM: {problem}" for problem in found.problems]
    total = "" if found.report.total is None else f"; proven: {found.report.stated}"
    lines.append(f"{'consistent' if found.consistent else 'NOT CONSISTENT'}{total}")
    return Answer(found, lambda: print(*lines, sep="\n"), code=0 if found.consistent else 1)
