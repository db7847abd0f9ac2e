import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import rel_entr
from torchmetrics.image.inception import InceptionScore

from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import class_probabilities, extract_features, fit_feature_classifier, full_training_set
from idpgan.metrics.inception import inception_score, measure_inception
from idpgan.training.fit import predict


def reference(probabilities, splits):
    """The authors' program, line by line, with SciPy's relative entropy in float64."""
    scores = []
    for part in range(splits):
        p = probabilities[part * len(probabilities) // splits : (part + 1) * len(probabilities) // splits]
        scores.append(np.exp(rel_entr(p, p.mean(axis=0, keepdims=True)).sum(axis=1).mean()))
    return np.mean(scores), np.std(scores)


def softmax(logits):
    return torch.from_numpy(logits).softmax(dim=1)


def images_like(digits, pixels):
    return Images(pixels, digits.test.labels[: len(pixels)], digits.classes)


@settings(deadline=None)
@given(
    logits=st.tuples(st.integers(1, 60), st.integers(1, 12)).flatmap(
        lambda shape: arrays(np.float64, shape, elements=st.floats(-800, 800))
    ),
    splits=st.integers(1, 60),
)
def test_it_equals_a_float64_reference(logits, splits):
    probabilities, splits = softmax(logits), min(splits, len(logits))
    mean, std = inception_score(probabilities, splits)
    assert mean, std == pytest.approx(reference(probabilities.numpy(), splits), abs=1e-6)
    assert 1 - 1e-9 <= mean <= logits.shape[1] + 1e-9


def test_the_reference_tells_a_wrong_formula():
    probabilities = softmax(np.random.default_rng(0).normal(scale=3, size=(500, 10)))
    mean, _ = inception_score(probabilities, 1)
    p, marginal = probabilities.numpy(), probabilities.numpy().mean(axis=0)
    in_bits = np.exp(rel_entr(p, marginal).sum(axis=1).mean() / np.log(2))
    mean_of_exp = np.exp(rel_entr(p, marginal).sum(axis=1)).mean()
    reversed_divergence = np.exp(rel_entr(marginal, p).sum(axis=1).mean())
    for wrong in (in_bits, mean_of_exp, reversed_divergence, inception_score(probabilities, 10)[0]):
        assert abs(mean - wrong) > 1e-3


@pytest.mark.filterwarnings("ignore:std.*degrees of freedom")
@pytest.mark.filterwarnings("ignore:Metric `InceptionScore` will save all extracted features")
def test_it_equals_torchmetrics():
    logits = torch.randn(400, 10, generator=torch.Generator().manual_seed(0)) * 3
    metric = InceptionScore(feature=torch.nn.Flatten(), splits=1)  # it shuffles, which one split does not notice
    metric.update(logits)
    assert inception_score(logits.double().softmax(1), 1)[0] == pytest.approx(float(metric.compute()[0]), rel=1e-5)


def test_the_extremes():
    sure = torch.eye(10).repeat(20, 1)
    assert inception_score(sure) == pytest.approx((10.0, 0.0))
    assert inception_score(torch.full((50, 10), 0.1)) == pytest.approx((1.0, 0.0))  # unsure of every image
    assert inception_score(torch.eye(10)[[3] * 50]) == pytest.approx((1.0, 0.0))  # always the same class
    assert inception_score(sure[torch.arange(200) % 10 < 9]) == pytest.approx((9.0, 0.0))  # a class is missing


def test_splits_are_consecutive_rows():
    ordered = torch.eye(10).repeat_interleave(20, dim=0)
    assert inception_score(ordered, 10) == pytest.approx((1.0, 0.0))
    assert inception_score(ordered, 1)[0] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("probabilities", "splits", "message"),
    [
        (torch.rand(10), 1, r"\(N, K\)"),
        (torch.ones(5, 1, dtype=torch.int64), 1, "floating point"),
        (torch.zeros(0, 10), 1, r"\(N, K\)"),
        (torch.full((5, 2), torch.nan), 1, "sum to 1"),
        (torch.tensor([[1.5, -0.5]]), 1, "at least 0"),
        (torch.randn(5, 10), 1, "softmax of the logits"),
        (torch.eye(4), 5, r"splits = 5 must be in \[1, 4\]"),
        (torch.eye(4), 0, "splits = 0"),
    ],
)
def test_what_is_no_distribution_is_refused(probabilities, splits, message):
    with pytest.raises(InputError, match=message):
        inception_score(probabilities, splits)


