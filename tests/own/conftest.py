"""A module of the user's in a folder of its own, and the small runs that use it."""

import importlib
import sys
from pathlib import Path

import pytest

from idpgan.training.config import build_config
from tests.own import networks

TABLES = {
    "wgan-gp": {"model": {"critic": "mine:Critic"}, "training": {"batch_size": 26}},
    "dp-gan": {
        "model": {"critic": "mine:Critic"},
        "method": {"critic_steps_per_generator_step": 1},
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.02, "noise_multiplier": 2.0},
        "training": {"batch_size": 26},
    },
    "idp-gan-aggregate": {
        "method": {"moments": 6, "fourier": 20, "metric_steps": [2]},
        "privacy": {"epsilon": 2.0, "delta": 1e-5},
        "training": {"batch_size": 20},
    },
}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write the user's modules, so that the next import of them is a fresh one; returns the writer."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two versions of one second would be taken for one

    def write(text, name="mine"):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        forget()

    def forget():
        for name in ("mine", "helper"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()

    write(Path(networks.__file__).read_text(encoding="utf-8"))
    yield write
    forget()


def small(name, **tables):
    """A run of a method on the digits, with the user's generator: six steps, a saved state every two."""
    table = {"data": {"name": "digits"}, **TABLES[name]}
    table["method"] = {"name": name, **table.get("method", {})}
    table["model"] = {"generator": "mine:Generator", "latent_dim": 8, **table.get("model", {})}
    table["training"] = {"steps": 6, "tick_steps": 2, "device": "cpu", **table["training"]}
    for section, changes in tables.items():
        table[section] = {**table.get(section, {}), **changes}
    return build_config(table, "the test")
