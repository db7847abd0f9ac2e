"""How often a given classifier is right about real images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.metrics.metric import MetricResult, MetricTable
from idpgan.models.private_classifier import PrivateClassifier

CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True)
class Accuracy(MetricResult):
    """How often a classifier was right. Curator only: the images are private.

    Attributes:
        correct: Images whose likeliest class is theirs.
        num_images: All of them.
        interval: Interval of the accuracy, two-sided (Clopper and Pearson), at 95 % confidence; see `share_interval`.
        majority: Share of the most frequent class: what one constant answer gets.
        independent: Draws that the interval takes for independent: people, where the images say who is on them, or
            different images.
    """

    correct: int
    num_images: int
    interval: tuple[float, float]
    majority: float
    independent: int

    @property
    def mean(self) -> float:
        """Share of correct answers."""
        return self.correct / self.num_images

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**super().to_json(), "accuracy": self.mean, "confidence": CONFIDENCE}


def measure_accuracy(classifier: PrivateClassifier, images: Images) -> Accuracy:
    """Ask a classifier about labeled images.

    Args:
        classifier: The classifier, on the device where it is to compute.
        images: At least one image; null records are left out.

    Raises:
        InputError: If shapes or classes differ, or there are no labels or no images.
    """
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
    right = classifier.logits(images.images).argmax(1).to(labels.device).eq(labels).cpu()
    draws = draws_of(images)
    interval, majority = share_interval(right.double().numpy(), draws), int(labels.bincount().max()) / len(images)
    return Accuracy(int(right.sum()), len(images), interval, majority, int(draws.max()) + 1)


def draws_of(images: Images) -> np.ndarray:
    """Return a number for each image (n,), equal for those of one person, or where nobody is known for equal images."""
    people = images.identities
    return np.unique(images.digests() if people is None else people.cpu().numpy(), return_inverse=True)[1]


def share_interval(right: np.ndarray, draws: np.ndarray, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of a share of right answers (n,), where answers of one draw (n,) stand or fall together.

    Draws are numbered from 0, without gaps.

    It is that of Clopper and Pearson for as many independent answers as would have the variance of the mean over draws,
    corrected by Student's t for few draws (Korn and Graubard 1998); at most one answer per draw where all are alike.
    """
    from scipy.special import betaincinv
    from scipy.stats import norm, t

    num, share, trials = int(draws.max()) + 1, float(right.mean()), float(len(right))
    if num < len(right):
        off = np.bincount(draws, weights=right - share)
        variance, alpha = float(off @ off) / len(right) ** 2 * num / max(num - 1, 1), 1 - confidence
        trials = float(num)
        if variance > 0 and num > 1:
            trials = share * (1 - share) / variance * (norm.isf(alpha / 2) / t.isf(alpha / 2, num - 1)) ** 2
            trials = min(max(trials, 1.0), len(right))
    hits, half = share * trials, (1 - confidence) / 2
    low = float(betaincinv(hits, trials - hits + 1, half)) if share > 0 else 0.0
    return low, float(betaincinv(hits + 1, trials - hits, 1 - half)) if share < 1 else 1.0


def table(content: Mapping[str, Any]) -> MetricTable | None:
    """Return the table of a private classifier."""
    if not content.get("classifier"):
        return None
    result, run, guarantee = content["classifier"], content.get("classifier_run"), ""
    if run:  # what protects it, at its own delta
        guarantee = f" (epsilon {epsilon_text(run['epsilon'])}, delta {run['delta']:.3g}, unit {run['unit']})"
    right, sure = f"{result['accuracy']:.2%}", f"{result['confidence']:.0%}"
    low, high = (f"{end:.2%}" for end in result["interval"])
    return MetricTable(
        f"Accuracy of the private classifier{guarantee} on {result['num_images']:,} real images",
        ("", "accuracy", f"{sure} interval"),
        (
            ("private classifier", right, f"{low} to {high}"),
            ("always the majority", f"{result['majority']:.2%}", ""),
        ),
        (
            f"private classifier: accuracy {right} [{low}, {high}], {sure} confidence; the interval is that of "
            f"{result.get('independent', result['num_images']):,} independent draws (people where they are known, else "
            "different images: bursts of one scene without names make it too narrow)",
        ),
    )


def epsilon_text(epsilon: float | str) -> str:
    """Format an epsilon from a JSON file, which may be "inf"."""
    return epsilon if isinstance(epsilon, str) else f"{epsilon:.4g}"
