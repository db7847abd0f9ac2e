"""What a classifier says of each real image that judges: rows for a library to measure by group. Curator only.

Numbers by group are those of fairlearn's `MetricFrame`; the intervals are `share_interval`'s.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from idpgan.config import nearest_hint
from idpgan.data.config import DataConfig
from idpgan.data.images import Images, attribute_classes
from idpgan.data.load import Split
from idpgan.data.metadata import METADATA, read_table
from idpgan.data.sources import folder
from idpgan.errors import InputError
from idpgan.files import write_bytes_atomic
from idpgan.metrics.accuracy import CONFIDENCE, draws_of, share_interval
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import Part, fit_named, recipe
from idpgan.metrics.metric import MetricResult, MetricTable
from idpgan.metrics.utility import check_sets
from idpgan.progress import Progress, silent
from idpgan.training.fit import predict

PROTOCOL, SEED, MOST_GROUPS = "predictions/1", 0, 20


@dataclasses.dataclass(frozen=True)
class Judges:
    """The labeled real images that judge, without null records, and where each stands in its data set.

    Attributes:
        index: Place among the images of the data set, or among its test images where it brings its own.
        files: Their names, of a folder; else empty.
        groups: Values of a column, "" where it has none; empty where no column was named.
    """

    images: Images  # labeled
    index: list[int]
    files: list[str]
    groups: list[str]

    @classmethod
    def of(cls, config: DataConfig, split: Split, part: Part, column: str | None = None) -> Judges:
        """Take those of a part; raises `InputError` if they have no labels, or not that column."""
        judges, rows = getattr(split, part), getattr(split.positions, part, torch.empty(0))
        if judges.labels is None:
            raise InputError("The data set has no labels, so that there is nothing to predict. Set data.label.")
        place = rows if len(rows) else torch.arange(len(judges))  # the source brings its own test images
        there = ~judges.is_null
        index, files, values = place[there].tolist(), list[str](), list[str]()
        if config.name == "folder":
            paths = folder.paths(config)[0 if len(rows) else -len(judges) :]
            files = [paths[number].relative_to(config.data_root).as_posix() for number in index]
        if column is not None:
            values = _values(config, judges, column, index, there)
            if not 2 <= (groups := len({*values} - {""})) <= MOST_GROUPS:
                raise InputError(
                    f"--by {column} has {groups} values among the {part} images, and groups are 2 to {MOST_GROUPS}. "
                    "Make a column of fewer, such as ages in steps of ten years."
                )
        return cls(judges.existing(), index, files, values)


def _values(config: DataConfig, judges: Images, column: str, index: list[int], there: Tensor) -> list[str]:
    if column in judges.attribute_names and judges.attributes is not None:
        named = attribute_classes((column,))
        return [named[bit] for bit in judges.attributes[there, judges.attribute_names.index(column)].tolist()]
    known: tuple[str, ...] = judges.attribute_names
    if config.name == "folder" and (config.data_root / METADATA).is_file():
        table = read_table(config.data_root / METADATA)
        if column in table.label_columns:
            values = table.column(column)
            return [values[row] for row in index]
        known = table.label_columns
    raise InputError(f"--by {column}: the data set has no such column. {nearest_hint(column, known)}")


def predicted_by_fit(
    images: Images, judges: Images, classifier: str, cache: Cache, device: torch.device, progress: Progress = silent
) -> Tensor:
    """Return the class, int64 (n,), that a classifier fitted to images with seed 0 gives each real one."""
    check_sets(images, judges, (SEED,))
    config = recipe(classifier, len(images), SEED).model_dump(mode="json")
    digests = {"images": images.digest(), "test": judges.digest()}

    def compute() -> dict[str, Tensor]:
        title = f"predictions: {classifier}, seed {SEED}"
        model, _ = fit_named(classifier, images.to(device), seed=SEED, device=device, progress=progress, what=title)
        return {"predicted": predict(model, judges.images.to(device)).argmax(1).cpu()}

    key = {"protocol": PROTOCOL, "classifier": classifier, "config": config, **digests}
    return cache.get("predictions", key, compute)["predicted"]


def write_predictions(path: Path, judges: Judges, predicted: Tensor) -> None:
    """Write a row for each real image that judges, for the curator's eyes only."""
    names, truth = judges.images.classes, cast(Tensor, judges.images.labels)
    columns: dict[str, list[Any]] = {"index": judges.index, "file_name": judges.files}
    columns |= {"label": [names[place] for place in truth.tolist()]}
    columns |= {"predicted": [names[place] for place in predicted.tolist()], "group": judges.groups}
    columns = {name: values for name, values in columns.items() if values}
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[*columns], *zip(*columns.values(), strict=True)])
    write_bytes_atomic(path, text.getvalue().encode(), mode=0o600)


