"""Finished runs of a second, trained once for all tests of releases."""

import shutil

import pytest

from idpgan import trainer
from idpgan.training.config import build_config

SMALL = ["training.tick_steps=10", "model.width=4", "model.latent_dim=4", "release.samples=10"]
AGGREGATE = ["method.moments=4", "method.fourier=8", "training.steps=2", "model.codes=4", *SMALL]
BUDGET = [
    "method.name=dp-gan",
    "model.generator=dcgan",
    "privacy.epsilon=4.0",
    "privacy.delta=1e-5",
    "privacy.sample_rate=1.0",
    "privacy.noise_multiplier=2.0",
    "training.steps=10",
    "training.batch_size=1295",
    *SMALL,
]


@pytest.fixture(scope="session")
def aggregate_run(tmp_path_factory):
    """A private run: idp-gan-aggregate on the embedded digits."""
    return train(tmp_path_factory.mktemp("report") / "aggregate", AGGREGATE)


@pytest.fixture(scope="session")
def unreleased(tmp_path_factory):
    """A run that is ready to be released: its folder, and what `write_release` is given beside it."""
    held = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "write_release", lambda _, *rest: held.extend(rest))
        path = train(tmp_path_factory.mktemp("report") / "unreleased", AGGREGATE)
    return path, held


@pytest.fixture
def release(aggregate_run, tmp_path):
    """A copy of its release, to be tampered with."""
    return shutil.copytree(aggregate_run / "release", tmp_path / "release")


def train(path, settings, table=None):
    """Train a run; `table` replaces the default config."""
    from idpgan.config import apply_overrides, load_table

    config = build_config(apply_overrides(load_table(None) if table is None else table, settings), "the test")
    return trainer.start(config, path).run.path
