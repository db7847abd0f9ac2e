"""``idpgan rehearse``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from idpgan.commands.command import Answer, command, print_lines, print_table
from idpgan.jobs.options import RehearseOptions
from idpgan.progress import Progress, duration

if TYPE_CHECKING:
    from idpgan.jobs.rehearse import Rehearsal


@command
def rehearse(options: RehearseOptions, progress: Progress) -> Answer:
    """Try a config on public stand-ins at several epsilons, before any budget is spent: which epsilon?

    Drawn faces or written digits of the same size, number and classes go through the whole run; no private image is
    read. Every epsilon takes about as long as its training. Settings override the config.

    Example: idpgan rehearse config.toml --epsilon 1 10 --out rehearsal.png
    """
    from idpgan.jobs.rehearse import rehearse as run

    done = run(options, progress)
    return Answer(done, lambda: _tell(done, options))


def _tell(done: Rehearsal, options: RehearseOptions) -> None:
    real = "" if done.real is None else f" The stand-ins themselves teach {done.real:.1%}."
    constant = "" if done.majority is None else f" One constant answer: {done.majority:.1%}."
    print_lines(
        [f"Method {done.method} on {done.stand_ins}, unit {done.unit}. Nothing private was read.{real}{constant}"]
    )
    rows = [
        (
            f"{row.epsilon:g}",
            ""
            if row.accuracy is None
            else f"{row.accuracy:.1%}" + (f" ± {row.accuracy_std:.1%}" if row.accuracy_std else ""),
            "" if row.kid is None else f"{row.kid:.4f}",
            f"{row.true_positives:.1%}",
            f"{row.certainty:.2%}" if row.certainty < 0.9995 else "all but 100%",
            duration(row.seconds),
        )
        for row in done.rows
    ]
    head = ("epsilon", "accuracy", "KID", "attacker finds at 1 % false", "can be sure", "took")
    print_table(head, rows, frame=False)
    lines = [
        "accuracy: of a small CNN that the generated images taught, on stand-ins that nothing was trained on. On your "
        "images it will differ: compare the rows.",
        "attacker finds: the largest share of members that any attack can find while wrong of 1 % of the others.",
        "can be sure: who thought both equally likely before; up to a chance of about delta.",
    ]
    lines += [] if options.out is None else [f"Look at: {options.out}"]
    print_lines(lines)
