"""A generator and a critic of the user: trained, released without their code, and refused where they may not be."""

import re
import shutil
import sys

import pytest
import torch

import idpgan
from idpgan.commands.attack import AttackOptions, attack_run
from idpgan.config import build
from idpgan.errors import ConfigError, InputError
from idpgan.kinds import opened, verify
from idpgan.metrics.source import read_images
from idpgan.models.config import ModelConfig
from idpgan.models.own import outline_of, outlined
from idpgan.own_code import path_of, resolve
from idpgan.trainer import plan, start
from tests.own import networks
from tests.own.conftest import TABLES, small

HOSTILE = {
    "Raises": "called with z of shape (B, 8) and labels (B,), KeyError",
    "RaisesWhenBuilt": "cannot be built: RuntimeError: no weights on this machine",
    "WantsMore": "missing 1 required positional argument: 'depth'",
    "MixesRecords": "network (MixesRecords): its output for one record changes",
    "BatchStatistics": "network.layers.1 (BatchNorm1d): its output for one record changes",
    "NotANumber": "pixels that are not finite",
    "OtherShape": "draws torch.float32 (8, 1, 7, 8), and the data wants floating point (8, 1, 8, 8)",
    "Unit": "no pixel below 0",
    "Chance": "random numbers of its own, or keeps state",
    "Counts": "random numbers of its own, or keeps state",
    "Remembers": "its buffers change",
    "OtherWeights": "'layers.0.weight' of OtherWeights differs between two builds of one seed",
    "NoLabels": "takes 2 positional arguments but 3 were given",
    "Weightless": "no weights that could be trained",
    "function": "makes a int, not a torch.nn.Module",
    "missing": "AttributeError",
}
HOSTILE_CRITICS = {
    "MixingCritic": "network (MixingCritic): its output for one record changes",
    "BatchNormCritic": "network.layers.3 (BatchNorm1d): it normalizes with the mean and variance of the whole batch",
    "BranchingCritic": "network (BranchingCritic): its output for one record changes",
    "SwitchingCritic": "cannot be differentiated record by record",
    "ChanceCritic": "random numbers of its own, or keeps state",
    "FrozenCritic": "'scale' is frozen",
}


@pytest.mark.parametrize("name", TABLES)
def test_an_own_network_is_trained_released_and_loaded(mine, tmp_path, name):
    finished = start(small(name), tmp_path / "run")
    assert finished.released
    found = verify(tmp_path / "run")
    assert found.problems == ()
    assert "the picture was not drawn again" in found.artifact.unchecked
    assert found.to_json()["unchecked"] == found.artifact.unchecked
    with pytest.raises(InputError, match=r"code that is not in its release, mine:Generator") as refusal:
        idpgan.load_generator(tmp_path / "run")
    assert "\n" not in str(refusal.value)
    loaded = [idpgan.load_generator(tmp_path / "run", code) for code in ("mine:Generator", networks.Generator)]
    first, second = (generator.sample(5, seed=3) for generator in loaded)
    assert torch.equal(first, second)
    assert first.shape == (5, 1, 8, 8)
    assert loaded[0].privacy.proven == finished.privacy.proven


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_generator_is_refused_in_one_line(mine, name):
    with pytest.raises(ConfigError, match=re.escape(HOSTILE[name])) as refusal:
        plan(small("wgan-gp", model={"generator": f"mine:{name}"}))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", HOSTILE_CRITICS)
def test_a_hostile_critic_is_refused_in_one_line(mine, name):
    with pytest.raises(ConfigError, match=re.escape(HOSTILE_CRITICS[name])) as refusal:
        plan(small("dp-gan", model={"critic": f"mine:{name}"}))
    assert "\n" not in str(refusal.value)


def test_a_critic_without_a_guarantee_may_mix_records(mine):
    plan(small("wgan-gp", model={"critic": "mine:MixingCritic"}))


def test_a_method_with_a_critic_of_its_own_refuses_another(mine):
    with pytest.raises(ConfigError, match="has a critic of its own"):
        plan(small("idp-gan-aggregate", model={"critic": "mine:Critic"}))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise OSError('no disk')", "OSError: no disk"),
        ("import sys\nsys.exit('bye')", "SystemExit: bye"),
        ("Generator = 3", "cannot be built: TypeError"),
        ("class Generator(", "SyntaxError"),
    ],
)
def test_a_hostile_module_is_refused_in_one_line(mine, text, told):
    mine(text)
    with pytest.raises(ConfigError, match=re.escape(told)) as refusal:
        plan(small("wgan-gp", model={"critic": "dcgan"}))
    assert "\n" not in str(refusal.value)


