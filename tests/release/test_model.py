"""Models of somebody's own loop: the guide's twenty lines, what verifies, what is refused, forged and attacked."""

import dataclasses
import json
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import nn

from idpgan import load_generator
from idpgan.attacks import attack_model
from idpgan.data.images import to_float
from idpgan.errors import ConfigError, InputError
from idpgan.kinds import verify
from idpgan.models.own import ForeignClassifier, ForeignGenerator
from idpgan.privacy import Event, Relation, Unit, compose_epsilon, from_opacus
from idpgan.release import load_model, write_model
from tests.release.forging import with_hash
from tests.training.toy import digits

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "opacus.md"
STEPS = (Event("poisson-gaussian", Unit.IMAGE, Relation.ZERO_OUT, 1.0, 100, 0.05),)
CLASSES = tuple("0123456789")


def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class Drawing(nn.Module):
    """A generator of 8 x 8 images in [0, 1], with classes."""

    def __init__(self, width=64):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(10, 4), nn.Linear(4, width)

    def forward(self, z, labels):
        return self.linear(z + self.embedding(labels)).sigmoid().view(-1, 1, 8, 8)


def written(folder, module=None, events=STEPS, **options):
    settings = {"num_private": 1000, "image_shape": (1, 8, 8), "classes": CLASSES, "fixed_seed": False} | options
    return write_model(folder, module or linear(), events, **settings)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "release"
    written(folder, data="digits of a stranger")
    return folder


@pytest.fixture
def release(classifier, tmp_path):
    return shutil.copytree(classifier, tmp_path / "release")


# The guide -----------------------------------------------------------------------------------------------------------


def test_the_guide_makes_a_verified_release_in_twenty_lines(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code.splitlines()) <= 20
    monkeypatch.chdir(tmp_path)
    private = digits().private
    names = {"images": to_float(private.images), "labels": private.labels}
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns of torch's random numbers, and torch of Opacus' hooks
        exec(compile(code, str(PAGE), "exec"), names)
    found = verify(tmp_path / "release")
    assert found.problems == ()
    (event,) = names["events"]
    assert (event.count, event.noise_multiplier, event.sample_rate) == (5 * 21, 1.0, 1 / 21)
    assert found.recomputed == compose_epsilon([event], found.report.proven.delta)
    assert names["classifier"].privacy == found.report
    right = names["classifier"].predict(digits().test.images) == digits().test.labels
    assert float(right.float().mean()) > 0.5


# From Opacus' history ------------------------------------------------------------------------------------------------


def test_a_history_becomes_events_of_the_same_price():
    history = [(1.5, 0.04, 2250), (2.0, 0.1, 3)]
    events = from_opacus(history, unit="image", num_private=1000)
    assert [(e.kind, e.noise_multiplier, e.sample_rate, e.count) for e in events] == [
        ("poisson-gaussian", 1.5, 0.04, 2250),
        ("poisson-gaussian", 2.0, 0.1, 3),
    ]
    assert {(e.unit, e.relation) for e in events} == {(Unit.IMAGE, Relation.ZERO_OUT)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import PRVAccountant

        accountant = PRVAccountant()
        accountant.history = history
        assert from_opacus(accountant, unit=Unit.PERSON, num_private=1000)[1].unit is Unit.PERSON
        theirs = accountant.get_epsilon(1e-5)
    assert theirs - 0.03 < compose_epsilon(events, 1e-5) <= theirs


class PrivacyEngineAdaptiveClipping:
    accountant = type("Accountant", (), {"history": [(1.0, 0.1, 5)]})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "list holds no steps of Opacus"),
        (None, "NoneType holds no steps"),
        ([(1.0, 0.1)], r"\(1.0, 0.1\) is not \(noise_multiplier, sample_rate, steps\)"),
        ([(1.0, "much", 2)], "three numbers"),
        ([(1.0, 2.0, 5)], "sample_rate = 2 is above 1: gradients of several batches went into one step"),
        ([(0.0, 0.1, 5)], "noise_multiplier = 0: a step without noise"),
        ([(float("nan"), 0.1, 5)], "noise_multiplier = nan"),
        ([(1.0, 0.1, 0)], "steps = 0 must be at least 1"),
        ([(1.0, 1e-4, 5)], "draws less than one a step"),
        (PrivacyEngineAdaptiveClipping(), "adapts its clipping norm to private gradients"),
    ],
)
def test_what_these_events_do_not_price_is_refused_in_one_line(given, message):
    with pytest.raises(InputError, match=message) as refused:
        from_opacus(given, unit="image", num_private=1000)
    assert "\n" not in str(refused.value)


