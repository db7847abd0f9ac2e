"""All that one set of images is measured by, as one result."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import torch

from idpgan.checks import typed
from idpgan.config import nearest_hint
from idpgan.data.images import Images
from idpgan.data.load import Split, place
from idpgan.errors import InputError
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import fit_feature_classifier, full_training_set
from idpgan.metrics.inception import InceptionResult, measure_inception
from idpgan.metrics.utility import UtilityResult, measure_utility
from idpgan.progress import Progress, silent

METRICS = ("utility", "ceiling", "floor", "inception")
CURATOR_NOTE = "measured on private images: for the curator only, covered by no epsilon"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """How images compare with a real data set; what was not measured is None. Curator only.

    Attributes:
        utility: Of the images under test.
        ceiling: Of the real private training images, through the same pipeline.
        floor: Of the public images alone, through the same pipeline: what private data must add to.
        inception: Inception score of the images under test.
        notes: What a reader has to know.
    """

    utility: UtilityResult | None
    ceiling: UtilityResult | None
    floor: UtilityResult | None
    inception: InceptionResult | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        results = {name: getattr(self, name) for name in METRICS}
        return {name: result and result.to_json() for name, result in results.items()} | {"notes": self.notes}


@typed
def evaluate_images(
    images: Images,
    split: Split,
    metrics: Collection[str] = ("utility", "inception"),
    *,
    num_seeds: int = 3,
    splits: int = 10,
    cache: Cache | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> Evaluation:
    """Measure images against the data set that they stand for.

    Args:
        images: Under test; without labels there is no utility.
        split: The real data set; its null records are left out.
        metrics: Some of `METRICS`.
        num_seeds: Fits per kind of classifier, >= 1.
        splits: Of the inception score.
        cache: Ceiling, floor, feature classifier and features are the same for many sets of images.
        device: Where to compute.
        progress: Called now and then.

    Raises:
        InputError: If the images do not fit the data set, or something asked for cannot be measured. What can be seen
            at once is refused at once.
    """
    split = split.existing()
    _check(images, split, metrics, splits)
    images = place(images, device)
    inception = None
    if "inception" in metrics:
        real = place(full_training_set(split), device)
        classifier = fit_feature_classifier(real, cache=cache, device=device, progress=progress)
        inception = measure_inception(images, classifier, splits=splits, cache=cache, progress=progress)

    trained_on = {"utility": images, "ceiling": split.private, "floor": split.public}
    notes = [CURATOR_NOTE]
    utilities: dict[str, UtilityResult | None] = dict.fromkeys(trained_on)
    for metric, part in trained_on.items():
        if metric not in metrics:
            continue
        if part.labels is None:
            notes.append(f"{metric} is not measured: there are no labels to train with")
            continue
        utilities[metric] = measure_utility(
            place(part, device),
            place(split.test, device),
            seeds=range(num_seeds),
            cache=cache,
            device=device,
            progress=progress,
            what=metric,
        )
    return Evaluation(inception=inception, notes=tuple(notes), **utilities)


def _check(images: Images, split: Split, metrics: Collection[str], splits: int) -> None:
    """Raise an `InputError` for what would fail only after minutes."""
    for metric in metrics:
        if metric not in METRICS:
            raise InputError(f"There is no metric '{metric}'. {nearest_hint(metric, METRICS)}")
    if images.image_shape != split.image_shape:
        raise InputError(f"The images have the shape (C, H, W) = {images.image_shape}, expected {split.image_shape}.")
    if "inception" in metrics and not 1 <= splits <= len(images):
        raise InputError(f"splits = {splits} must be in [1, {len(images)}], the number of images. Set --splits.")
    if "inception" in metrics and split.private.labels is None:
        raise InputError("The data set has no labels, so that no classifier of it gives an inception score.")
    if "floor" in metrics and len(split.public) == 0:
        raise InputError(
            "The floor needs public images, and there are none. Set data.public_share or data.public_root."
        )
