"""What a plan refuses before anything is charged, whatever the method."""

import os
import re
import signal

import pytest
import torch

from idpgan.__main__ import main as command_line
from idpgan.device import computing_on
from idpgan.errors import ConfigError
from idpgan.privacy import Ledger
from idpgan.training.config import build_config, load_method
from idpgan.training.plan import plan_run
from tests.training.toy import CPU, NoisyGan, digits, tiny_config, train_on_digits

SAMPLED = {"epsilon": 50.0, "delta": 1e-5, "sample_rate": 1 / 1295, "noise_multiplier": 2.0}
METHODS = {
    "dp-gan": ({"critic_steps_per_generator_step": 1}, SAMPLED),
    "dp-gan, opacus": ({"critic_steps_per_generator_step": 1, "engine": "opacus"}, SAMPLED),
    "wgan-gp": ({"critic_steps_per_generator_step": 1}, {}),
}


@pytest.fixture
def wide(monkeypatch):
    """A machine with three threads, and no word of its user on them."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with computing_on(3):
        yield monkeypatch


def test_small_steps_take_one_thread_and_the_user_has_the_last_word(wide):
    def threads(batch_size, width=64):
        table = {"model": {"width": width}, "method": {"name": "wgan-gp"}, "training": {"batch_size": batch_size}}
        return plan_run(build_config(table, "test"), digits().shape).step_threads

    assert (threads(200, 16), threads(255), threads(256)) == (1, 1, 3)  # feature maps of 8 x 8
    wide.setenv("OMP_NUM_THREADS", "3")
    assert threads(200, 16) == 3


def test_what_is_released_and_the_steps_have_threads_of_their_own(wide, tmp_path):
    """One read before the steps is long, also where these are small; afterwards the caller has his threads."""
    seen = []

    class Watched(NoisyGan):
        def prepare(self):
            seen.append(("prepare", torch.get_num_threads()))
            super().prepare()

        def settle(self, exact):
            seen.append(("settle", torch.get_num_threads()))
            return super().settle(exact)

        def step(self, step):
            seen.append(("step", torch.get_num_threads()))
            return super().step(step)

    with computing_on(1):
        train_on_digits(tmp_path / "run", tiny_config(steps=1, tick_steps=1), kind=Watched, prepare_threads=3)
    assert seen == [("prepare", 3), ("settle", 1), ("step", 1)]
    assert torch.get_num_threads() == 3


def test_the_command_lets_threads_wait_without_computing_unless_the_user_says_otherwise(monkeypatch, capsys):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    for said, policy in ((None, "passive"), ("active", "active")):
        monkeypatch.setenv("OMP_WAIT_POLICY", said or "")
        if said is None:
            monkeypatch.delenv("OMP_WAIT_POLICY")
        with pytest.raises(SystemExit):
            command_line(["--version"])
        assert os.environ["OMP_WAIT_POLICY"] == policy
    assert capsys.readouterr().out.startswith("idpgan ")


def config_of(method, generator, batch_size):
    own, privacy = METHODS[method]
    table = {
        "model": {"width": 4, "latent_dim": 4, "generator": generator},
        "method": {"name": method.split(",")[0], **own},
        "training": {"steps": 1, "tick_steps": 1, "batch_size": batch_size, "device": "cpu"},
        "privacy": privacy,
    }
    return build_config({key: part for key, part in table.items() if part}, "test")


@pytest.mark.parametrize("generator", ["warp", "tests.own.networks:Generator"])
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_of_one_image_is_refused_where_the_generator_normalizes_over_batches(method, generator):
    plan = plan_run(config_of(method, generator, 1), digits().shape)
    with pytest.raises(ConfigError, match=re.escape("training.batch_size = 1")) as refused:
        plan.check()
    assert "to 2 or more" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("generator", "batch_size"), [("warp", 2), ("dcgan", 1)])
@pytest.mark.parametrize("method", METHODS)
def test_what_is_not_refused_takes_a_step(method, generator, batch_size):
    config = config_of(method, generator, batch_size)
    plan = plan_run(config, digits().shape)
    plan.check()
    run = load_method(config.method.name).Method(plan, digits(), ledger=Ledger.of(plan.price), device=CPU)
    run.prepare()
    assert run.step(1)["generator_loss"].isfinite()