def test_a_number_of_records_that_is_not_the_data_sets_is_refused():
    engine = type("Engine", (), {"accountant": type("A", (), {"history": [(1.0, 0.1, 5)]}), "dataset": range(50)})()
    assert from_opacus(engine, unit="image", num_private=50)[0].count == 5
    with pytest.raises(InputError, match=r"num_private = 40, but the engine's data set has 50 records"):
        from_opacus(engine, unit="image", num_private=40)


# The release ---------------------------------------------------------------------------------------------------------


def test_a_release_says_who_vouches_for_what(classifier):
    found = verify(classifier)
    assert found.problems == ()
    assert found.report.private
    assert "idpgan did not see the training and priced what it was told" in found.report.reason
    assert "the word of whoever wrote this release" in found.report.reason
    card = (classifier / "README.md").read_text()
    assert "digits of a stranger" in card
    assert "if the training was as\nits writer says: idpgan did not see it" in card
    assert "torch.nn.modules.container.Sequential" in card
    assert "was not run" in found.artifact.unchecked
    assert sorted(path.name for path in classifier.iterdir()) == [
        "README.md", "config.json", "model.safetensors", "privacy.json",
    ]  # fmt: skip


def test_a_fixed_seed_is_not_private(tmp_path):
    report = written(tmp_path / "release", fixed_seed=True)
    assert not report.private
    assert report.proven.finite
    assert verify(tmp_path / "release").problems == ()
    assert "**NOT private.**" in (tmp_path / "release" / "README.md").read_text()


def test_a_loaded_classifier_is_the_one_that_was_written(classifier):
    other = linear()
    nn.init.zeros_(other[1].weight)
    loaded = load_model(classifier, other)
    assert isinstance(loaded, ForeignClassifier)
    images = digits().test.images[:5]
    assert torch.allclose(loaded.logits(images), linear()(to_float(images)), atol=1e-5)
    assert loaded.classes == CLASSES
    assert loaded.privacy.proven.epsilon == verify(classifier).recomputed


def test_a_generator_is_released_loaded_and_drawn_from(tmp_path):
    torch.manual_seed(1)
    module = Drawing()
    written(tmp_path / "release", module, latent_dim=4, pixels=(0.0, 1.0))
    assert verify(tmp_path / "release").problems == ()
    generator = load_model(tmp_path / "release", Drawing())
    assert isinstance(generator, ForeignGenerator)
    drawn = generator.sample(20, seed=3)
    assert drawn.shape == (20, 1, 8, 8)
    assert drawn.min() >= -1
    assert torch.equal(drawn, generator.sample(20, seed=3))
    z, labels = torch.randn(2, 4), torch.tensor([1, 7])
    assert torch.allclose(generator(z, labels), 2 * module(z, labels) - 1, atol=1e-6)


def test_it_can_be_attacked_and_one_that_overfits_is_found_out(tmp_path):
    split, torch_seed = digits(), 3
    torch.manual_seed(torch_seed)
    members, others = (part.select(torch.arange(100)) for part in (split.private, split.holdout))
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    for name, steps in (("trained", 150), ("untrained", 0)):
        optimizer = torch.optim.Adam(module.parameters(), 0.01)
        shuffled = (members.labels + torch.arange(100)) % 10  # to be learned by heart
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(to_float(members.images)), shuffled).backward()
            optimizer.step()
        written(tmp_path / name, module)
        copied = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        model = load_model(tmp_path / name, copied)
        asked = [part.__class__(part.images, (part.labels + torch.arange(100)) % 10, part.classes)
                 for part in (members, others)]  # fmt: skip
        found = {each.attack.name: each.result.auc for each in attack_model(model, *asked) if each.result}
        assert (max(found.values()) > 0.9) == (name == "trained")
        torch.nn.init.normal_(module[1].weight, std=0.1)
    copied = [part.select(torch.arange(20).repeat(5)) for part in (members, others)]
    assert {each.result.num_members for each in attack_model(model, *copied) if each.result} == {20}
    near = members.images[:50].clone()
    near[:, 0, 0, 0] ^= 1
    both = dataclasses.replace(members, images=torch.cat([members.images[:50], near]))
    with pytest.raises(InputError, match="column person"):  # all members are nearest to a member
        attack_model(model, both, others)
    with pytest.raises(InputError, match="100 members and 0 others"):
        attack_model(model, members, others.select(torch.arange(0)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ()}, "a classifier needs the names of its classes"),
        ({"classes": ("a", "b")}, r"maps 2 images to \(2, 10\), and a classifier of 2 classes"),
        ({"image_shape": (1, 9, 9)}, "could not be tried"),
        ({"delta": 0.01}, "must be at least 0 and below 1/N"),
        ({"num_private": 0}, "num_private = 0 must be at least 1"),
        ({"events": ()}, "events"),
        ({"pixels": (1.0, 1.0)}, "must be two numbers"),
        ({"data": "two\nlines"}, "data"),
        ({"latent_dim": 4}, "called with two records it raises TypeError"),
    ],
)
def test_what_cannot_be_released_is_refused_and_nothing_is_written(options, message, tmp_path):
    with pytest.raises(InputError, match=message) as refused:
        written(tmp_path / "release", **options)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "release").exists()


