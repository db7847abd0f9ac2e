"""``idpgan verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idpgan.commands.command import Answer, command


@command
def verify(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="Release folder, or a run that has one.")],
) -> Answer:
    """Derive charges, numbers, card and pictures of a release again from its settings, and compare.

    It needs no data. "consistent" says that everything fits together; that the run was as stated is the word of whoever
    made it, and so is what stands beside "not checked". Exit code 1: it is not consistent.

    Example: idpgan verify runs/demo/release
    """
    from idpgan import kinds

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