@pytest.mark.trained
def test_real_images_score_close_to_the_number_of_classes_and_noise_close_to_1(digits, feature_classifier):
    assert feature_classifier.held_back_accuracy > 0.95
    real = measure_inception(digits.test, feature_classifier, splits=1)
    assert real.mean > 9
    assert real.mean <= 10
    rng = torch.Generator().manual_seed(0)
    noise = images_like(digits, torch.randint(0, 256, (300, 1, 8, 8), generator=rng, dtype=torch.uint8))
    assert measure_inception(noise, feature_classifier, splits=1).mean < 4
    grey = images_like(digits, torch.full((300, 1, 8, 8), 128, dtype=torch.uint8))
    assert measure_inception(grey, feature_classifier, splits=1).mean == pytest.approx(1.0)


@pytest.mark.trained
def test_a_dropped_class_lowers_the_score(digits, feature_classifier):
    full = measure_inception(digits.test, feature_classifier, splits=1).mean
    for dropped in range(10):
        rest = digits.test.select(digits.test.labels != dropped)
        assert measure_inception(rest, feature_classifier, splits=1).mean < full - 0.2
    fewer = digits.test.select(torch.arange(len(digits.test)) % 10 != 0)  # control: as many less, of all classes
    assert measure_inception(fewer, feature_classifier, splits=1).mean > full - 0.2


@pytest.mark.trained
def test_the_order_of_the_images_hardly_matters(digits, feature_classifier):
    by_class = digits.test.select(digits.test.labels.argsort())
    probabilities = class_probabilities(feature_classifier, extract_features(feature_classifier, by_class))
    assert inception_score(probabilities, 5)[0] < 4  # what a sorted folder would come to
    scores = [measure_inception(images, feature_classifier, splits=5).mean for images in (digits.test, by_class)]
    assert abs(scores[0] - scores[1]) < 0.5


def test_the_result_says_what_it_depends_on(digits, feature_classifier):
    result = measure_inception(digits.test, feature_classifier, splits=5)
    told = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert told["classifier_sha256"] == feature_classifier.sha256
    assert told["images_digest"] == digits.test.digest()
    assert (told["num_images"], told["splits"], told["num_classes"]) == (len(digits.test), 5, 10)
    assert told["standard_error"] == pytest.approx(told["std"] / 2)
    assert "curator only" in told["notes"][0]
    assert "are few" in told["notes"][1]
    assert measure_inception(digits.test, feature_classifier, splits=1).standard_error is None


def test_probabilities_are_those_of_the_model(digits, feature_classifier):
    features = extract_features(feature_classifier, digits.test)
    expected = predict(feature_classifier.model, digits.test.images).double().softmax(1)
    assert torch.allclose(class_probabilities(feature_classifier, features), expected, atol=1e-5)


def test_another_shape_is_refused(feature_classifier):
    images = Images(torch.zeros(3, 1, 9, 9, dtype=torch.uint8))
    with pytest.raises(InputError, match=r"\(1, 8, 8\), got 3 of \(1, 9, 9\)"):
        measure_inception(images, feature_classifier)


def test_classifier_and_features_come_from_the_cache(digits, feature_classifier, tmp_path, monkeypatch):
    cache, real = Cache(tmp_path), full_training_set(digits).select(torch.arange(200))
    first = fit_feature_classifier(real, cache=cache)
    score = measure_inception(digits.test, first, splits=1, cache=cache)
    monkeypatch.setattr("idpgan.metrics.features.fit_named", None)  # calling it again would fail
    monkeypatch.setattr("idpgan.metrics.features.predict", None)
    again = fit_feature_classifier(real, cache=cache)
    assert again.sha256 == first.sha256 != feature_classifier.sha256
    assert again.held_back_accuracy == first.held_back_accuracy
    assert measure_inception(digits.test, again, splits=1, cache=cache) == score
    with pytest.raises(TypeError):  # other images are not in the cache
        measure_inception(digits.holdout, again, splits=1, cache=cache)


def test_the_full_training_set_does_not_depend_on_the_shares(digits):
    from idpgan.data.config import DataConfig
    from idpgan.data.load import load

    other = load(DataConfig(public_share=0.3, confirm_public=True, holdout_share=0.2))
    assert full_training_set(other).digest() == full_training_set(digits).digest()
    assert len(full_training_set(digits)) == len(digits.private) + len(digits.holdout) + len(digits.public)


def test_public_images_without_labels_judge_no_classes(digits):
    public = Images(digits.private.images[:5])
    found = full_training_set(dataclasses.replace(digits, public=public))
    assert len(found) == len(found.labels) == len(digits.private) + len(digits.holdout)


@pytest.mark.trained
@pytest.mark.data
def test_real_mnist_scores_close_to_10(tmp_path):
    from idpgan.data.config import DataConfig
    from idpgan.data.load import load

    split = load(DataConfig(name="mnist"))
    classifier = fit_feature_classifier(full_training_set(split))
    assert classifier.held_back_accuracy > 0.985
    assert measure_inception(split.test, classifier).mean > 9.7
    noise = torch.randint(0, 256, (5000, 1, 28, 28), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    assert measure_inception(Images(noise), classifier).mean < 3
