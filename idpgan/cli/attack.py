"""``idpgan attack``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.cli.options import with_options
from idpgan.cli.output import AsJson, Quiet, kept, print_json, processes
from idpgan.jobs.options import AttackOptions
from idpgan.progress import shown

if TYPE_CHECKING:
    from idpgan.jobs.attack import AttackReport


@with_options
def attack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run with a holdout.")],
    options: AttackOptions,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Attack a finished run: can members of its training set be told from images that it never saw?

    Members are private images, non-members as many holdout images. Writes attack.json and attack.png (ROC curves, both
    axes logarithmic) into the run, for the curator only. An attack that fails proves nothing. Several processes share
    the distances by torchrun --nproc-per-node 8 -m idpgan attack ...: docs/scale.md.

    Example: idpgan attack runs/demo --attack nearest-sample --attack critic-score
    """
    from idpgan.attacks.distances import follow
    from idpgan.files import check_writable
    from idpgan.jobs.attack import FORMAT, attack_run, write_attack
    from idpgan.release.outputs import check_output
    from idpgan.run import RunFolder

    with processes() as ranks, shown(quiet or as_json or not ranks.first) as progress:
        if not ranks.first:
            follow(ranks)
            return
        path = RunFolder.open(run).attack
        check_output(path, FORMAT, option="the result")
        check_writable(path)
        report = attack_run(run, options, progress, ranks)
    with kept(report.to_json()):
        written = write_attack(report)
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
        print(f"Curator only: {' and '.join(str(path) for path in written)}")


def _print(report: AttackReport) -> None:
    """Print one row per attack, then why others were skipped or judged fewer, and what a reader has to know."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console, facts = Console(markup=False), report.facts
    title = f"{facts['method']} on {facts['data']}: {facts['num_members']:,} members, as many non-members"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("attack", "AUC", "prec.", "TPR 1%", "0.1%"):  # fits 80 columns; the rest is in attack.json
        table.add_column(heading, no_wrap=True)
    notes: dict[str, None] = {}
    for found in report.outcomes:
        result = found.result
        if result is not None:
            rates = [
                "-" if rate is None else f"{rate:.2%}" if rate < 0.1 else f"{rate:.1%}"
                for rate in result.tpr_at_fpr.values()
            ]
            low, high = result.auc_interval
            precision = "-" if result.precision is None else f"{result.precision:.3f}"
            table.add_row(found.attack.name, f"{result.auc:.3f} [{low:.3f}, {high:.3f}]", precision, *rates)
            notes |= dict.fromkeys(result.notes)
    console.print(table)
    for found in report.outcomes:
        if found.skipped is not None:
            console.print(f"skipped {found.attack.name}: {found.skipped}", soft_wrap=True)
        elif found.result is not None and found.result.num_members < facts["num_members"]:
            console.print(f"{found.attack.name} judged {found.result.num_members:,} of each", soft_wrap=True)
    for note in (*notes, *report.notes):
        console.print(f"note: {note}", soft_wrap=True)
