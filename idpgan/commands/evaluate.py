"""``idpgan evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from idpgan.commands.command import Answer, command, kept, print_lines, print_table
from idpgan.jobs.options import EvaluateOptions
from idpgan.progress import Progress

_MOST_COLUMNS = 5  # of a table that is as wide as 80 signs; one with more is turned on its side


@command
def evaluate(
    source: Annotated[Path, typer.Argument(metavar="RUN|DIR|FILE.npz", help="Images, or what draws them.")],
    options: EvaluateOptions,
    progress: Progress,
) -> Answer:
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

    evaluated = evaluate_source(source, options, progress)
    found = evaluated.to_json()
    with kept(found):
        write_evaluation(evaluated)

    def show() -> None:
        print(f"{source} ({found['num_images']:,} images) against {found['data']['name']}")
        if found.get("drawn_for") == "looking":
            print("These images were drawn to be looked at; to train on: idpgan sample --for training.")
        elif found.get("drawn_for") == "training":
            print("Images are drawn for training.")
        _print(found)

    return Answer(found, show)


def _print(found: Mapping[str, Any]) -> None:
    """Print the tables of all that was measured, what they rest on, and what a reader has to know."""
    from idpgan.metrics.evaluation import metric_notes, metric_tables

    plain = str.maketrans({"±": "+-", "↑": "", "↓": ""})
    for table in metric_tables(found):
        print_lines([table.caption.translate(plain)])
        rows = [[cell.translate(plain) for cell in row] for row in (table.head, *table.rows)]
        if len(table.head) > _MOST_COLUMNS:
            rows = [list(column) for column in zip(*rows, strict=True)]
        print_table([heading.strip() for heading in rows[0]], rows[1:])
        print_lines([line.translate(plain) for line in table.lines])
    print_lines([f"note: {note}" for note in metric_notes(found)])
