"""`data.public_share` takes protection away; where nothing reads the public images, it is refused."""

from pathlib import Path

import pytest

from idpgan.data.load import known_shape
from idpgan.errors import ConfigError
from idpgan.trainer import load_config
from idpgan.training.plan import plan_run

CONFIGS = Path(__file__).parents[2] / "configs"
SHARE = ["data.public_share=0.1", "data.confirm_public=true"]
SIGMA = "privacy.noise_multiplier=2.0"  # else it is calibrated, for seconds


def checked(name, *settings):
    config = load_config(CONFIGS / f"digits-{name}.toml", [*SHARE, *settings])
    plan_run(config, known_shape(config.data)).check()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dp-gan", [SIGMA]),
        ("wgan-gp", []),
        ("idp-gan-published", []),
        ("evolution", []),
        ("aggregate", ["method.pretrain_steps=0"]),
        ("dp-sgd", [SIGMA]),
        ("dssgd", []),
    ],
)
def test_a_share_that_nothing_reads_is_refused(name, settings):
    with pytest.raises(ConfigError, match=r"data\.public_share = 0\.1 takes all protection.*data\.public_share = 0\."):
        checked(name, *settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("idp-gan-published", ["method.allocation=relevance"]),
        ("aggregate", []),
        ("gaussian", []),
        ("arden", []),
        ("evolution", ["model.simulator=public"]),
    ],
)
def test_a_share_that_is_read_passes(name, settings):
    checked(name, *settings)
