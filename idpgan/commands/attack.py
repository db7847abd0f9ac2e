"""``idpgan attack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.commands.command import Answer, command, kept, print_lines, print_table, processes
from idpgan.errors import InputError
from idpgan.jobs.options import AttackOptions
from idpgan.progress import Progress
from idpgan.ranks import refuse_several

if TYPE_CHECKING:
    from idpgan.jobs.attack import AttackReport


@command
def attack(
    source: Annotated[
        Path,
        typer.Argument(metavar="RUN|DIR|FILE.npz", help="A finished run with a holdout; with --members any images."),
    ],
    options: AttackOptions,
    progress: Progress,
) -> Answer | None:
    """Attack a run, or images of any tool: can the images that were used be told from images that were not?

    Of a run, members are private images, non-members as many holdout images. Writes attack.json and attack.png (ROC
    curves, both axes logarithmic) into the run, for the curator only. With --members and --others the images may be
    anybody's, and the result is one page of words. An attack that fails proves nothing. Several processes share the
    distances by torchrun --nproc-per-node 8 -m idpgan attack ...: docs/reference/scale.md.

    Example: idpgan attack runs/demo --attack nearest-sample --attack critic-score
    Example: idpgan attack synthetic.npz --members used/ --others unused/
    """
    if options.members is not None or options.others is not None:
        refuse_several("attack --members")
        return _foreign(source, options, progress)
    if source.is_file():
        raise InputError(f"{source} is a file, not a run. Say what its images were made from: --members, and --others.")
    from idpgan.attacks.distances import follow
    from idpgan.jobs.attack import attack_run, write_attack

    with processes() as ranks:
        if not ranks.first:
            follow(ranks)
            return None
        report = attack_run(source, options, progress, ranks)
    with kept(report.to_json()):
        written = write_attack(report)

    def show() -> None:
        _print(report)
        print(f"Curator only: {' and '.join(map(str, written))}")

    return Answer(report, show)


def _foreign(synthetic: Path, options: AttackOptions, progress: Progress) -> Answer:
    """Attack images that some tool has made, and print one page."""
    from idpgan.jobs.attack_images import attack_foreign, write_images_attack

    found = attack_foreign(synthetic, options, progress)
    with kept(found.to_json()):
        write_images_attack(found, options.out)
    return Answer(found, lambda: print_lines(found.page()))


def _print(report: AttackReport) -> None:
    """Print one row per attack, then why others were skipped or judged fewer, and what a reader has to know."""
    facts, rows = report.facts, list[tuple[str, ...]]()
    title = f"{facts['method']} on {facts['data']}: {facts['num_members']:,} members, as many non-members"
    lines, notes = [], dict[str, None]()
    for found in report.outcomes:
        name, result = found.attack.name, found.result
        if result is not None:
            rates = [
                "-" if rate is None else f"{rate:.2%}" if rate < 0.1 else f"{rate:.1%}"
                for rate in result.tpr_at_fpr.values()
            ]
            low, high = result.auc_interval
            precision = "-" if result.precision is None else f"{result.precision:.3f}"
            rows.append((name, f"{result.auc:.3f} [{low:.3f}, {high:.3f}]", precision, *rates))
            notes |= dict.fromkeys(result.notes)
        if found.skipped is not None:
            lines.append(f"skipped {name}: {found.skipped}")
        elif result is not None and result.num_members < facts["num_members"]:
            lines.append(f"{name} judged {result.num_members:,} of each")
    head = ("attack", "AUC", "prec.", "TPR 1%", "0.1%")  # fits 80 columns; the rest is in attack.json
    print_table(head, rows, title, frame=False)
    best = [] if report.best is None else [str(report.best)]
    print_lines([*best, *lines, *(f"note: {note}" for note in (*notes, *report.notes))])
