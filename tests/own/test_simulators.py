"""A simulator and features of the user in evolution: what is released are the images that it drew, never its code."""

import json
import re
import sys

import pytest
import torch

import idpgan
from idpgan import trainer
from idpgan.data.images import to_float
from idpgan.data.load import load
from idpgan.errors import ConfigError
from idpgan.kinds import verify
from idpgan.models.simulators import OwnSimulator, weights_of
from idpgan.privacy.books import count
from idpgan.privacy.ledger import Ledger
from idpgan.synthesis import evolution, votes
from idpgan.trainer import plan, resume
from idpgan.training.config import build_config
from tests.own import simulators
from tests.release.forging import put_file

HERE = "tests.own.simulators"


@pytest.fixture(autouse=True)
def few_drawn(monkeypatch):
    monkeypatch.setattr(votes, "DRAWN", 200)


def config_of(simulator="draw", *, module=HERE, **sections):
    table = {
        "data": {"name": "digits"},
        "model": {"generator": "population", "simulator": f"{module}:{simulator}", "codes": 6, "latent_dim": 5},
        "method": {"name": "evolution"},
        "privacy": {"epsilon": 3.0, "delta": 1e-5},
        "training": {"device": "cpu", "steps": 3},
        "release": {"samples": 10},
    }
    return build_config({name: table.get(name, {}) | sections.get(name, {}) for name in {**table, **sections}}, "test")


def simulator_of(name, num_classes=0, **sections):
    config = config_of(name, **sections)
    conditional = config.model.model_copy(update={"conditional": bool(num_classes)})
    return OwnSimulator(conditional, (1, 8, 8), num_classes)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["draw", "Painter", "turner", "network"])
def test_the_release_holds_the_images_and_no_code(tmp_path, monkeypatch, name):
    config = config_of(name, model={"license": "CC0 <b>"})
    trainer.start(config, tmp_path / "run")
    monkeypatch.setitem(sys.modules, HERE, None)  # any import of it fails from here on
    found = verify(tmp_path / "run")
    assert (found.problems, found.artifact.unchecked) == ((), None)
    generator = idpgan.load_generator(tmp_path / "run")
    assert generator.sample(20, seed=0).shape == (20, 1, 8, 8)
    assert generator.simulator.photos.shape == (60, 1, 8, 8)
    card = (tmp_path / "run" / "release" / "README.md").read_text()
    assert f"{HERE}:{name}" in card
    assert "CC0 &lt;b&gt;" in card
    content = (tmp_path / "run" / "release" / "config.json").read_text()
    put_file(tmp_path / "run" / "release", "config.json", content.replace('"license": "CC0', '"licence": "CC0'))
    assert verify(tmp_path / "run").problems == ()  # as earlier versions spelled the key
    described = json.loads(content)["generator"]
    code = getattr(simulators, name)
    assert described["proposer"] == weights_of(code() if isinstance(code, type) else code)
    assert (described["proposer"] is None) == (name in ("draw", "turner"))
    assert (described["proposer"] or "no weights were found") in card
    assert "says that it has seen no private image" in card


def test_a_forged_hash_is_refused(tmp_path):
    trainer.start(config_of(), tmp_path / "run")
    path = tmp_path / "run" / "release" / "config.json"
    document = json.loads(path.read_text())
    for forged in ("no hash", 3, "0" * 63):
        document["generator"]["proposer"] = forged
        path.write_text(json.dumps(document, indent=2) + "\n")
        assert not verify(tmp_path / "run").consistent


