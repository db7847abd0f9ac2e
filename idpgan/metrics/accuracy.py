"""How often a given classifier is right about real images."""

from __future__ import annotations

import dataclasses
from typing import Any

from idpgan.checks import typed
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.models.private_classifier import PrivateClassifier

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """How often a classifier was right. Curator only: the images are private.

    Attributes:
        correct: Images whose likeliest class is theirs.
        num_images: All of them.
        interval: Of the accuracy, two-sided (Clopper and Pearson), at 95 % confidence.
        majority: Share of the most frequent class: what one constant answer gets.
    """

    correct: int
    num_images: int
    interval: tuple[float, float]
    majority: float

    @property
    def mean(self) -> float:
        """Share of correct answers."""
        return self.correct / self.num_images

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**dataclasses.asdict(self), "accuracy": self.mean, "confidence": CONFIDENCE}


@typed
def measure_accuracy(classifier: PrivateClassifier, images: Images) -> Accuracy:
    """Ask a classifier about labeled images.

    Args:
        classifier: On the device where it is to compute.
        images: At least one; null records are left out.

    Raises:
        InputError: If shapes or classes differ, or there are no labels or no images.
    """
    from scipy.stats import binomtest

    images = images.existing()
    if (images.image_shape, images.classes) != (classifier.image_shape, classifier.classes):
        raise InputError(
            f"The classifier knows images of the shape {classifier.image_shape} and {len(classifier.classes)} classes, "
            f"and these are {images.image_shape} with {len(images.classes)} classes, or the names of the classes "
            "differ. Take the data set that it was trained for."
        )
    if images.labels is None or len(images) == 0:
        raise InputError("There are no labeled images to judge by.")
    labels = images.labels
    correct = int(classifier.predict(images.images).to(labels.device).eq(labels).sum())
    low, high = binomtest(correct, len(images)).proportion_ci(CONFIDENCE)
    return Accuracy(correct, len(images), (float(low), float(high)), int(labels.bincount().max()) / len(images))
