import dataclasses
import math

import pytest
import torch

from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.metrics.cache import Cache
from idpgan.metrics.dpimagebench import (
    FULL,
    SMALL,
    BenchmarkSettings,
    benchmark_delta,
    check_benchmark,
    measure_dpimagebench,
)
from idpgan.models.classifier import ResNet, ResNeXt, WideResNet

# The first convolution leaves 4 x 4.
TINY = BenchmarkSettings(ResNet(8, 8, 4), WideResNet(10, 1, grid_px=4), ResNeXt(11, 2, 4, grid_px=4), epochs=8)
SHORT = dataclasses.replace(TINY, epochs=2)


@pytest.fixture(scope="module")
def result(digits):
    return measure_dpimagebench(digits.private, digits.test, settings=TINY)


@pytest.mark.trained
def test_real_digits_teach_all_three(result, digits):
    assert [score.name for score in result.scores] == ["resnet", "wrn", "resnext"]
    assert min(score.mean for score in result.scores) > 0.7
    assert (result.num_images, result.num_test, result.seeds) == (len(digits.private), len(digits.test), (0,))
    assert 0.1 <= result.majority <= 0.15
    assert not result.full


@pytest.mark.trained
def test_shuffled_labels_teach_nothing(digits):
    labels = digits.private.labels
    wrong = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))]
    images = Images(digits.private.images, wrong, digits.private.classes)
    settings = dataclasses.replace(TINY, epochs=3)
    assert measure_dpimagebench(images, digits.test, settings=settings).best.mean < 0.3


def test_what_is_quoted_of_the_three(result):
    accuracies = [score.mean for score in result.scores]
    assert result.best.mean == max(accuracies)
    assert result.mean == pytest.approx(sum(accuracies) / 3)
    assert result.std == pytest.approx(math.sqrt(sum((a - result.mean) ** 2 for a in accuracies) / 3))
    held_back = [score.held_back_accuracies[0] for score in result.scores]
    assert result.chosen.held_back_accuracies[0] == max(held_back)
    told = result.to_json()
    assert (told["best"], told["chosen"]) == (result.best.name, result.chosen.name)
    assert [score["mean"] for score in told["scores"]] == accuracies


def test_the_test_images_choose_no_epoch(digits):
    """With other test labels the same weights are kept: those answers are wrong that were right."""
    some = digits.private.select(torch.arange(300))
    flipped = Images(digits.test.images, (digits.test.labels + 1) % 10, digits.test.classes)
    one, other = (measure_dpimagebench(some, test, settings=SHORT) for test in (digits.test, flipped))
    assert [s.held_back_accuracies for s in other.scores] == [s.held_back_accuracies for s in one.scores]
    for score, flip in zip(one.scores, other.scores, strict=True):
        assert flip.mean <= 1 - score.mean


def test_one_seed_gives_the_same_result_and_the_cache_keeps_it(digits, tmp_path, monkeypatch):
    some = digits.private.select(torch.arange(300))
    cache = Cache(tmp_path)
    first = measure_dpimagebench(some, digits.test, settings=SHORT, cache=cache)
    torch.rand(1)  # dropout does not depend on the caller's random state,
    state = torch.get_rng_state()
    assert measure_dpimagebench(some, digits.test, settings=SHORT) == first
    assert torch.equal(torch.get_rng_state(), state)  # nor changes it
    monkeypatch.setattr("idpgan.metrics.dpimagebench.fit_classifier", None)  # calling it again would fail
    assert measure_dpimagebench(some, digits.test, settings=SHORT, cache=cache) == first


def test_the_recipe_is_the_published_one():
    config = FULL.fit_config(4)
    assert (config.epochs, config.batch_size, config.learning_rate, config.weight_decay) == (50, 256, 0.01, 0)
    assert (config.schedule, config.ema_decay, config.seed) == ("step", 0.9999, 4)
    assert round(60_000 * config.held_back_share) == 5000
    assert (FULL.resnet.depth, FULL.wrn.depth, FULL.wrn.widening, FULL.wrn.dropout) == (110, 40, 4, 0.3)
    assert (FULL.resnext.depth, FULL.resnext.cardinality) == (29, 8)
    assert SMALL.epochs < FULL.epochs


def test_delta_is_that_of_the_published_rows():
    """FETA-Pro's log of MNIST, 55,000 private images: results_demo/mnist_28_eps1.0_time20_freq26.6.txt."""
    assert benchmark_delta(55_000) == pytest.approx(1.6657508770018431e-06, rel=1e-14)
    assert benchmark_delta(3) < 1 / 3
    with pytest.raises(InputError, match="there are 2"):
        benchmark_delta(2)


@pytest.mark.parametrize(
    ("shape", "classes", "num_private", "message"),
    [
        ((1, 28, 28), (), 100, "has no classes"),
        ((3, 64, 64), ("a", "b"), 100, "64 x 64 pixels do not fit"),
        ((1, 28, 28), ("a", "b"), 2, "there are 2"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused(shape, classes, num_private, message):
    with pytest.raises(InputError, match=message):
        check_benchmark(shape, classes, num_private)
    check_benchmark((3, 32, 32), ("a", "b"), 100)  # negative control


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda images: Images(images.images), {}, "the classes"),
        (lambda images: images.select(torch.arange(2)), {}, "at least 3"),
        (lambda images: images, {"seeds": []}, "give at least one"),
        (lambda images: images, {"seeds": [1, 1]}, "none twice"),
    ],
)
def test_images_that_cannot_be_measured_are_refused(digits, change, options, message):
    with pytest.raises(InputError, match=message):
        measure_dpimagebench(change(digits.private), digits.test, settings=TINY, **options)
