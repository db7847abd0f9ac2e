"""``idpgan evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from idpgan.cli.options import with_options
from idpgan.cli.output import AsJson, Quiet, kept, print_json
from idpgan.jobs.options import EvaluateOptions
from idpgan.progress import shown

_MOST_COLUMNS = 5  # of a table that is as wide as 80 signs; one with more is turned on its side


@with_options
def evaluate(
    source: Annotated[Path, typer.Argument(metavar="RUN|DIR|FILE.npz", help="Images, or what draws them.")],
    options: EvaluateOptions,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure how useful, how varied and how real images are, or how often a released classifier is right.

    The numbers are for the curator only.

    Utility: accuracy on real held-out images of classifiers trained on these images. Inception score: with a
    classifier trained on all real training images. Fidelity: FID, KID, precision, recall, density and coverage
    against the real held-out images. No epsilon covers these numbers.

    With --protocol dpimagebench only utility is measured, by that benchmark's classifiers, and epsilon is stated at its
    delta of 1 / (n ln n): rows for its tables.

    Example: idpgan evaluate synthetic.npz --data mnist --data-root ../shared/data --ceiling
    """
    from idpgan.jobs.evaluate import evaluate_source, write_evaluation

    with shown(quiet or as_json) as progress:
        evaluated = evaluate_source(source, options, progress)
    found = evaluated.to_json()
    with kept(found):
        write_evaluation(evaluated)
    if as_json:
        print_json(found)
    else:
        print(f"{source} ({found['num_images']:,} images) against {found['data']['name']}")
        _print(found)


def _print(found: Mapping[str, Any]) -> None:
    """Print the tables of all that was measured, what they rest on, and what a reader has to know."""
    from rich.console import Console
    from rich.table import Table

    from idpgan.metrics.evaluation import metric_notes, metric_tables

    console, plain = Console(markup=False), str.maketrans({"±": "+-", "↑": "", "↓": ""})
    for shown_table in metric_tables(found):
        console.print(shown_table.caption.translate(plain), soft_wrap=True)
        rows = [shown_table.head, *shown_table.rows]
        if len(shown_table.head) > _MOST_COLUMNS:
            rows = list(zip(*rows, strict=True))
        table = Table(*(heading.translate(plain).strip() for heading in rows[0]))
        for row in rows[1:]:
            table.add_row(*(cell.translate(plain) for cell in row))
        console.print(table)
        for line in shown_table.lines:
            console.print(line.translate(plain), soft_wrap=True)
    for note in metric_notes(found):
        console.print(f"note: {note}", soft_wrap=True)
