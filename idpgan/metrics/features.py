"""Feature networks, which turn images into the numbers that scores compare, and the default one, a classifier.

The recipe by which a measuring classifier is fitted is part of a score's meaning. A network trained on real training
images never leaves the curator.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from typing import Literal

import torch
from safetensors.torch import save
from torch import Tensor, nn

from idpgan.checks import typed
from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import InputError
from idpgan.memory import cat
from idpgan.metrics.cache import Cache
from idpgan.models.classifier import Classifier, build_classifier
from idpgan.progress import Progress, silent
from idpgan.training.fit import FitConfig, TrainedModel, fit_classifier, predict

Part = Literal["test", "holdout"]  # real images that judge: never trained on
PROTOCOL = "feature-classifier/1"  # a change of network, recipe or training set changes the number
_NAME = "cnn"
_ACCURACY = "held_back_accuracy"  # kept beside the weights
# Chosen on MNIST for two CPU cores: further epochs change accuracy by less than the seed does.
RECIPES = {
    "cnn": FitConfig(epochs=6, learning_rate=1e-2),
    "resnet": FitConfig(epochs=6, learning_rate=1e-2),
    "logistic": FitConfig(epochs=20, learning_rate=5e-3, weight_decay=0.0),
}
MIN_BATCH, BATCHES_PER_EPOCH = 32, 40  # small sets get smaller batches,
MIN_STEPS_PER_EPOCH = 100  # and each epoch of the recipe becomes several


@dataclasses.dataclass(frozen=True)
class FeatureNetwork:
    """A network that turns images into features, and the facts about it that a score has to report.

    Attributes:
        name: "classifier", "autoencoder" or "inception-v3".
        model: In eval mode; its call, or that of a subclass's `features`, gives the features.
        sha256: SHA-256 (hex) of the weights as a file: scores compare only where this is the same.
        image_shape: (C, H, W).
        resize: Side in pixels to which the network resizes images; None for none.
        standardize: Whether fidelity centers and scales the features: networks fitted here have an arbitrary scale.
    """

    name: str
    model: nn.Module
    sha256: str
    image_shape: tuple[int, int, int]
    resize: int | None = None
    standardize: bool = True
    batch_size: int = 1000

    def features(self, images: Tensor) -> Tensor:
        """Map float images (B, C, H, W) in [-1, 1] to features (B, F)."""
        features: Tensor = self.model(images)
        return features


@dataclasses.dataclass(frozen=True)
class FeatureClassifier(FeatureNetwork):
    """A classifier of real images; its features are the input of its last layer.

    Attributes:
        held_back_accuracy: On the held-back tenth of the real training images, which chose the epoch.
        num_images: Real training images, held-back ones included.
    """

    model: Classifier
    held_back_accuracy: float = dataclasses.field(kw_only=True)
    num_images: int = dataclasses.field(kw_only=True)
    classes: tuple[str, ...] = dataclasses.field(kw_only=True)

    def features(self, images: Tensor) -> Tensor:
        """See `FeatureNetwork.features`."""
        return self.model.features(images)


@typed
def full_training_set(split: Split, judged_on: Part = "test") -> Images:
    """Return all real training images that are there: public, holdout and private; shares leave the order unchanged.

    With ``judged_on="holdout"`` the holdout is left out: the judging network has not seen the images of the comparison.
    """
    split = split.existing()
    parts = (split.public, split.holdout, split.private) if judged_on == "test" else (split.public, split.private)
    labels = [part.labels for part in parts if part.labels is not None]
    images = cat([part.images for part in parts])
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

    As in Yang, Zhou and Ning, section 3.2.1: trained on the full real training set (`full_training_set`), adjusted on a
    validation part of it.

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
        name="classifier",
        model=model.to(device).eval(),
        sha256=hashlib.sha256(save(weights)).hexdigest(),
        held_back_accuracy=accuracy,
        num_images=len(images),
        classes=images.classes,
        image_shape=images.image_shape,
    )


@typed
def extract_features(
    network: FeatureNetwork, images: Images, *, cache: Cache | None = None, progress: Progress = silent
) -> Tensor:
    """Compute the features of images, (N, F) float32 on the CPU, or take them from the cache.

    The hashes of network and images are the key.

    Raises:
        InputError: If there are no images, or they have another shape than the network's.
    """
    if len(images) == 0 or images.image_shape != network.image_shape:
        raise InputError(
            f"The feature {network.name} takes at least one image of the shape (C, H, W) = {network.image_shape}, "
            f"got {len(images)} of {images.image_shape}."
        )
    done = 0

    def output(batch: Tensor) -> Tensor:
        nonlocal done
        done += len(batch)
        progress("features", done, len(images))
        return network.features(batch).float()

    def compute() -> dict[str, Tensor]:
        rows = predict(network.model, images.images, output=output, batch_size=network.batch_size)
        return {"features": rows.cpu()}

    key = {"protocol": PROTOCOL, "classifier": network.sha256, "images": images.digest()}
    return (cache or Cache(None)).get("features", key, compute)["features"]


@typed
def class_probabilities(classifier: FeatureClassifier, features: Tensor) -> Tensor:
    """Return p(y|x) for the features (N, F) of images: (N, K) float64, on the CPU."""
    head = classifier.model.head
    weight, bias = head.weight.detach().cpu().double(), head.bias.detach().cpu().double()
    return (features.double() @ weight.T + bias).softmax(dim=1)


def recipe(name: str, num_images: int, seed: int) -> FitConfig:
    """Return how the classifier of that name is fitted to so many images."""
    chosen = RECIPES[name]
    num_train = num_images * (1 - chosen.held_back_share)
    batch_size = min(chosen.batch_size, max(MIN_BATCH, int(num_train / BATCHES_PER_EPOCH)))
    epochs = chosen.epochs * max(1, math.ceil(MIN_STEPS_PER_EPOCH / math.ceil(num_train / batch_size)))
    learning_rate = chosen.learning_rate * math.sqrt(batch_size / chosen.batch_size)  # the usual scaling for Adam
    return chosen.model_copy(
        update={"batch_size": batch_size, "epochs": epochs, "learning_rate": learning_rate, "seed": seed}
    )


def fit_named(
    name: str, images: Images, *, seed: int, device: torch.device | str, progress: Progress, what: str
) -> tuple[Classifier, TrainedModel]:
    """Build the classifier of that name on a device and fit it to at least 3 labeled images.

    ``progress`` is told ``what``, epochs done and epochs in all.

    Raises:
        InputError: If the images are unlabeled or too few, or the fit diverges.
    """
    if images.labels is None:
        raise InputError(f"{what}: these images have no labels, and a classifier cannot be trained without them.")
    model = build_classifier(name, images.image_shape, len(images.classes), seed=seed).to(device)
    config = recipe(name, len(images), seed)
    progress(what, 0, config.epochs)
    return model, fit_classifier(
        model,
        images.images,
        images.labels,
        config=config,
        on_epoch=lambda epoch: progress(what, epoch.number, config.epochs),
    )
