import itertools
import json
import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.metrics import features as fitting
from idpgan.metrics import utility as utility_module
from idpgan.metrics.cache import Cache
from idpgan.metrics.features import RECIPES
from idpgan.metrics.utility import measure_utility

LOGISTIC = {"classifiers": ["logistic"], "seeds": [0]}


def relabeled(images, labels):
    return Images(images.images, labels, images.classes)


def shuffled(images, seed=0):
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    return relabeled(images, images.labels[order])


@pytest.fixture(scope="module")
def real(digits):
    """Utility of the real training images."""
    return measure_utility(digits.private, digits.test, **LOGISTIC).scores[0]


@pytest.mark.trained
@pytest.mark.parametrize(("name", "least"), [("cnn", 0.93), ("resnet", 0.95), ("logistic", 0.85)])
def test_real_images_are_useful(digits, name, least):
    (score,) = measure_utility(digits.private, digits.test, classifiers=[name], seeds=[0]).scores
    assert score.mean > least
    assert score.num_parameters <= 125_000


@pytest.mark.trained
def test_shuffled_labels_fall_to_chance(digits):
    found = [measure_utility(shuffled(digits.private, seed), digits.test, **LOGISTIC).scores[0] for seed in range(4)]
    assert statistics.fmean(score.mean for score in found) < 0.25  # chance is 0.1
    assert statistics.fmean(score.held_back_accuracies[0] for score in found) < 0.3


@pytest.mark.trained
def test_a_dropped_class_lowers_the_accuracy(digits, real):
    lost, shares = [], []
    for digit in (3, 5, 7):
        rest = digits.private.select(digits.private.labels != digit)
        (score,) = measure_utility(rest, digits.test, **LOGISTIC).scores
        lost.append(real.mean - score.mean)
        shares.append(digits.test.labels.eq(digit).double().mean().item())
        assert score.mean <= 1 - shares[-1]
    assert statistics.fmean(lost) > statistics.fmean(shares) / 2


@pytest.mark.trained
def test_the_test_set_is_read_once_and_chooses_nothing(digits, real, monkeypatch):
    calls, original = [], utility_module.predict
    monkeypatch.setattr(utility_module, "predict", lambda *args: calls.append(args[1]) or original(*args))
    (score,) = measure_utility(digits.private, shuffled(digits.test), **LOGISTIC).scores
    assert [call.data_ptr() for call in calls] == [digits.test.images.data_ptr()]
    assert score.held_back_accuracies == real.held_back_accuracies
    assert score.mean < 0.25
    assert real.mean > 0.85


def test_seeds_give_mean_and_spread(digits, monkeypatch):
    answers, original = [], utility_module.predict
    monkeypatch.setattr(utility_module, "predict", lambda *args: answers.append(original(*args)) or answers[-1])
    result = measure_utility(digits.holdout, digits.test, classifiers=["logistic"], seeds=[4, 5, 6])
    (score,) = result.scores
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(answers, 2))
    assert score.mean == pytest.approx(statistics.fmean(score.accuracies))
    assert score.std == pytest.approx(statistics.stdev(score.accuracies))
    told = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert told["scores"][0]["mean"] == score.mean
    assert (told["num_images"], told["num_test"], told["seeds"]) == (len(digits.holdout), len(digits.test), [4, 5, 6])
    assert (told["images_digest"], told["test_digest"]) == (digits.holdout.digest(), digits.test.digest())
    assert told["protocol"]
    assert told["chosen"] == "logistic"


def test_one_seed_has_no_spread(real):
    assert real.std is None


def test_the_chosen_classifier_is_the_best_on_held_back_images():
    scores = (
        utility_module.ClassifierScore("cnn", 1, accuracies=(0.9,), held_back_accuracies=(0.5,)),
        utility_module.ClassifierScore("resnet", 1, accuracies=(0.1,), held_back_accuracies=(0.6,)),
    )
    assert utility_module.UtilityResult(scores, (0,), 1, 1, 1.0, "", "", "").chosen.name == "resnet"


def test_known_results_come_from_the_cache(digits, tmp_path, monkeypatch):
    first = measure_utility(digits.holdout, digits.test, cache=Cache(tmp_path), **LOGISTIC)
    monkeypatch.setattr(utility_module, "fit_named", None)  # calling it again would fail
    assert measure_utility(digits.holdout, digits.test, cache=Cache(tmp_path), **LOGISTIC) == first
    for images, test in ((shuffled(digits.holdout), digits.test), (digits.holdout, shuffled(digits.test))):
        with pytest.raises(TypeError):
            measure_utility(images, test, cache=Cache(tmp_path), **LOGISTIC)


def test_progress_hears_of_every_step_of_a_fit(digits):
    heard = []
    measure_utility(digits.holdout, digits.test, progress=lambda *told: heard.append(told), what="floor", **LOGISTIC)
    what, done, total = zip(*heard, strict=True)
    assert set(what) == {"floor: logistic, seed 0, steps"}
    assert list(done) == list(range(1, total[0] + 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": Images(torch.zeros(5, 1, 8, 8, dtype=torch.uint8))}, "classes"),
        (
            {"images": Images(torch.zeros(5, 1, 9, 9, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64), ("0",))},
            r"shape \(C, H, W\) \(1, 9, 9\), but the real test images have \(1, 8, 8\)",
        ),
        (
            {"images": Images(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64), ("a",))},
            "classes",
        ),
        ({"seeds": []}, "give at least one"),
        ({"seeds": [1, 1]}, "none twice"),
        ({"classifiers": ["logistics"]}, "Did you mean 'logistic'"),
    ],
)
def test_bad_input_is_refused(digits, change, message):
    arguments = {"images": digits.holdout, **LOGISTIC, **change}
    with pytest.raises(InputError, match=message):
        measure_utility(arguments.pop("images"), digits.test, **arguments)


def test_too_few_images_are_refused(digits):
    with pytest.raises(InputError, match="at least 3"):
        measure_utility(digits.private.select(torch.arange(2)), digits.test, **LOGISTIC)


@given(name=st.sampled_from(sorted(RECIPES)), num_images=st.integers(3, 10**7), seed=st.integers(0, 2**40))
def test_every_number_of_images_gets_enough_steps(name, num_images, seed):
    config, standard = fitting.recipe(name, num_images, seed), RECIPES[name]
    assert 32 <= config.batch_size <= standard.batch_size
    assert config.seed == seed
    num_batches = math.ceil(num_images * (1 - standard.held_back_share) / config.batch_size)
    assert config.epochs * num_batches >= fitting.MIN_STEPS_PER_EPOCH * standard.epochs
    if num_images >= 30_000:
        assert config == standard.model_copy(update={"seed": seed})


@pytest.mark.trained
@pytest.mark.data
@pytest.mark.slow
def test_real_mnist_reaches_98_5_percent():
    from idpgan.data.config import DataConfig
    from idpgan.data.load import load

    split = load(DataConfig(name="mnist"))
    result = measure_utility(split.private, split.test, seeds=[0])
    scores = {score.name: score.mean for score in result.scores}
    assert scores["cnn"] >= 0.985
    assert scores["resnet"] >= 0.985
    assert scores["logistic"] >= 0.915