def test_a_class_in_python_stands_for_its_path():
    model = ModelConfig(generator=networks.Generator)
    assert model.generator == "tests.own.networks:Generator"
    assert resolve(model.generator, "model.generator") is networks.Generator
    assert path_of("dcgan") == "dcgan"

    class Local:
        """No other process could find it."""

    with pytest.raises(ConfigError, match="has no name at the top of a module"):
        build(ModelConfig, {"generator": Local}, "the test")


def test_images_under_test_are_drawn_by_the_code_that_is_named(mine, tmp_path):
    run = start(small("wgan-gp"), tmp_path / "run").run
    with pytest.raises(InputError, match="never imported"):
        opened(run.path)
    assert len(read_images(opened(run.path, "mine:Generator"), (1, 8, 8), (), num=5)) == 5


def test_a_module_with_weights_begins_with_them(mine, tmp_path):
    text = "\ntorch.manual_seed(7)\nready = Generator(num_classes=10)\n"
    mine((tmp_path / "mine.py").read_text() + text)
    finished = start(small("wgan-gp", model={"generator": "mine:ready"}, training={"steps": 1}), tmp_path / "run")
    begun, trained = sys.modules["mine"].ready, idpgan.load_generator(finished.run.path, "mine:Generator").network
    distance = (begun.layers[0].weight - trained.layers[0].weight).abs().max()
    assert distance < 1e-3  # no generator step yet
    other = networks.Generator(num_classes=10).layers[0].weight
    assert (other - trained.layers[0].weight).abs().max() > 0.1


def test_no_code_of_a_release_is_imported(mine, tmp_path, monkeypatch):
    """The module that the release names is there, and would leave a trace if anything imported it."""
    run = start(small("wgan-gp"), tmp_path / "run").run
    release = tmp_path / "received"
    shutil.copytree(run.release, release)
    mine(f"import pathlib\npathlib.Path({str(tmp_path / 'trace')!r}).touch()\nraise RuntimeError('imported')")
    assert verify(release).consistent
    for load in (idpgan.load_generator, idpgan.SyntheticDataset):
        with pytest.raises(InputError, match="never imported"):
            load(release)
    assert not (tmp_path / "trace").exists()
    with pytest.raises(ConfigError, match="imported"):  # the user's own word is
        idpgan.load_generator(release, "mine:Generator")
    assert (tmp_path / "trace").exists()


def test_other_code_and_needless_code_are_refused(mine, tmp_path):
    run = start(small("wgan-gp"), tmp_path / "run").run
    with pytest.raises(InputError, match="Critic has other weights than this release"):
        idpgan.load_generator(run.path, networks.Critic)
    with pytest.raises(InputError, match=r"not finite"):
        idpgan.load_generator(run.path, networks.NotANumber)
    ours = start(
        small("wgan-gp", model={"generator": "warp", "codes": 5}, training={"steps": 1}), tmp_path / "ours"
    ).run
    with pytest.raises(InputError, match="needs no code of your own"):
        idpgan.load_generator(ours.path, networks.Generator)


def test_the_picture_of_a_release_keeps_its_size(mine, tmp_path):
    release = start(small("wgan-gp"), tmp_path / "run").run.release
    other = start(small("wgan-gp", release={"samples": 10}), tmp_path / "other").run.release
    shutil.copy(other / "samples.png", release / "samples.png")
    assert not verify(release).consistent


def test_an_attack_on_the_run_uses_the_code_of_its_config(mine, tmp_path):
    run = start(small("wgan-gp"), tmp_path / "run").run
    attacked = attack_run(run.path, AttackOptions(attacks=("critic-score",), most=20, samples=30, device="cpu"))
    assert attacked is not None


@pytest.mark.parametrize(
    "table",
    [
        None,
        {},
        [],
        {"a": []},
        {"a": {"shape": [3], "dtype": "float31"}},
        {"a": {"shape": [-1], "dtype": "float32"}},
        {"a": {"shape": [True], "dtype": "float32"}},
        {"a": {"shape": [1 << 41], "dtype": "float32"}},
        {"a": {"shape": [2] * 9, "dtype": "float32"}},
        {"a": {"shape": [3], "dtype": "float32", "code": "os:system"}},
        {"a" * 301: {"shape": [3], "dtype": "float32"}},
        {f"w{i}": {"shape": [1 << 31], "dtype": "float32"} for i in range(3)},
    ],
)
def test_a_forged_table_of_weights_is_refused(table):
    with pytest.raises(InputError, match="tensors"):
        outlined(table)


def test_an_outline_is_what_it_outlines():
    weights = networks.Generator(num_classes=3).state_dict()
    assert outline_of(outlined(outline_of(weights))) == outline_of(weights)
    assert outline_of(weights)["layers.0.weight"] == {"shape": [32, 8], "dtype": "float32"}
