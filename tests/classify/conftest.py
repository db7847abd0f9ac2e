"""Finished runs of both private classifiers, and small configs of them."""

import shutil

import pytest

from idpgan.training.config import build_config

DIGITS = {"data": {"name": "digits"}, "privacy": {"epsilon": 3.0, "delta": 1e-5}}
SMALL = {
    "scattering-linear": {"training": {"steps": 6, "tick_steps": 2}},
    "dp-sgd": {"method": {"width": 4}, "training": {"steps": 6, "batch_size": 60, "tick_steps": 2}},
}


def config_of(name, **sections):
    """A run of six steps; ``sections`` are put in."""
    table = {**DIGITS, **SMALL[name]}
    for section, keys in {"method": {"name": name}, **sections}.items():
        table[section] = {**table.get(section, {}), **keys}
    table["method"]["name"] = name
    return build_config(table, "the test")


@pytest.fixture(scope="session", params=sorted(SMALL))
def finished(request, small_run):
    """A finished run of each method, at epsilon 2; not to be changed."""
    return small_run(request.param)


@pytest.fixture
def release(finished, tmp_path):
    """A copy of its release, to be tampered with."""
    return shutil.copytree(finished / "release", tmp_path / "release")
