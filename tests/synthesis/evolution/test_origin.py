"""A released generator as the simulator: what the release holds, and what is refused."""

import hashlib
import json
import shutil

import pytest
import torch

from idpgan import trainer
from idpgan.data.load import known_shape
from idpgan.errors import ConfigError, InputError
from idpgan.kinds import verify
from idpgan.models import ModelConfig, build_generator, load_generator, save_generator
from idpgan.models.checkpoint import WEIGHTS, build_described, describe, origin_weights
from idpgan.models.config import Origin
from idpgan.models.private_classifier import LinearScattering
from idpgan.models.simulators import GeneratorSimulator
from idpgan.origin import of_generator
from idpgan.trainer import load_config
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run
from tests.synthesis.evolution.test_run import FACES, config_of, table_of

PENS = {"name": "fonts", "num_images": 80, "image_size": 12}


@pytest.fixture(scope="module")
def origin(first):
    """What its release says."""
    return of_generator(first)[0]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A release of the method gaussian."""
    run = tmp_path_factory.mktemp("first") / "run"
    table = {
        "data": PENS,
        "model": {"generator": "gaussian", "latent_dim": 12},
        "method": {"name": "gaussian"},
        "privacy": {"epsilon": 3.0, "delta": 1e-5},
        "training": {"device": "cpu"},
        "release": {"samples": 10},
    }
    trainer.start(build_config(table, "a test"), run)
    return run


def read(path, generator, **sections):
    """Write a config whose simulator is a released generator, and read it as the command does."""
    settings = [f"{name}.{key}={json.dumps(value)}" for name, table in sections.items() for key, value in table.items()]
    base = table_of(model={"simulator": "generator"}, data=PENS | {"public_generator": str(generator)})
    settings = [f"{n}.{k}={json.dumps(v)}" for n, table in base.items() for k, v in table.items()] + settings
    path.write_text("")
    return load_config(path, settings)


def test_the_release_holds_the_generator_and_says_what_is_proven_of_it(tmp_path, first):
    shutil.copytree(first, tmp_path / "first")
    config = read(tmp_path / "c.toml", tmp_path / "first")
    trainer.start(config, tmp_path / "run")
    (tmp_path / "first").rename(tmp_path / "gone")
    assert verify(tmp_path / "run").problems == ()
    generator = load_generator(tmp_path / "run")
    own, origin = generator.simulator.generator.state_dict(), load_generator(first).state_dict()
    assert own
    assert all(torch.equal(own[name], origin[name]) for name in own)
    images = generator.sample(60, seed=0)
    assert images.shape == (60, 1, 12, 12)
    assert len(images.unique(dim=0)) > 5  # of a generator that is mostly noise: many are black and white alike
    settings = json.loads((tmp_path / "run" / "release" / "config.json").read_text())["settings"]
    assert "public_generator" not in settings["data"]
    moved = read(tmp_path / "c.toml", tmp_path / "gone")
    assert moved.identity() == config.identity()  # where it lies names no other run


def test_a_teacher_beside_the_generator_is_left_out(tmp_path, first, origin):
    taught = load_generator(first)
    save_generator(tmp_path, taught.taught_by(LinearScattering(taught.image_shape, taught.classes), 2))
    digest = hashlib.sha256((tmp_path / WEIGHTS).read_bytes()).hexdigest()
    found = origin_weights(tmp_path, Origin(**origin | {"weights": digest}))
    assert found.keys() == taught.state_dict().keys()


def test_a_class_begins_with_images_of_it(first):
    origin = load_generator(first)
    simulator = GeneratorSimulator(build_described(describe(origin) | {}, first).to_empty(device="cpu"))
    simulator.generator.load_state_dict(
        {n: t for n, t in origin.state_dict().items() if n in simulator.generator.state_dict()}
    )
    z = torch.randn(300, simulator.numbers, generator=torch.Generator().manual_seed(0))
    threes = z[simulator.has_look(z, "3")]
    assert 10 < len(threes) < 60
    drawn = simulator(threes)
    assert torch.equal(drawn, simulator.generator(threes[:, 1:], torch.full((len(threes),), 3)))
    assert not simulator.train().generator.training


@pytest.mark.parametrize(("family", "choosing"), [("warp", 1), ("population", 1), ("dcgan", 0)])
def test_numbers_that_choose_stay_and_the_others_vary(family, choosing):
    config = ModelConfig(generator=family, simulator="fonts", codes=5, width=4, latent_dim=6, conditional=False)
    generator = build_generator(config, (1, 28, 28), 0, seed=1)
    simulator = GeneratorSimulator(generator)
    assert (simulator.choices, simulator.numbers) == (choosing, generator.latent_dim)
    z = torch.randn(4, simulator.numbers, generator=torch.Generator().manual_seed(0))
    varied = simulator.vary(z, torch.randn_like(z), 0.5)
    seen = []
    generator.images = lambda latent, labels: seen.append(latent) or latent
    simulator(z), simulator(varied)
    same = (seen[0] == seen[1]).all(0)
    assert sorted(torch.nonzero(same)[:, 0].tolist()) == sorted(generator.choosing)
    assert torch.equal(seen[0].sort(1).values, z.sort(1).values)  # no number is lost


def test_other_weights_than_those_of_the_config_are_refused(tmp_path, first):
    shutil.copytree(first, tmp_path / "first")
    config = read(tmp_path / "c.toml", tmp_path / "first")
    weights = tmp_path / "first" / "release" / WEIGHTS
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(ConfigError, match=r"other weights than model\.origin names"):
        trainer.start(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="does not verify"):
        read(tmp_path / "c.toml", tmp_path / "first")


def test_what_no_generator_can_do_is_refused_in_one_line(tmp_path, first, origin):
    with pytest.raises(ConfigError, match=r"is for model\.simulator = .generator"):
        read(tmp_path / "c.toml", first, model={"simulator": "fonts"})
    with pytest.raises(InputError, match="is not a release"):
        read(tmp_path / "c.toml", tmp_path)
    with pytest.raises(ConfigError, match=r"name its folder as data\.public_generator"):
        config_of(model={"simulator": "generator"})
    model = {"simulator": "generator", "origin": origin}
    config = config_of(data=FACES, model=model)
    with pytest.raises(ConfigError, match="images of 1 x 12 x 12"):
        plan_run(config, known_shape(config.data)).check()
    nested = origin | {"model": {"simulator": "generator", "origin": origin}}
    for _ in range(3000):  # far beyond what Python can nest: refused at the second level
        nested = {"model": {"simulator": "generator", "origin": nested}}
    with pytest.raises(ConfigError, match="is not a simulator itself"):
        config_of(model={"simulator": "generator", "origin": nested})
