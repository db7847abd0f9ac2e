"""What all metrics share: a row of the registry, the inputs of a measurement, and the table that shows results."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from idpgan.data.images import Images
from idpgan.data.load import Split, place
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import (
    FeatureClassifier,
    FeatureNetwork,
    Part,
    fit_feature_autoencoder,
    fit_feature_classifier,
    full_training_set,
    load_inception,
)
from idpgan.progress import Progress, silent

Features = Literal["auto", "classifier", "autoencoder", "inception-v3"]


class MetricResult:
    """The result of a metric: a frozen dataclass. Curator only, since it is computed with private images."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]


class MetricTable(NamedTuple):
    """Results of one kind for people; the first cell of each row names it, ``lines`` say what the numbers rest on."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judging:
    """What metrics are measured with; the feature networks are fitted when they are first asked for.

    Attributes:
        images: Under test.
        split: The real data set, without null records.
        part: Which real images judge.
        num_seeds: Fits per kind of classifier; None is the metric's own number.
        notes: What a reader has to know; metrics add to it.
        Further attributes are the arguments of `evaluate_images`.
    """

    images: Images
    split: Split
    part: Part
    num_seeds: int | None
    classifiers: Sequence[str]
    splits: int
    features: Features
    weights: Path | None
    full: bool
    cache: Cache | None = None
    device: torch.device | str = "cpu"
    progress: Progress = silent
    notes: list[str] = field(default_factory=list)

    @functools.cached_property
    def judges(self) -> Images:
        """The real images that judge."""
        images: Images = place(getattr(self.split, self.part), self.device)
        return images

    @functools.cached_property
    def classifier(self) -> FeatureClassifier:
        """The classifier of the real training images."""
        return fit_feature_classifier(self._real, cache=self.cache, device=self.device, progress=self.progress)

    @functools.cached_property
    def network(self) -> FeatureNetwork:
        """The network whose features fidelity compares."""
        if self.features == "classifier" or (self.features == "auto" and self.split.classes):
            return self.classifier
        if self.weights is not None:
            return load_inception(self.weights, self.split.image_shape, device=self.device)
        return fit_feature_autoencoder(self._real, cache=self.cache, device=self.device, progress=self.progress)

    @property
    def _real(self) -> Images:
        return place(full_training_set(self.split, self.part), self.device)


@dataclass(frozen=True)
class Metric:
    """One metric: a row of `idpgan.metrics.evaluation.METRICS`.

    Attributes:
        name: Name of the result in evaluation.json.
        measure: Maps (what it is measured with, the images that it is about) to a result; None if there is none.
        table: Maps the content of an evaluation.json to the table that shows this result, perhaps beside those of other
            rows with the same function; None where it was not measured.
        source: The images that it is about: "images" under test, or the "private" or "public" ones of the data set.
        check: Refuses what would otherwise fail only after minutes.
        least: Images under test without which it is not measured.
    """

    name: str
    measure: Callable[[Judging, Images], MetricResult | None]
    table: Callable[[Mapping[str, Any]], MetricTable | None]
    source: Literal["images", "private", "public"] = "images"
    check: Callable[[Judging], None] = lambda judging: None
    least: Callable[[Judging], int] = lambda judging: 1
