"""``idpgan attack``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from idpgan.cli.output import AsJson, Quiet, kept, print_json
from idpgan.errors import InputError

if TYPE_CHECKING:
    from idpgan.jobs.attack import Attacked, Progress


def attack(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run with a holdout.")],
    attacks: Annotated[
        list[str] | None, typer.Option("--attack", metavar="NAME", help="Attack by name, several times, or all.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="RUN", help="A run on other images: its generator calibrates.")
    ] = None,
    train_reference: Annotated[
        bool, typer.Option("--train-reference", help="Train such a generator on test and spare holdout images.")
    ] = False,
    samples: Annotated[
        int | None, typer.Option(help="Images to draw; default: as many as are private, 10,000 .. 60,000.")
    ] = None,
    most: Annotated[int, typer.Option(help="Members and non-members judged, at most.")] = 10_000,
    most_costly: Annotated[int, typer.Option(help="The same where every image is optimized for.")] = 1_000,
    confidence: Annotated[float, typer.Option(help="Of each interval.")] = 0.95,
    seed: Annotated[int, typer.Option(help="Of generated images and attacks.")] = 0,
    data_root: Annotated[Path | None, typer.Option(help="Where the data set lies now (data.root).")] = None,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu or cuda.")] = "auto",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Attack a finished run: can members of its training set be told from images that it never saw?

    Members are private images, non-members as many holdout images. Writes attack.json and attack.png (ROC curves, both
    axes logarithmic) into the run, for the curator only. An attack that fails proves nothing.

    Example: idpgan attack runs/demo --attack nearest-sample --attack critic-score
    """
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(f"--device {device} is unknown. Known: auto, cpu, cuda.")
    if seed < 0:
        raise InputError(f"--seed {seed} must be at least 0.")
    if not 0 < confidence < 1:
        raise InputError(f"--confidence {confidence} must be in (0, 1).")

    from idpgan.files import check_writable
    from idpgan.jobs.attack import FORMAT, Options, attack_run, write_attack
    from idpgan.release.outputs import check_output
    from idpgan.run import RunFolder
    from idpgan.training.method import resolve_device
    from idpgan.training.progress import BarProgress
    from idpgan.training.progress import Progress as Silent

    resolve_device(device, "--device")
    options = Options(
        attacks=tuple(attacks or ["all"]),
        samples=samples,
        most=most,
        most_costly=most_costly,
        reference=reference,
        train_reference=train_reference,
        device=device,
        seed=seed,
        confidence=confidence,
        data_root=data_root,
    )
    path = RunFolder.open(run).attack
    check_output(path, FORMAT, option="the result")
    check_writable(path)
    off = quiet or as_json or not sys.stderr.isatty()
    with _bars(off) as progress:
        attacked = attack_run(run, options, progress, Silent() if off else BarProgress())
    with kept(attacked.to_json()):
        written = write_attack(attacked)
    if as_json:
        print_json(attacked.to_json())
    else:
        _print(attacked)
        print(f"Curator only: {' and '.join(str(path) for path in written)}")


@contextmanager
def _bars(off: bool) -> Iterator[Progress | None]:
    """Say on stderr what is being done, as one line that is written over; a bar of the training may follow it."""
    if off:
        yield None
        return

    def progress(what: str, done: int, total: int) -> None:
        sys.stderr.write(f"\r\x1b[K{what}: {done:,} of {total:,}")
        sys.stderr.flush()

    yield progress
    sys.stderr.write("\r\x1b[K")


def _print(attacked: Attacked) -> None:
    """Print one row per attack, then why others were skipped or judged fewer, and what a reader has to know."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console, facts = Console(markup=False), attacked.facts
    title = f"{facts['method']} on {facts['data']}: {facts['num_members']:,} members, as many non-members"
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("attack", "AUC", "prec.", "TPR 1%", "0.1%"):  # fits 80 columns; the rest is in attack.json
        table.add_column(heading, no_wrap=True)
    notes: dict[str, None] = {}
    for row in attacked.rows:
        result = row.result
        if result is not None:
            rates = ["-" if rate is None else f"{rate:.2%}" for rate in result.tpr_at_fpr.values()]
            low, high = result.auc_interval
            precision = "-" if result.precision is None else f"{result.precision:.3f}"
            table.add_row(row.attack.name, f"{result.auc:.3f} [{low:.3f}, {high:.3f}]", precision, *rates)
            notes |= dict.fromkeys(result.notes)
    console.print(table)
    for row in attacked.rows:
        if row.skipped is not None:
            console.print(f"skipped {row.attack.name}: {row.skipped}", soft_wrap=True)
        elif row.result is not None and row.result.num_members < facts["num_members"]:
            console.print(f"{row.attack.name} judged {row.result.num_members:,} of each", soft_wrap=True)
    for note in (*notes, *attacked.notes):
        console.print(f"note: {note}", soft_wrap=True)
