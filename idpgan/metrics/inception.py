"""Inception score: how sure a classifier of real images is of each image, and how evenly the classes come out."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import FeatureClassifier, class_probabilities, extract_features
from idpgan.metrics.metric import Judging, MetricResult, MetricTable
from idpgan.progress import Progress, silent

PROTOCOL = "inception-score/1"
PRIVATE_NOTE = (
    "computed with a classifier of real training images, private ones included: "
    "for the curator only, covered by no epsilon, never to be put into release/"
)
FEW_IMAGES = 2048  # below, the score depends on the number of images more than on what they show
_SHUFFLE_SEED = 0  # a constant: a set of images always gets the same score


@dataclasses.dataclass(frozen=True)
class InceptionResult(MetricResult):
    """An inception score and what it depends on. Curator only.

    Attributes:
        mean: Mean of the scores of the splits, in [1, num_classes].
        std: Standard deviation of the scores of the splits (divided by their number, as in Salimans et al.).
        standard_error: Standard error of `mean`; None for one split.
        num_classes: K, the score of perfect images of evenly many classes.
        classifier_sha256: Hash of the feature classifier's weights; scores of different hashes do not compare.
        classifier_accuracy: Its accuracy on held-back real training images.
        protocol: Name and version of how this was computed.
        notes: What a reader has to know.
    """

    mean: float
    std: float
    standard_error: float | None
    splits: int
    num_images: int
    num_classes: int
    classifier_sha256: str
    classifier_accuracy: float
    images_digest: str
    protocol: str
    notes: tuple[str, ...]


def inception_score(probabilities: Tensor, splits: int = 10) -> tuple[float, float]:
    r"""Compute the inception score from the class probabilities of any classifier.

    Per split ``exp(E_x KL(p(y|x) || p(y)))``, where ``p(y)`` is the mean of the split (Salimans et al. 2016,
    `arXiv:1606.03498 <https://arxiv.org/abs/1606.03498>`_; Yang, Zhou and Ning, eq. 12). With `splits` = 1 it is eq. 12
    itself. Splits are consecutive rows in the order given: shuffle images that come sorted by class first.

    Args:
        probabilities: (N, K) floating point, rows in [0, 1] that sum to 1; computed in float64.
        splits: Number of parts of nearly equal size, in [1, N].

    Returns:
        Mean and standard deviation over splits (divided by their number, as in the authors' program and torch-fidelity;
        torchmetrics divides by one less). The mean is in [1, K].

    Raises:
        InputError: If rows are not probabilities, or there are fewer rows than splits.

    Example:
        >>> inception_score(torch.eye(4).repeat(5, 1), splits=5)  # sure of every image, all classes alike
        (4.0, 0.0)
    """
    if probabilities.ndim != 2 or not probabilities.is_floating_point() or 0 in probabilities.shape:
        actual = f"{probabilities.dtype} {tuple(probabilities.shape)}"
        raise InputError(f"Probabilities must be floating point (N, K), one row per image, got {actual}.")
    if not 1 <= splits <= len(probabilities):
        raise InputError(
            f"splits = {splits} must be in [1, {len(probabilities)}]: every split needs at least one of the "
            f"{len(probabilities)} images."
        )
    off = (probabilities.double().sum(dim=1) - 1).abs()
    if not bool(((probabilities >= 0).all(dim=1) & (off <= 1e-3)).all()):  # also where it is NaN
        raise InputError(
            f"Probabilities must be at least 0 and sum to 1 in every row (off by {float(off.max()):g} at most here). "
            "Give the softmax of the logits."
        )
    p = probabilities.detach().double()
    edges = [part * len(p) // splits for part in range(splits + 1)]  # as in the authors' program
    scores = []
    for start, end in itertools.pairwise(edges):
        conditional = p[start:end]  # (n, K)
        marginal = conditional.mean(dim=0)  # (K,)
        # E KL(p(y|x) || p(y)) = H(p(y)) - E H(p(y|x)); xlogy makes 0 log 0 = 0.
        divergence = torch.xlogy(conditional, conditional).sum(dim=1).mean() - torch.xlogy(marginal, marginal).sum()
        scores.append(divergence.exp())
    stacked = torch.stack(scores)
    return float(stacked.mean()), float(stacked.std(correction=0))


def measure_inception(
    images: Images,
    classifier: FeatureClassifier,
    *,
    splits: int = 10,
    cache: Cache | None = None,
    progress: Progress = silent,
) -> InceptionResult:
    """Score images with a feature classifier. Curator only: the classifier was trained on private images.

    Images are shuffled with a fixed seed first: exported folders come sorted by class, and a split of a single class
    would score 1. Labels are not used.

    Raises:
        InputError: If the shapes differ, or there are fewer images than splits.
    """
    probabilities = class_probabilities(
        classifier, extract_features(classifier, images, cache=cache, progress=progress)
    )
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(_SHUFFLE_SEED))
    mean, std = inception_score(probabilities[order], splits)
    notes = [PRIVATE_NOTE]
    if len(images) < FEW_IMAGES:
        notes.append(f"{len(images)} images are few: compare only with scores of equally many (better >= {FEW_IMAGES})")
    return InceptionResult(
        mean=mean,
        std=std,
        standard_error=std / math.sqrt(splits - 1) if splits > 1 else None,  # std divides by splits
        splits=splits,
        num_images=len(images),
        num_classes=len(classifier.classes),
        classifier_sha256=classifier.sha256,
        classifier_accuracy=classifier.held_back_accuracy,
        images_digest=images.digest(),
        protocol=PROTOCOL,
        notes=tuple(notes),
    )


def measure(judging: Judging, images: Images) -> InceptionResult:
    """Score the images under test with the classifier of the data set."""
    return measure_inception(
        images, judging.classifier, splits=judging.splits, cache=judging.cache, progress=judging.progress
    )


def check(judging: Judging) -> None:
    """Refuse a number of splits below one, and a data set without labels."""
    if judging.splits < 1:
        raise InputError(f"splits = {judging.splits} must be at least 1. Set --splits.")
    if judging.split.private.labels is None:
        raise InputError("The data set has no labels, so that no classifier of it gives an inception score.")


def table(content: Mapping[str, Any]) -> MetricTable | None:
    """Return the score beside its standard error, and the classifier that gave it."""
    result = content.get("inception")
    if not result:
        return None
    error = result.get("standard_error")
    return MetricTable(
        f"Inception score over {result['splits']} split(s), at most {result['num_classes']}",
        ("", "mean", "standard error"),
        (("inception score", f"{result['mean']:.3f}", "unknown" if error is None else f"± {error:.3f}"),),
        (
            f"feature classifier sha256 {result['classifier_sha256']}, {result['classifier_accuracy']:.2%} on "
            "held-back images",
        ),
    )
