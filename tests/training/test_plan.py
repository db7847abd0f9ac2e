"""What a plan refuses before anything is charged, whatever the method."""

import re

import pytest

from idpgan.errors import ConfigError
from idpgan.privacy import Ledger
from idpgan.training.config import build_config, load_method
from idpgan.training.plan import plan_run
from tests.training.toy import CPU, digits

SAMPLED = {"epsilon": 50.0, "delta": 1e-5, "sample_rate": 1 / 1295, "noise_multiplier": 2.0}
METHODS = {
    "dp-gan": ({"critic_steps_per_generator_step": 1}, SAMPLED),
    "dp-gan, opacus": ({"critic_steps_per_generator_step": 1, "engine": "opacus"}, SAMPLED),
    "wgan-gp": ({"critic_steps_per_generator_step": 1}, {}),
}


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