def test_every_image_of_the_release_was_drawn_and_voted_for():
    """What is released is what was voted for, also where two calls draw different images."""
    config = config_of("Painter")
    method = evolution.Method.of(config, load(config.data), device=torch.device("cpu"))
    method.ledger.charge(method.step_event())
    method.step(1)
    voted, photos = method._members.flatten(0, 1), method.generator.simulator.photos
    assert torch.equal(method._simulator(voted), to_float(photos))
    z = torch.zeros(4, method.generator.latent_dim - 1)
    still = method.generator.simulator(z)  # an image that is not varied is the photo itself
    assert torch.allclose(still[0], to_float(photos[len(photos) // 2]), atol=1e-5)


def test_z_classes_and_calls():
    """A class is told by its label, z has the object's length, and no call draws more than it asks for."""
    made = simulator_of("Painter", 4)
    vectors = made.start(20, 2, rng())
    assert vectors.shape == (20, 1 + 3 + 64)
    assert (vectors[:, 0] == 2).all()
    assert made._code.sizes == [7, 7, 6]
    assert torch.equal(vectors, simulator_of("Painter", 4).start(20, 2, rng()))
    bars = simulator_of("draw", 3)
    assert bars(bars.start(1, 0, rng())).mean() < bars(bars.start(1, 2, rng())).mean()  # wider bars


def test_images_are_varied_as_the_code_says():
    made = simulator_of("Painter")
    vectors = made.start(30, 0, rng())
    fresh = torch.randn(vectors.shape, generator=rng(1))
    near, far = (made.vary(vectors, fresh, strength) for strength in (0.01, 0.5))
    assert torch.equal(near, made.vary(vectors, fresh, 0.01))  # its own chance is seeded
    assert (made(near) - made(vectors)).abs().mean() < 0.02 < (made(far) - made(vectors)).abs().mean()
    turned = simulator_of("turner")
    vectors = turned.start(5, 0, rng())
    assert torch.equal(turned.vary(vectors, fresh[:5], 0.3)[:, :5], -vectors[:, :5])
    plain = simulator_of("draw")
    vectors = plain.start(5, 0, rng())
    varied = plain.vary(vectors, torch.randn(vectors.shape, generator=rng(2)), 1e-4)
    assert torch.allclose(varied[:, :5], vectors[:, :5], atol=1e-3)
    assert torch.allclose(plain(varied), plain(vectors), atol=2 / 255 + 1e-6)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("raises", "RuntimeError: the server does not answer"),
        ("wrong_shape", "it returned (2, 1, 7, 8), and images of (2, 1, 8, 8) were asked for"),
        ("not_a_number", "pixels that are not finite"),
        ("too_bright", "pixels up to 3, and they lie in [-1, 1]"),
        ("a_list", "it returned list"),
        ("OddVary", "a vary whose first parameter is neither z nor images"),
        ("nothing", "AttributeError"),
        ("HERE", "AttributeError"),
    ],
)
def test_a_hostile_simulator_is_refused_in_one_line(name, told):
    with pytest.raises(ConfigError, match=re.escape(told)) as refusal:
        plan(config_of(name))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [("mixing_features", "its features mix records"), ("one_number", "it gives (8,) for 8 images, not a vector each")],
)
def test_hostile_features_are_refused_in_one_line(name, told):
    with pytest.raises(ConfigError, match=re.escape(told)) as refusal:
        plan(config_of(method={"embedding": f"{HERE}:{name}"}))
    assert "\n" not in str(refusal.value)


def test_votes_in_features_of_the_user(tmp_path):
    trainer.start(config_of(method={"embedding": f"{HERE}:Features"}), tmp_path / "run")
    found = verify(tmp_path / "run")
    assert found.problems == ()
    assert f"the embedding {HERE}:Features" in " ".join(found.report.public_assumptions)


def test_a_resume_is_never_the_same_computation(tmp_path, monkeypatch):
    step = evolution.Method.step

    def breaking(self, number):
        if number == 2:
            raise KeyboardInterrupt
        return step(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(evolution.Method, "step", breaking)
        with pytest.raises(KeyboardInterrupt):
            trainer.start(config_of(), tmp_path / "run")
    run = resume(tmp_path / "run").run
    ledger = Ledger.open(run.ledger, config_of().identity())
    assert count(ledger.events) == 3  # two before the break, and one after it: the budget of three votes
    assert verify(tmp_path / "run").problems == ()
    assert count(ledger._books.repeated) == 1


def test_an_installed_package_offers_a_simulator(tmp_path, monkeypatch):
    folder = tmp_path / "painter-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: painter\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[idpgan.simulators]\nbars-3 = {HERE}:draw\n")
    monkeypatch.syspath_prepend(tmp_path)
    plan(config_of("bars-3", module="idpgan.simulators"))
    with pytest.raises(ConfigError, match=r"no installed package offers it; offered: bars-3"):
        plan(config_of("other", module="idpgan.simulators"))
