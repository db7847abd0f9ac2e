"""The table of all metrics, and their results on one set of images. A new metric is one more row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from idpgan.checks import whole
from idpgan.config import nearest_hint
from idpgan.data.images import Images
from idpgan.data.load import Split, place
from idpgan.errors import InputError
from idpgan.metrics import accuracy, dpimagebench, fidelity, inception, predictions, recognition, utility
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import RECIPES, Part
from idpgan.metrics.metric import Features, Judging, Metric, MetricResult, MetricTable
from idpgan.progress import Progress, silent

_ROWS = (
    Metric("utility", partial(utility.measure, "utility"), utility.table, least=lambda judging: utility.LEAST_TO_FIT),
    Metric("ceiling", partial(utility.measure, "ceiling"), utility.table, source="private"),
    Metric("floor", partial(utility.measure, "floor"), utility.table, source="public", check=utility.check_floor),
    Metric(
        "inception", inception.measure, inception.table, check=inception.check, least=lambda judging: judging.splits
    ),
    Metric("fidelity", fidelity.measure, fidelity.table, check=fidelity.check, least=lambda judging: fidelity.LEAST),
    Metric("fidelity_ceiling", fidelity.measure, fidelity.table, source="private", check=fidelity.check),
    recognition.METRIC,
    Metric("dpimagebench", dpimagebench.measure, dpimagebench.table),
)
METRICS: Mapping[str, Metric] = {row.name: row for row in _ROWS}
CURATOR_NOTE = "measured on private images: for the curator only, covered by no epsilon"


@dataclass(frozen=True)
class Evaluation:
    """How images compare with a real data set. Curator only.

    Attributes:
        results: Each result by its name in `METRICS`; "classifier" is that of a released classifier, which is under
            test itself or stands beside the images; "by_group" the accuracy for each value of a column.
        part: Which real images judge utility and fidelity.
        notes: What a reader has to know.
    """

    results: Mapping[str, MetricResult | None]
    part: Part
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; what was not measured is None."""
        measured = {name: self.results.get(name) for name in (*METRICS, "classifier", "by_group")}
        values = {name: result and result.to_json() for name, result in measured.items()}
        return values | {"part": self.part, "notes": self.notes}

    def __repr__(self) -> str:
        return f"<Evaluation: {', '.join(self.results)} on the {self.part} images; print it for the tables>"

    def __str__(self) -> str:
        """Return the tables of what was measured."""
        lines = []
        for caption, head, rows, *_ in metric_tables(self.to_json()):
            cells = [head, *rows]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            lines += [caption, *("  ".join(map(str.ljust, row, widths)).rstrip() for row in cells), ""]
        return "\n".join([*lines, *metric_notes(self.to_json())])


def metric_tables(content: Mapping[str, Any]) -> list[MetricTable]:
    """Return the tables of all that was measured.

    Args:
        content: Content of an evaluation.json.

    Raises:
        KeyError, TypeError, ValueError, IndexError: If it is of another version.
    """
    functions = dict.fromkeys([row.table for row in METRICS.values()] + [accuracy.table, predictions.table])
    return [table for function in functions if (table := function(content)) is not None]


def metric_notes(content: Mapping[str, Any]) -> list[str]:
    """Return what a reader of an evaluation.json has to know, each note once."""
    results = [content.get(name) or {} for name in (*METRICS, "by_group")]
    return list(dict.fromkeys([*content["notes"], *(note for result in results for note in result.get("notes", ()))]))


def evaluate_images(
    images: Images,
    split: Split,
    metrics: Collection[str] | None = None,
    *,
    part: Part = "test",
    num_seeds: int | None = None,
    classifiers: Sequence[str] = tuple(RECIPES),
    splits: int = 10,
    features: Features = "auto",
    weights: Path | None = None,
    full: bool = False,
    cache: Cache | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Evaluation:
    """Measure images against the data set that they stand for.

    Args:
        images: Under test; without labels there is no utility.
        split: The real data set; its null records are left out.
        metrics: Some of `METRICS`; None is utility, inception and fidelity, the last alone where the set has no labels.
        part: Which real images judge. Settings are chosen on the holdout; the test images are for the final number.
        num_seeds: Fits per kind of classifier, >= 1; None is 3, and 1 of "dpimagebench".
        features: Network of the fidelity; "auto" is the classifier of the data set, or the autoencoder without labels.
        weights: File of "inception-v3".
        full: Networks and epochs of "dpimagebench" in their published size, for a GPU.
        cache: Ceiling, floor, feature networks and features are the same for many sets of images.

    Raises:
        InputError: If the images do not fit the data set, or something asked for cannot be measured; found out before
            the first computation where possible.
    """
    if num_seeds is not None:
        whole(num_seeds, "seeds", 1)
    split = split.existing()
    if metrics is None:
        metrics = default_metrics(split.classes)
    for name in metrics:
        if name not in METRICS:
            raise InputError(f"There is no metric '{name}'. {nearest_hint(name, METRICS)}")
    judging = Judging(
        images, split, part, num_seeds, classifiers, splits, features, weights, full, cache, device, progress
    )
    chosen = [row for name, row in METRICS.items() if name in metrics]
    _check(judging, chosen)
    judging.notes.append(CURATOR_NOTE)
    if not split.classes:
        judging.notes.append("the data set has no labels: there is neither utility nor an inception score")
    sources = {"images": place(images, device), "private": split.private, "public": split.public}
    results = {row.name: row.measure(judging, sources[row.source]) for row in chosen}
    return Evaluation(results, part, tuple(judging.notes))


def default_metrics(classes: Sequence[str]) -> tuple[str, ...]:
    """Return the default metrics for a data set with these classes."""
    return ("utility", "inception", "fidelity") if classes else ("fidelity",)


def _check(judging: Judging, chosen: Sequence[Metric]) -> None:
    """Refuse what would otherwise fail only after minutes."""
    images, split, part = judging.images, judging.split, judging.part
    if images.image_shape != split.image_shape:
        raise InputError(f"The images have the shape (C, H, W) = {images.image_shape}, expected {split.image_shape}.")
    if len(getattr(split, part)) == 0:
        other = "Set data.holdout_share, or judge by the test images."
        if part == "test":  # images in memory that idpgan.fit took are all trained on
            other = "Judge by images that were not trained on: idpgan.evaluate(generator, real) in Python, or --data."
        raise InputError(f"There are no {part} images to judge by. {other}")
    if (judging.features == "inception-v3") != (judging.weights is not None):
        raise InputError(
            "The features of inception-v3 and a weights file go together. Set --features and --weights both."
        )
    if judging.features == "classifier" and not split.classes:
        raise InputError(
            "The data set has no labels, so that it has no feature classifier. Set --features autoencoder."
        )
    for row in chosen:
        row.check(judging)
    few = {row.name: row.least(judging) for row in chosen if row.least(judging) > len(images)}
    if few:
        needed = ", ".join(f"{name} needs {least}" for name, least in few.items())
        splits = ", or fewer --splits" if "inception" in few else ""
        raise InputError(f"{len(images)} images under test are too few: {needed}. Give more images{splits}.")
