"""The trained obfuscators keep what is to be kept and lose what is to be lost, on toys; fresh networks judge."""

import functools

import pytest
import torch

from idpgan.errors import InputError
from idpgan.models.classifier import build_classifier
from idpgan.obfuscate import METHODS, load_obfuscator, make_obfuscator
from idpgan.training.fit import FitConfig, fit_classifier, predict
from tests.obfuscate.pictures import planted

SHAPE = (1, 16, 16)
OPTIONS = {
    "adversarial-encoder": {"steps": 150, "learning_rate": 3e-3, "alpha": 1.0},
    "obfuscator": {"steps": 150, "learning_rate": 3e-3, "weight": 0.6},
    "pprl-vgan": {"steps": 250, "learning_rate": 1e-3, "code": 8},
}


@functools.cache
def fitted(name):
    images, moods, people = planted()
    method = make_obfuscator(
        name, SHAPE, num_utilities=2, num_identities=4, width=6, batch_size=48, seed=1, **OPTIONS[name]
    )
    method.fit(images, moods, people)
    return method


def told(change, label):
    """Accuracy of a network that is trained on changed images of one half and asked about the other."""
    train, test = planted(seed=2), planted(seed=3)
    place = {"mood": 1, "who": 2}[label]
    model = build_classifier("cnn", SHAPE, 4, seed=5)
    pixels = change(train[0]) * 2 - 1
    fit_classifier(model, pixels, train[place], config=FitConfig(epochs=8, batch_size=32))
    return float((predict(model, change(test[0]) * 2 - 1).argmax(1) == test[place]).float().mean())


def test_both_facts_can_be_told_from_clear_images():
    assert told(lambda images: images, "who") > 0.95
    assert told(lambda images: images, "mood") > 0.95


def test_the_adversarial_encoder_loses_the_person_and_keeps_the_mood():
    change = functools.partial(fitted("adversarial-encoder").transform, seed=0)
    assert told(change, "mood") > 0.9
    assert told(change, "who") < 0.6


def test_the_codes_of_the_encoder_have_mean_0_and_variance_1():
    codes = fitted("adversarial-encoder").transform(planted(seed=4)[0], seed=0) * 6 - 3
    assert float(codes.mean(0).abs().mean()) < 0.2
    assert 0.5 < float(codes.var(0).mean()) < 1.3


def test_pprl_vgan_draws_other_people_with_the_same_mood():
    method = fitted("pprl-vgan")
    images, _, people = planted(seed=3)
    model = build_classifier("cnn", SHAPE, 4, seed=5)
    clear = planted(seed=2)
    fit_classifier(model, clear[0] * 2 - 1, clear[2], config=FitConfig(epochs=8, batch_size=32))
    seen = predict(model, method.transform(images, seed=0) * 2 - 1).argmax(1)
    assert float((seen == people).float().mean()) < 0.5  # chance is 1/4
    assert told(functools.partial(method.transform, seed=0), "mood") > 0.9
    again = [method.transform(images, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


def test_the_obfuscator_fools_a_static_attacker_and_changes_little():
    method = fitted("obfuscator")
    images, _, people = planted(seed=3)
    hidden = method.transform(images)
    clear = planted(seed=2)
    model = build_classifier("cnn", SHAPE, 4, seed=5)
    fit_classifier(model, clear[0] * 2 - 1, clear[2], config=FitConfig(epochs=8, batch_size=32))
    assert float((predict(model, images * 2 - 1).argmax(1) == people).float().mean()) > 0.95
    assert float((predict(model, hidden * 2 - 1).argmax(1) == people).float().mean()) < 0.7
    assert float((hidden - images).abs().mean()) < 0.2


@pytest.mark.parametrize("name", [name for name in METHODS if name in OPTIONS])
def test_weights_are_saved_and_loaded(name, tmp_path):
    method = fitted(name)
    method.save(tmp_path)
    again = load_obfuscator(tmp_path)
    images = planted(8, seed=6)[0]
    assert torch.equal(again.transform(images, seed=4), method.transform(images, seed=4))
    assert (again.steps, again.training_parameters) == (method.steps, method.training_parameters)
    assert again.training_parameters > again.num_parameters > 0
    (tmp_path / "obfuscator.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="damaged or no safetensors"):
        load_obfuscator(tmp_path)


def test_an_unfitted_one_transforms_nothing_and_wrong_labels_are_refused():
    method = make_obfuscator("obfuscator", SHAPE, num_utilities=2, num_identities=4, width=2)
    images, moods, people = planted(8)
    with pytest.raises(InputError, match="call fit first"):
        method.transform(images)
    with pytest.raises(InputError, match=r"identities must be in \[0, 3\]"):
        method.fit(images, moods, people + 4)
    with pytest.raises(InputError, match="multiples of 4"):
        make_obfuscator("obfuscator", (1, 18, 16), num_utilities=2, num_identities=4)


def test_the_row_of_each_says_that_nothing_is_proven():
    for row in METHODS.values():
        assert (row.proven, row.claimed, row.sound, row.family) == ("inf", None, None, "obfuscator")
        assert row.nothing_to_audit.endswith("so there is no guarantee to audit.")
