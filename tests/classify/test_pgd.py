"""Adversarial training withstands the attack that fools plain training; nothing private is claimed for it."""

import json
import shutil

import pytest
import torch

import idpgan
from idpgan.attacks.adversarial import accuracy, deepfool, pgd
from idpgan.data.load import load
from idpgan.errors import ConfigError
from idpgan.privacy import Ledger, Relation, Unit
from idpgan.training.config import build_config, load_method
from idpgan.training.plan import plan_run
from tests.classify.test_release import said
from tests.classify.test_steps import split_of


def config_of(steps=150, radius=0.1, **method):
    return build_config(
        {
            "data": {"name": "digits"},
            "method": {"name": "pgd", "width": 8, "radius": radius, "attack_steps": 3, **method},
            "training": {"steps": steps, "batch_size": 64, "tick_steps": 50},
        },
        "test",
    )


def trained(config, split, steps):
    method = load_method("pgd").Method.of(config, split, device=torch.device("cpu"))
    for step in range(1, steps + 1):
        method.step(step)
    return method


@pytest.mark.slow  # quickly: that each batch is attacked, below; the attacks: tests/attacks/test_adversarial.py
@pytest.mark.trained
def test_it_withstands_the_attack_that_fools_plain_training():
    split = load(config_of().data)
    found = {}
    for radius in (0.0, 0.15):
        network = trained(config_of(radius=radius), split, 150).product
        holdout = split.holdout
        attacked = pgd(network, holdout.images, holdout.labels, radius=0.15, steps=10)
        clean, worst = (accuracy(network, images, holdout.labels) for images in (holdout.images, attacked))
        found[radius] = clean, worst, deepfool(network, holdout.images).robustness
    assert min(clean for clean, _, _ in found.values()) > 0.8
    assert found[0.15][1] > found[0.0][1] + 0.1
    assert found[0.15][2] > found[0.0][2]


def test_every_pixel_of_a_training_batch_stays_within_the_radius(monkeypatch):
    from idpgan.classify import pgd as room

    seen = []

    def watched(network, images, labels, **settings):
        attacked = pgd(network, images, labels, **settings)
        seen.append((settings["radius"], float((attacked - (images.float() / 127.5 - 1)).abs().max()) / 2))
        return attacked

    monkeypatch.setattr(room, "pgd", watched)
    trained(config_of(steps=20), split_of(), 20)
    assert [round(radius, 3) for radius, _ in seen] == [0.025, 0.05, 0.075] + [0.1] * 17
    assert all(0.5 * radius < change <= radius + 1e-6 for radius, change in seen)


def test_a_resumed_training_goes_on_as_if_nothing_had_happened():
    split, config = split_of(), config_of(steps=6)
    whole, half = trained(config, split, 6), trained(config, split, 3)
    again = trained(config, split, 0)
    again.load_state(half.state())
    for step in (4, 5, 6):
        again.step(step)
    for one, other in zip(whole.newest.parameters(), again.newest.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_is_released_as_what_it_is(small_run, tmp_path):
    path = small_run("pgd")
    classifier = idpgan.load_classifier(path)
    assert classifier.network == "relu-cnn"
    assert not classifier.privacy.private
    assert classifier.privacy.proven.epsilon == float("inf")
    card = (path / "release" / "README.md").read_text()
    assert "not private" in card
    code, out, _ = said("audit", "pgd", "--epsilon", 1)
    assert (code, "no guarantee to audit" in out) == (0, True)
    code, out, _ = said("attack", shutil.copytree(path, tmp_path / "copy"), "--attack", "loss-threshold", "--json")
    assert (code, set(json.loads(out)["attacks"])) == (0, {"loss-threshold"})


def test_the_ledger_says_that_nothing_is_proven():
    method = trained(config_of(), split_of(), 0)
    ledger = Ledger(Unit.IMAGE, Relation.REPLACE_ONE)
    ledger.charge(method.step_event())
    assert ledger.epsilon(1e-5) == float("inf")
    assert method.privacy().claimed is None


def test_what_it_cannot_train_on_is_refused():
    with pytest.raises(ConfigError, match="at least 2 classes"):
        plan_run(config_of(), split_of(labels=False).shape).check()
    with pytest.raises(ConfigError, match="radius"):
        config_of(radius=1.5)
    table = {"data": {"name": "digits"}, "method": {"name": "pgd"}, "model": {"width": 4}}
    with pytest.raises(ConfigError, match="Leave \\[model\\] out"):
        plan_run(build_config(table, "test"), split_of().shape).check()