# By group, with fairlearn -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class GroupsResult(MetricResult):
    """How often predictions are right for each value of a column. Curator only.

    Attributes:
        groups: Of each value ``num_real`` images, their ``accuracy``, and its ``interval``.
        discrimination: Of two classes, the largest difference between groups of how often the second is predicted.
        unknown: Images without a value, which are left out.
    """

    column: str
    groups: Mapping[str, Mapping[str, Any]]
    discrimination: float | None
    unknown: int
    notes: tuple[str, ...] = (
        "by group: facts about the private images without noise, covered by no epsilon, never in release/; each "
        f"interval holds by itself at {CONFIDENCE:.0%} confidence, and of many groups some differ by chance",
    )


def check_fairlearn() -> None:
    """Refuse to measure by group where the library that does it is missing."""
    try:
        import fairlearn.metrics  # noqa: F401
    except ImportError as error:
        raise InputError('--by needs the package fairlearn: pip install "idpgan[fairness]"') from error


def measure_groups(column: str, judges: Judges, predicted: Tensor) -> GroupsResult:
    """Measure how often predictions are right for each group of the images that judge."""
    from fairlearn.metrics import MetricFrame, count, demographic_parity_difference
    from sklearn.metrics import accuracy_score

    groups = np.array(judges.groups)
    known = groups != ""

    def interval(truth: np.ndarray, predicted: np.ndarray, draws: np.ndarray) -> tuple[float, float]:
        return share_interval((truth == predicted).astype(float), np.unique(draws, return_inverse=True)[1])

    truth = cast(Tensor, judges.images.labels)
    real, predictions, sensitive = truth.numpy()[known], predicted.numpy()[known], groups[known]
    metrics = {"num_real": count, "accuracy": accuracy_score, "interval": interval}
    draws = {"interval": {"draws": draws_of(judges.images)[known]}}
    frame = MetricFrame(
        metrics=metrics, y_true=real, y_pred=predictions, sensitive_features=sensitive, sample_params=draws
    )
    apart = None
    if len(judges.images.classes) == 2:
        apart = float(demographic_parity_difference(y_true=real, y_pred=predictions, sensitive_features=sensitive))
    return GroupsResult(column, frame.by_group.to_dict("index"), apart, int((~known).sum()))


def table(content: Mapping[str, Any]) -> MetricTable | None:
    """Return the table of what was measured by group."""
    result = content.get("by_group")
    if not result:
        return None
    rows = [
        (value, f"{group['num_real']:,}", "{:.1%} [{:.1%}, {:.1%}]".format(group["accuracy"], *group["interval"]))
        for value, group in result["groups"].items()
    ]
    lines = [f"without a value, and left out: {result['unknown']:,} images"] * bool(result["unknown"])
    if result["discrimination"] is not None:
        lines.append(f"the second class is predicted {result['discrimination']:.1%} apart (demographic parity)")
    caption = f"By {result['column']}: accuracy on real {content['part']} images; [{CONFIDENCE:.0%} interval]"
    return MetricTable(caption, (result["column"], "images", "accuracy"), tuple(rows), tuple(lines))
