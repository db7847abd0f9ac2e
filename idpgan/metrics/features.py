"""The feature classifier of a data set: trained on all of its real training images, so it never leaves the curator."""

from __future__ import annotations

import dataclasses
import hashlib

import torch
from safetensors.torch import save
from torch import Tensor

from idpgan.checks import typed
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import InputError
from idpgan.metrics.cache import Cache
from idpgan.metrics.fitting import fit_named, recipe
from idpgan.models.classifier import Classifier, build_classifier
from idpgan.progress import Progress, silent
from idpgan.training.fit import predict

PROTOCOL = "feature-classifier/1"  # another network, recipe or training set is another number
_NAME = "cnn"
_ACCURACY = "held_back_accuracy"  # kept beside the weights


@dataclasses.dataclass(frozen=True)
class FeatureClassifier:
    """A classifier of real images, and what a score that was computed with it has to tell about it.

    Attributes:
        model: In eval mode.
        sha256: SHA-256 (hex) of the weights as a safetensors file: scores compare only where this is the same.
        held_back_accuracy: On the held-back tenth of the real training images, which chose the epoch.
        num_images: Real training images, held-back ones included.
        classes: Names of the classes.
        image_shape: (C, H, W).
    """

    model: Classifier
    sha256: str
    held_back_accuracy: float
    num_images: int
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]


@typed
def full_training_set(split: Split) -> Images:
    """Return all real training images that are there: public, holdout and private.

    In this order the same images come out in the same order whatever share is public or holdout.
    """
    split = split.existing()
    parts = (split.public, split.holdout, split.private)
    labels = [part.labels for part in parts if part.labels is not None]
    images = torch.cat([part.images for part in parts])
    return Images(images, torch.cat(labels) if labels else None, split.classes)


@typed
def fit_feature_classifier(
    images: Images,
    *,
    seed: int = 0,
    cache: Cache | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = silent,
) -> FeatureClassifier:
    """Fit the classifier that inception scores are computed with.

    As in Yang, Zhou and Ning, section 3.2.1: trained on the full real training set, adjusted on a validation part of
    it.

    Args:
        images: Real and labeled; see `full_training_set`.
        seed: Seed of weights, held-back part and order.
        cache: Keeps the weights, which are computed from private images.
        device: Where to compute.
        progress: Called after every epoch.

    Raises:
        InputError: If the images have no labels, or are too few.
    """
    if images.labels is None:
        raise InputError("The real images have no labels, so that no classifier gives an inception score.")

    def compute() -> dict[str, Tensor]:
        model, fitted = fit_named(_NAME, images, seed=seed, device=device, progress=progress, what="feature classifier")
        return {
            **model.cpu().state_dict(),
            _ACCURACY: torch.tensor(fitted.best.held_back_accuracy, dtype=torch.float64),
        }

    config = recipe(_NAME, len(images), seed).model_dump(mode="json")
    key = {"protocol": PROTOCOL, "network": _NAME, "config": config, "images": images.digest()}
    weights = (cache or Cache(None)).get("classifier", key, compute)
    accuracy = float(weights.pop(_ACCURACY))
    model = build_classifier(_NAME, images.image_shape, len(images.classes))
    model.load_state_dict(weights)
    return FeatureClassifier(
        model=model.to(device).eval(),
        sha256=hashlib.sha256(save(weights)).hexdigest(),
        held_back_accuracy=accuracy,
        num_images=len(images),
        classes=images.classes,
        image_shape=images.image_shape,
    )


@typed
def extract_features(
    classifier: FeatureClassifier, images: Images, *, cache: Cache | None = None, progress: Progress = silent
) -> Tensor:
    """Compute the features of images, or take them from the cache.

    Args:
        classifier: Its hash and that of the images are the key.
        images: (C, H, W) as the classifier's.
        cache: None computes anew.
        progress: Called after every batch.

    Returns:
        (N, F) float32, on the CPU.

    Raises:
        InputError: If there are no images, or they have another shape.
    """
    if len(images) == 0 or images.image_shape != classifier.image_shape:
        raise InputError(
            f"The feature classifier takes at least one image of the shape (C, H, W) = {classifier.image_shape}, "
            f"got {len(images)} of {images.image_shape}."
        )
    done = 0

    def output(batch: Tensor) -> Tensor:
        nonlocal done
        done += len(batch)
        progress("features", done, len(images))
        return classifier.model.features(batch)

    def compute() -> dict[str, Tensor]:
        return {"features": predict(classifier.model, images.images, output=output).cpu()}

    key = {"protocol": PROTOCOL, "classifier": classifier.sha256, "images": images.digest()}
    return (cache or Cache(None)).get("features", key, compute)["features"]


@typed
def class_probabilities(classifier: FeatureClassifier, features: Tensor) -> Tensor:
    """Return p(y|x) for the features (N, F) of images: (N, K) float64, on the CPU."""
    head = classifier.model.head
    weight, bias = head.weight.detach().cpu().double(), head.bias.detach().cpu().double()
    return (features.double() @ weight.T + bias).softmax(dim=1)
