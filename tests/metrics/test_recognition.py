import dataclasses
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from papers.splits import first_images, random_images
from sklearn.metrics import classification_report

from idpgan.data.faces import draw_people
from idpgan.errors import InputError
from idpgan.metrics.recognition import halves, recognize, recognize_by_network


def people(count=6, each=8, side=12, spread=0.05, seed=0):
    """Images (N, side, side) of people who differ by a random pattern, person by person, and their numbers."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.rand(count, 1, side, side, generator=generator)
    images = patterns + spread * torch.randn(count, each, side, side, generator=generator)
    return images.flatten(0, 1), torch.arange(count).repeat_interleave(each)


def judged(images, identities, **options):
    train, test = halves(identities)
    return recognize(images[train], identities[train], images[test], identities[test], **options)


@settings(deadline=None)
@given(counts=st.lists(st.integers(2, 7), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_halves_within_each_person(counts, seed):
    identities = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)) * 3 - 4
    identities = identities[torch.randperm(len(identities), generator=torch.Generator().manual_seed(seed))]
    train, test = halves(identities)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(len(identities)))
    for person in identities.unique():
        own = (identities == person).nonzero().flatten().tolist()
        assert [index for index in train.tolist() if index in own] == own[: len(own) // 2]


def test_so_many_of_each_person_are_drawn():
    identities = torch.tensor([4, 4, 1, 4, 1, 4, 1, 1, 1])
    splits = [random_images(identities, 2, seed=seed) for seed in range(20)]
    for train, test in splits:
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(9))
        assert identities[train].bincount().tolist() == [0, 2, 0, 0, 2]
    assert all(torch.equal(*pair) for pair in zip(splits[3], random_images(identities, 2, seed=3), strict=True))
    assert len({tuple(train.tolist()) for train, _ in splits}) > 5
    with pytest.raises(InputError, match="fewer than the 4"):
        random_images(identities, 4)


@pytest.mark.trained
def test_people_who_differ_are_recognized():
    images, identities = people()
    result = judged(images, identities, components=10)
    assert (result.accuracy, result.precision, result.recall, result.f1) == (1.0, 1.0, 1.0, 1.0)
    assert (result.num_people, result.num_train, result.num_test, result.components) == (6, 24, 24, 10)
    assert result.to_json()["accuracy"] == 1.0


@pytest.mark.trained
def test_noise_is_not_recognized():
    images, identities = people(count=10, each=40)
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    assert judged(noise, identities, components=20).accuracy < 0.25  # chance is 0.1
    # Identities that say nothing: the halves of the same images are right only by chance.
    shuffled = identities[torch.randperm(len(identities), generator=torch.Generator().manual_seed(2))]
    assert judged(images, shuffled, components=20).accuracy < 0.25


def test_the_scores_are_the_macro_averages():
    images, identities = people(count=5, each=12, spread=0.9)
    train, test = halves(identities)
    test = test[: len(test) - 3]  # uneven people: macro recall and accuracy differ
    result = recognize(images[train], identities[train], images[test], identities[test], components=12)
    # Again with scikit-learn's pieces, standing apart.
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import SVC

    model = make_pipeline(PCA(12, whiten=True, svd_solver="randomized", random_state=0), SVC(C=10.0))
    model.fit(images[train].flatten(1).numpy(), identities[train].numpy())
    predicted = model.predict(images[test].flatten(1).numpy())
    report = classification_report(identities[test].numpy(), predicted, output_dict=True, zero_division=0)
    macro = report["macro avg"]
    assert result.accuracy == pytest.approx(report["accuracy"])
    assert (result.precision, result.recall) == pytest.approx((macro["precision"], macro["recall"]))
    assert result.f1 == pytest.approx(macro["f1-score"])
    assert abs(macro["recall"] - report["accuracy"]) > 1e-3  # so macro and micro would be told apart
    assert abs(report["weighted avg"]["f1-score"] - macro["f1-score"]) > 1e-3


@pytest.mark.trained
def test_scale_shape_and_type_do_not_matter():
    images, identities = people(spread=0.4)
    images = (images - images.min()) / (images.max() - images.min())
    whole = (images * 255).round().to(torch.uint8)
    results = [judged(part, identities, components=10) for part in (whole, whole.double() * 3 - 7, whole[:, None])]
    assert results[0] == results[1] == results[2]


def test_images_all_alike_are_at_chance():
    images, identities = people(count=4)
    result = judged(torch.full_like(images, 0.5), identities, components=3)
    assert result.accuracy == 0.25
    assert result.precision == pytest.approx(0.25 / 4)  # nobody is taken for three of the four: 0 each


@pytest.mark.trained
def test_images_of_low_rank_do_not_need_fewer_components():
    images, identities = people(count=4)
    brightness = identities[:, None, None] / 4 + 0.01 * images[:, :1, :1]  # one number per image
    flat = brightness.expand_as(images)
    result, exact = judged(flat, identities, components=12), judged(flat, identities, components=1)
    assert result == dataclasses.replace(exact, components=result.components)
    assert exact.accuracy > 0.6  # without the cut: at chance, 0.25


@pytest.mark.parametrize("solver", ["randomized", "full"])
def test_it_repeats(solver):
    images, identities = people(spread=0.6)
    state = np.random.get_state()[1].copy()  # noqa: NPY002  the global generator must stay as it is
    assert judged(images, identities, components=9, solver=solver) == judged(
        images, identities, components=9, solver=solver
    )
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def with_value(images, value):
    changed = images.clone()
    changed[3, 0, 0] = value
    return changed


IMAGES, IDS = people(count=3, each=4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: halves(torch.tensor([1, 1, 1])), "at least 2 people, got 1"),
        (lambda: halves(torch.tensor([], dtype=torch.int64)), "at least 2 people, got 0"),
        (lambda: halves(torch.tensor([1, 1, 5])), r"Person 5 has 1 image \(1 of 2 people"),
        (lambda: halves(torch.tensor([1.0, 2.0])), "int64"),
        (lambda: recognize(IMAGES, IDS * 0, IMAGES, IDS * 0, 2), "at least 2 people"),
        (lambda: recognize(IMAGES, IDS, IMAGES, IDS + 1, 2), "Person 3 is tested but has no training image"),
        (lambda: recognize(IMAGES, IDS, IMAGES, IDS, 13), r"components = 13 must be in \[1, 12\].*12 training images"),
        (lambda: recognize(IMAGES[:, :2, :2], IDS, IMAGES[:, :2, :2], IDS, 5), r"\[1, 4\].*of 4 numbers"),
        (lambda: recognize(IMAGES, IDS, IMAGES, IDS, 0), "components = 0"),
        (lambda: recognize(with_value(IMAGES, math.nan), IDS, IMAGES, IDS, 2), "1 of 12 training images .* NaN"),
        (lambda: recognize(IMAGES, IDS, with_value(IMAGES, math.inf), IDS, 2), "1 of 12 test images .* infinite"),
        (lambda: recognize(IMAGES, IDS, IMAGES[:, :5], IDS, 2), r"\(12, 12\), test images \(5, 12\)"),
        (lambda: recognize(IMAGES, IDS[:4], IMAGES, IDS, 2), r"12 training images need int64 identities \(12,\)"),
        (lambda: recognize(IMAGES, IDS, IMAGES[:0], IDS[:0], 2), "test images must be"),
        (lambda: recognize(IMAGES, IDS, IMAGES, IDS, 2, penalty=0.0), "penalty = 0.0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.trained
@pytest.mark.data
def test_orl_without_noise():
    # 50 whitened components, radial SVM, C = 10. IDPGAN_DATA holds orl_faces/s1/1.pgm ...
    root = Path(os.environ["IDPGAN_DATA"]) / "orl_faces"
    from PIL import Image

    files = [root / f"s{person}" / f"{image}.pgm" for person in range(1, 41) for image in range(1, 11)]
    images = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files])
    identities = torch.arange(40).repeat_interleave(10)
    result = judged(images, identities)
    found = (result.accuracy, result.precision, result.f1)
    assert found == pytest.approx((0.85, 0.895, 0.842), abs=0.01)
    # The other halves of other people are another task: the tolerance tells them apart.
    assert abs(judged(images.flip(0), identities.flip(0)).accuracy - 0.85) > 0.01


# The network of Liu et al. ------------------------------------------------------------------------------------


def networked(images, identities, **options):
    train, test = first_images(identities, 5)
    return recognize_by_network(images[train], identities[train], images[test], identities[test], **options)


def test_the_first_images_of_each_person_train():
    train, test = first_images(torch.tensor([7, 5, 7, 5, 7, 5, 5]), 2)
    assert (train.tolist(), test.tolist()) == ([0, 1, 2, 3], [4, 5, 6])


@pytest.mark.parametrize(("num", "words"), [(0, "num = 0"), (3, "fewer than the 3 of person 7"), (9, "num = 9")])
def test_too_many_or_no_training_images_are_refused(num, words):
    with pytest.raises(InputError, match=words):
        first_images(torch.tensor([5, 5, 5, 5, 7, 7, 7]), num)


@pytest.mark.trained
def test_the_network_recognizes_drawn_faces():
    faces = draw_people(4, 20, 20, 20, seed=6)
    found = networked(faces.images, faces.identities + 3, epochs=20)
    assert found.accuracy > 0.7  # chance is 0.25
    assert (found.num_people, found.num_train, found.num_test, found.components) == (4, 20, 60, None)


@pytest.mark.trained
def test_the_network_does_not_recognize_people_under_other_names():
    faces = draw_people(4, 20, 20, 20, seed=6)
    order = torch.randperm(80, generator=torch.Generator().manual_seed(1))
    assert networked(faces.images[order], faces.identities, epochs=20).accuracy < 0.6


def test_the_network_takes_bytes_and_floats_alike_and_repeats_itself():
    faces = draw_people(3, 6, 16, 16, seed=2)
    state = torch.get_rng_state()
    one, other = (networked(x[:, 0], faces.identities, epochs=3) for x in (faces.images, faces.images.float() / 255))
    assert one == other
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.zeros(6, 8, 8), "at least 16 pixels"),
        (torch.zeros(6, 2, 16, 16), "at least 16 pixels"),
        (torch.full((6, 16, 16), 1.5), "clip them first"),
        (torch.full((6, 16, 16), math.nan), "NaN"),
        (torch.zeros(6, 16, 16, dtype=torch.int64), "uint8 or floating point"),
    ],
)
def test_what_the_network_cannot_take_is_refused(images, words):
    identities = torch.tensor([0, 0, 0, 1, 1, 1])
    with pytest.raises(InputError, match=words):
        recognize_by_network(images, identities, images, identities)


def test_evaluate_measures_recognition():
    """By labels in the place of people; images under labels of others are the control."""
    from idpgan.data.config import DataConfig
    from idpgan.data.load import load
    from idpgan.metrics import evaluate_images

    split = load(DataConfig(name="digits"))
    real = split.private
    wrong = dataclasses.replace(real, labels=(real.labels + torch.arange(len(real))) % 10)
    found, blind = (evaluate_images(images, split, ["recognition"]).results["recognition"] for images in (real, wrong))
    assert found.accuracy > 0.9
    assert blind.accuracy < 0.3  # chance is 0.1
    assert "Recognition of 10 classes" in str(evaluate_images(real, split, ["recognition"]))
