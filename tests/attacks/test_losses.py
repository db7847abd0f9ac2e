"""Attacks on a classifier: an overfit one is caught, and what was never seen is a guess."""

import pytest
import torch

from idpgan.attacks.evaluate import evaluate_scores
from idpgan.attacks.losses import loss_calibrated, loss_threshold
from idpgan.data.config import DataConfig
from idpgan.data.load import load
from idpgan.errors import InputError
from idpgan.models.classifier import build_classifier
from idpgan.training.fit import FitConfig, fit_classifier, predict

HALF = 100


@pytest.fixture(scope="module", autouse=True)
def quick_reference():
    """Fewer steps of the classifier of the references: their score is compared, and need not be good."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("idpgan.attacks.losses._STEPS", 150)
        yield


@pytest.fixture(scope="module")
def game():
    """Logits of a network that knows 100 digits by heart, with labels of which many are wrong; and the rest."""
    split = load(DataConfig(name="digits"))
    images = split.private
    wrong = torch.rand(len(images), generator=torch.Generator().manual_seed(0)) < 0.3
    labels = torch.where(wrong, (images.labels + 1) % 10, images.labels)
    model = build_classifier("cnn", images.image_shape, 10)
    config = FitConfig(epochs=40, batch_size=20)
    fit_classifier(
        model, images.images[:HALF], labels[:HALF], config=config, held_back=(images.images[:HALF], labels[:HALF])
    )
    reference = type(images)(images.images[200:600], labels[200:600], images.classes)
    return (lambda pixels: predict(model, pixels)), images.images[: 2 * HALF], labels[: 2 * HALF], reference


def auc(scores):
    return evaluate_scores(scores[:HALF], scores[HALF:]).auc


@pytest.mark.trained
def test_an_overfit_classifier_is_caught(game):
    logits, images, labels, reference = game
    assert auc(loss_threshold(images, labels, logits)) > 0.65
    assert auc(loss_calibrated(images, labels, logits, reference)) > 0.7


def test_a_classifier_that_saw_neither_half_tells_nothing(game):
    _, images, labels, reference = game
    fixed = torch.Generator().manual_seed(1)
    weight = torch.randn(64, 10, generator=fixed)
    for score in (
        loss_threshold(images, labels, lambda pixels: pixels.flatten(1).float() / 255 @ weight),
        loss_calibrated(images, labels, lambda pixels: pixels.flatten(1).float() / 255 @ weight, reference),
    ):
        low, high = evaluate_scores(score[:HALF], score[HALF:], confidence=0.999).auc_interval
        assert low < 0.5 < high


def test_labels_and_references_that_do_not_fit_are_refused(game):
    logits, images, labels, reference = game
    with pytest.raises(InputError, match="int64 labels"):
        loss_threshold(images, labels[:3], logits)
    few = reference.select(torch.arange(5))
    with pytest.raises(InputError, match="at least 40 labeled reference images"):
        loss_calibrated(images, labels, logits, few)
