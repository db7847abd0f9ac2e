"""``idpgan verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from idpgan.commands.command import Answer, command

_MOST_SHOWN = 40  # lines


@command
def verify(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="Release folder, or a run that has one.")],
) -> Answer:
    """Derive charges, numbers, card and pictures of a release again from its settings, and compare.

    It needs no data. "consistent" says that everything fits together; that the run was as stated is the word of whoever
    made it. What another version said in other words is shown. Exit code 1: it is not consistent.

    Example: idpgan verify runs/demo/release
    """
    from idpgan import kinds

    found = kinds.verify(release)
    lines = [f"proven:     {found.report.proven}"]
    if found.recomputed is not None:
        lines.append(f"recomputed: epsilon = {found.recomputed:.6g}")
    if found.words and found.consistent:
        lines.append(f"words:      of idpgan {found.made_with}, not of this version; only their numbers were compared:")
        lines += [f"  {line}" for line in found.words[:_MOST_SHOWN]]
        if len(found.words) > _MOST_SHOWN:
            lines.append(f"  and {len(found.words) - _MOST_SHOWN:,} more")
    if (unchecked := getattr(found.artifact, "unchecked", None)) and found.consistent:
        lines.append(f"not checked: {unchecked}.")
    lines += [f"PROBLEM: {problem}" for problem in found.problems]
    total = "" if found.report.total is None else f"; proven: {found.report.stated}"
    lines.append(f"{'consistent' if found.consistent else 'NOT CONSISTENT'}{total}")
    return Answer(found, lambda: print(*lines, sep="\n"), code=0 if found.consistent else 1)
