"""The recipes by which classifiers are fitted to measure something. They are part of a number's meaning."""

from __future__ import annotations

import math

import torch

from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.models.classifier import Classifier, build_classifier
from idpgan.progress import Progress
from idpgan.training.fit import Epoch, FitConfig, Fitted, fit_classifier

# Chosen on MNIST for two CPU cores: further epochs change accuracy by less than the seed does.
RECIPES = {
    "cnn": FitConfig(epochs=6, learning_rate=1e-2),
    "resnet": FitConfig(epochs=6, learning_rate=1e-2),
    "logistic": FitConfig(epochs=20, learning_rate=5e-3, weight_decay=0.0),
}
MIN_BATCH, BATCHES_PER_EPOCH = 32, 40  # small sets get smaller batches,
MIN_STEPS_PER_EPOCH = 100  # and each epoch of the recipe becomes several


def recipe(name: str, num_images: int, seed: int) -> FitConfig:
    """Return how the classifier of that name is fitted to so many images."""
    chosen = RECIPES[name]
    num_train = num_images * (1 - chosen.held_back_share)
    batch_size = min(chosen.batch_size, max(MIN_BATCH, int(num_train / BATCHES_PER_EPOCH)))
    epochs = chosen.epochs * max(1, math.ceil(MIN_STEPS_PER_EPOCH / math.ceil(num_train / batch_size)))
    learning_rate = chosen.learning_rate * math.sqrt(batch_size / chosen.batch_size)  # as Adam wants it
    return FitConfig(
        **{
            **chosen.model_dump(),
            "batch_size": batch_size,
            "epochs": epochs,
            "learning_rate": learning_rate,
            "seed": seed,
        }
    )


def fit_named(
    name: str, images: Images, *, seed: int, device: torch.device | str, progress: Progress, what: str
) -> tuple[Classifier, Fitted]:
    """Build the classifier of that name on a device and fit it to at least 3 labeled images.

    ``progress`` is told ``what``, epochs done and epochs in all.

    Raises:
        InputError: If the images are unlabeled or too few, or the fit diverges.
    """
    if images.labels is None:
        raise InputError(f"{what}: these images have no labels, and a classifier cannot be trained without them.")
    model = build_classifier(name, images.image_shape, len(images.classes), seed=seed).to(device)
    config = recipe(name, len(images), seed)

    def report(done: int) -> None:
        progress(what, done, config.epochs)

    def on_epoch(epoch: Epoch) -> None:
        report(epoch.number)

    report(0)
    return model, fit_classifier(model, images.images, images.labels, config=config, on_epoch=on_epoch)
