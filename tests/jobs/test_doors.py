"""Every call that takes images takes them by the same rules: one range, one way of reading, the same refusals."""

import numpy as np
import pytest
import torch
from PIL import Image

import idpgan
from idpgan.commands import process_ledger
from idpgan.errors import InputError
from idpgan.metrics.evaluation import Evaluation

NUM = 60
GREY = np.random.default_rng(0).integers(0, 256, (NUM, 8, 8), dtype=np.uint8)
OTHERS = np.random.default_rng(1).integers(0, 256, (NUM, 8, 8), dtype=np.uint8)
LABELS = np.arange(NUM) % 2
QUIET = {"progress": False}
JUDGED = {"only": "utility", "seeds": 1, "classifiers": ["logistic"], **QUIET}
DOORS = {
    "fit": lambda images, **said: idpgan.fit(images, LABELS, epsilon=1, method="gaussian", **QUIET, **said),
    "fit_classifier": lambda images, **said: idpgan.fit_classifier(images, LABELS, epsilon=1, **QUIET, **said),
    "public": lambda images, **said: idpgan.fit(GREY, epsilon=1, method="gaussian", public=images, **QUIET, **said),
    "publish": lambda images, **said: idpgan.publish_images(images, epsilon=1, unit="pixel", **QUIET, **said),
    "evaluate": lambda images, **said: idpgan.evaluate(images, GREY, **JUDGED, **said),
    "evaluate real": lambda images, **said: idpgan.evaluate(GREY, images, **JUDGED, **said),
    "attack": lambda images, **said: idpgan.attack(images, GREY, OTHERS, **said),
    "attack members": lambda images, **said: idpgan.attack(GREY, images, OTHERS, **said),
}
REFUSED = {
    "floats without a range": (GREY / 255, "what is black and what is white"),
    "uint16": (GREY.astype(np.uint16), "what is black and what is white"),
    "masked": (np.ma.masked_less(GREY, 9), "masked array"),
    "alpha": (np.zeros((NUM, 8, 8, 4), np.uint8), "PIL.Image.fromarray"),
    "parts": ({"train": GREY, "test": GREY}, "has the parts train, test"),
    "a path among arrays": (["a.png", *GREY[1:]], "is a path"),
    "complex": (GREY + 1j, "complex128"),
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(process_ledger, "_DONE", [])


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("door", DOORS)
def test_every_door_refuses_alike_and_charges_nothing(door, case):
    images, said = REFUSED[case]
    with pytest.raises(InputError) as caught:
        DOORS[door](images)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert process_ledger._DONE == []


def test_floats_of_0_to_255_are_what_they_are_declared_to_be(tmp_path):
    """`attack` and `evaluate` see the same images whatever numbers hold them, and say so of none that was not told."""
    attacks = {"attacks": ["nearest-sample"]}
    plain = idpgan.attack(GREY, GREY, OTHERS, **attacks).best.auc
    assert idpgan.attack(GREY * 1.0, GREY, OTHERS / 1, pixel_range="bytes", **attacks).best.auc == plain
    assert idpgan.attack(torch.from_numpy(GREY / 127.5 - 1), GREY, OTHERS, pixel_range="symmetric", **attacks).leak
    np.savez(tmp_path / "made.npz", x=GREY * 1.0)
    with pytest.raises(InputError, match=r'are in \[0, 255\].* "bytes" for \[0, 255\]'):
        idpgan.attack(tmp_path / "made.npz", GREY, OTHERS, **attacks)
    assert idpgan.attack(tmp_path / "made.npz", GREY, OTHERS, pixel_range=(0, 255), **attacks).leak


def test_evaluate_takes_files_data_sets_and_a_range_of_two_numbers(tmp_path, monkeypatch):
    """What is measured is the same whatever holds it; what is measured of it does not matter here."""
    seen = []
    monkeypatch.setattr(
        "idpgan.commands.one_call.evaluate_images",
        lambda images, split, *_, **__: seen.append((images, split.test)) or Evaluation({}, "test", ()),
    )
    np.savez(tmp_path / "made.npz", x=GREY * 1.0, y=LABELS)
    pictures = [(Image.fromarray(each), int(label)) for each, label in zip(OTHERS, LABELS, strict=True)]
    idpgan.evaluate((GREY, LABELS), (OTHERS, LABELS), **JUDGED)
    idpgan.evaluate(tmp_path / "made.npz", pictures, pixel_range=(0, 255), **JUDGED)
    assert len({tuple(each.digest() for each in pair) for pair in seen}) == 1
    with pytest.raises(InputError, match="train has the class '2'"):
        idpgan.evaluate((GREY, LABELS), pictures, train=(GREY, LABELS + 1), **JUDGED)


def test_a_file_of_arrays_is_fitted_and_published_as_the_arrays_are(tmp_path):
    np.savez(tmp_path / "mine.npz", images=GREY, labels=LABELS, classes=np.array(["cat", "dog"]))
    made = idpgan.fit(tmp_path / "mine.npz", epsilon=2, method="gaussian", **QUIET)
    assert made.generator.classes == ("cat", "dog")
    made = idpgan.publish_images(str(tmp_path / "mine.npz"), epsilon=4, unit="pixel", method="lap", **QUIET)
    assert made.images.shape == (NUM, 8, 8)
    assert any("2 releases" in note for note in made.notes)  # by their pixels, wherever they lie


def test_a_generator_is_attacked_as_it_is_evaluated(tmp_path):
    made = idpgan.fit(GREY, LABELS, epsilon=2, method="gaussian", **QUIET)
    data = idpgan.SyntheticDataset(made.generator, num=40, seed=1)
    sources = (made, made.generator, made.release, data)
    found = [idpgan.attack(each, GREY, OTHERS, attacks=["nearest-sample"], samples=40) for each in sources]
    assert {each.facts["num_samples"] for each in found} == {40}
    assert found[0].best.auc == found[1].best.auc == found[2].best.auc
