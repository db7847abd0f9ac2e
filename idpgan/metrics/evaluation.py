"""All that one set of images is measured by, as one result."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from idpgan.checks import typed
from idpgan.config import nearest_hint
from idpgan.data.images import Images
from idpgan.data.load import Split, place
from idpgan.errors import InputError
from idpgan.metrics.accuracy import Accuracy
from idpgan.metrics.autoencoder import fit_feature_autoencoder
from idpgan.metrics.cache import Cache
from idpgan.metrics.dpimagebench import BenchmarkResult
from idpgan.metrics.features import FeatureClassifier, FeatureNetwork, Part, fit_feature_classifier, full_training_set
from idpgan.metrics.fidelity import FidelityResult, measure_fidelity
from idpgan.metrics.fitting import RECIPES
from idpgan.metrics.inception import InceptionResult, measure_inception
from idpgan.metrics.inception_v3 import load_inception
from idpgan.metrics.utility import UtilityResult, measure_utility
from idpgan.progress import Progress, silent

METRICS = ("utility", "ceiling", "floor", "inception", "fidelity", "fidelity_ceiling")
Features = Literal["auto", "classifier", "autoencoder", "inception-v3"]
CURATOR_NOTE = "measured on private images: for the curator only, covered by no epsilon"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """How images compare with a real data set; what was not measured is None. Curator only.

    Attributes:
        ceiling: Utility of the real private training images.
        floor: Utility of the public images alone: what private data must add to.
        fidelity: Against the real images that judge.
        fidelity_ceiling: Of the real private training images against the same.
        part: Which real images judge utility and fidelity.
        notes: What a reader has to know.
        classifier: Of a released classifier, which is under test itself or stands beside the images.
        dpimagebench: Utility by that protocol, in place of ours.
    """

    utility: UtilityResult | None
    ceiling: UtilityResult | None
    floor: UtilityResult | None
    inception: InceptionResult | None
    fidelity: FidelityResult | None
    fidelity_ceiling: FidelityResult | None
    part: Part
    notes: tuple[str, ...]
    classifier: Accuracy | None = None
    dpimagebench: BenchmarkResult | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        results = {name: getattr(self, name) for name in (*METRICS, "classifier", "dpimagebench")}
        measured = {name: result and result.to_json() for name, result in results.items()}
        return measured | {"part": self.part, "notes": self.notes}


@typed
def evaluate_images(
    images: Images,
    split: Split,
    metrics: Collection[str] | None = None,
    *,
    part: Part = "test",
    num_seeds: int = 3,
    classifiers: Sequence[str] = tuple(RECIPES),
    splits: int = 10,
    features: Features = "auto",
    weights: Path | None = None,
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
        num_seeds: Fits per kind of classifier, >= 1.
        features: Network of the fidelity; "auto" is the classifier of the data set, or the autoencoder without labels.
        weights: File of "inception-v3".
        cache: Ceiling, floor, feature networks and features are the same for many sets of images.

    Raises:
        InputError: If the images do not fit the data set, or something asked for cannot be measured; found out before
            the first computation where possible.
    """
    split = split.existing()
    notes = [CURATOR_NOTE]
    if metrics is None:
        metrics = default_metrics(split.classes)
    if not split.classes:
        notes.append("the data set has no labels: there is neither utility nor an inception score")
    _check(images, split, metrics, splits, part, features, weights)
    images = place(images, device)
    judges: Images = place(getattr(split, part), device)
    networks = _Networks(split, part, cache, device, progress)
    inception = None
    if "inception" in metrics:
        inception = measure_inception(images, networks.classifier(), splits=splits, cache=cache, progress=progress)

    trained_on = {"utility": images, "ceiling": split.private, "floor": split.public}
    utilities: dict[str, UtilityResult] = {}
    for metric, source in trained_on.items():
        if metric not in metrics:
            continue
        if source.labels is None:
            notes.append(f"{metric} is not measured: there are no labels to train with")
            continue
        utilities[metric] = measure_utility(
            place(source, device),
            judges,
            classifiers=classifiers,
            seeds=range(num_seeds),
            cache=cache,
            device=device,
            progress=progress,
            what=metric,
        )
    fidelities: dict[str, FidelityResult] = {}
    for metric, source in (("fidelity", images), ("fidelity_ceiling", split.private)):
        if metric in metrics:
            network = networks.of_fidelity(features, weights)
            fidelities[metric] = measure_fidelity(
                place(source, device), judges, network, part=part, cache=cache, progress=progress
            )
    return Evaluation(
        utility=utilities.get("utility"),
        ceiling=utilities.get("ceiling"),
        floor=utilities.get("floor"),
        inception=inception,
        fidelity=fidelities.get("fidelity"),
        fidelity_ceiling=fidelities.get("fidelity_ceiling"),
        part=part,
        notes=tuple(notes),
    )