def test_a_classifier_with_statistics_of_private_batches_is_refused(tmp_path):
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))
    with pytest.raises(ConfigError, match="BatchNorm2d"):
        written(tmp_path / "release", module)
    broken = linear()
    broken[1].weight.data[0, 0] = float("nan")
    with pytest.raises(InputError, match=r"'1\.weight' holds numbers that are not finite"):
        written(tmp_path / "release", broken)
    assert not (tmp_path / "release").exists()


def test_another_module_is_refused_when_it_is_loaded(classifier, tmp_path):
    with pytest.raises(
        InputError, match=r"Sequential is not the module of this release: '1\.weight' has another shape"
    ):
        load_model(classifier, nn.Sequential(nn.Flatten(), nn.Linear(64, 9)))
    with pytest.raises(InputError, match=r"holds no model\.safetensors"):
        load_model(tmp_path, linear())
    with pytest.raises(InputError, match=r"its writer's own code\. Make the module and load it with idpgan\.release"):
        load_generator(classifier)


# Forged --------------------------------------------------------------------------------------------------------------


def change(folder, name, edit):
    document = json.loads((folder / name).read_text())
    edit(document)
    (folder / name).write_text(json.dumps(document, indent=2) + "\n")


FORGED = {
    "fewer steps": lambda folder: change(folder, "privacy.json", lambda d: d["events"][0].update(count=1)),
    "less epsilon": lambda folder: change(folder, "privacy.json", lambda d: d["report"]["proven"].update(epsilon=0.1)),
    "more noise in the settings": lambda folder: change(
        folder, "config.json", lambda d: d["settings"]["events"][0].update(noise_multiplier=50.0)
    ),
    "another class": lambda folder: change(folder, "config.json", lambda d: d["model"].update(module="os.system")),
    "more records": lambda folder: change(folder, "privacy.json", lambda d: d.update(num_private=10**6)),
    "other weights": lambda folder: (folder / "model.safetensors").write_bytes(
        (folder / "model.safetensors").read_bytes()[:-4] + b"\0\0\0\0"
    ),
    "a text beside the weights": with_hash(
        "model.safetensors", lambda content: save(load(content), {"epsilon": "0.1"})
    ),
    "not a safetensors file": lambda folder: (folder / "model.safetensors").write_bytes(b"PK\x03\x04"),
    "a huge tensor": lambda folder: change(
        folder, "config.json", lambda d: d["model"]["tensors"]["1.weight"].update(shape=[1 << 30, 1 << 30])
    ),
    "an unknown event": lambda folder: change(
        folder, "config.json", lambda d: d["settings"]["events"][0].update(kind="magic")
    ),
    "a file more": lambda folder: (folder / "module.py").write_text("import os"),
    "the word of its writer dropped": lambda folder: change(
        folder, "privacy.json", lambda d: d["report"].update(reason="proven by everybody")
    ),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_a_forged_release_is_found_out_and_not_loaded(release, forge, caplog):
    assert verify(release).problems == ()
    forge(release)
    assert verify(release).problems
    if forge is FORGED["a file more"]:  # which is nothing that could be loaded
        assert load_model(release, linear()).privacy.proven.finite
        assert "module.py does not belong to the release" in caplog.text
    else:
        with pytest.raises(InputError, match=r"is not what was released|more than its tensors"):
            load_model(release, linear())