def default_metrics(classes: Sequence[str]) -> tuple[str, ...]:
    """Return what is measured unless something else is asked for, of a data set with these classes."""
    return ("utility", "inception", "fidelity") if classes else ("fidelity",)


class _Networks:
    """The feature networks of a data set, each fitted when it is first asked for."""

    def __init__(
        self, split: Split, part: Part, cache: Cache | None, device: torch.device | str, progress: Progress
    ) -> None:
        self._split, self._part, self._device = split, part, device
        self._cache, self._progress = cache, progress
        self._classifier: FeatureClassifier | None = None
        self._other: FeatureNetwork | None = None

    def classifier(self) -> FeatureClassifier:
        """Return the classifier of the real training images."""
        if self._classifier is None:
            self._classifier = fit_feature_classifier(
                self._real(), cache=self._cache, device=self._device, progress=self._progress
            )
        return self._classifier

    def of_fidelity(self, features: Features, weights: Path | None) -> FeatureNetwork:
        """Return the network whose features fidelity compares."""
        if features == "classifier" or (features == "auto" and self._split.classes):
            return self.classifier()
        if self._other is None and weights is not None:
            self._other = load_inception(weights, self._split.image_shape, device=self._device)
        elif self._other is None:
            self._other = fit_feature_autoencoder(
                self._real(), cache=self._cache, device=self._device, progress=self._progress
            )
        return self._other

    def _real(self) -> Images:
        return place(full_training_set(self._split, self._part), self._device)


def _check(
    images: Images,
    split: Split,
    metrics: Collection[str],
    splits: int,
    part: Part,
    features: Features,
    weights: Path | None,
) -> None:
    """Refuse what would otherwise fail only after minutes."""
    for metric in metrics:
        if metric not in METRICS:
            raise InputError(f"There is no metric '{metric}'. {nearest_hint(metric, METRICS)}")
    if images.image_shape != split.image_shape:
        raise InputError(f"The images have the shape (C, H, W) = {images.image_shape}, expected {split.image_shape}.")
    if "inception" in metrics and not 1 <= splits <= len(images):
        raise InputError(f"splits = {splits} must be in [1, {len(images)}], the number of images. Set --splits.")
    if "inception" in metrics and split.private.labels is None:
        raise InputError("The data set has no labels, so that no classifier of it gives an inception score.")
    if len(getattr(split, part)) == 0:
        raise InputError(
            f"There are no {part} images to judge by. Set data.holdout_share, or judge by the test images."
        )
    if (features == "inception-v3") != (weights is not None):
        raise InputError(
            "The features of inception-v3 and a weights file go together. Set --features and --weights both."
        )
    if features == "classifier" and not split.classes:
        raise InputError(
            "The data set has no labels, so that it has no feature classifier. Set --features autoencoder."
        )
    if "floor" in metrics and len(split.public) == 0:
        raise InputError(
            "The floor needs public images, and there are none. Set data.public_share or data.public_root."
        )
