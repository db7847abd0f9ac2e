"""One budget, split: the shares add up, and so does what releases on them show of a record."""

import math

import pytest

from idpgan.data.load import DataShape, Sizes
from idpgan.errors import ConfigError
from idpgan.synthesis.sums import SumsRelease
from idpgan.synthesis.teacher import noise_on
from idpgan.training.config import build_config
from idpgan.training.plan import plan_run

TEMPLATE, TEACHER, STEPS = 0.04, 0.3, 0.2


def share_of_sums(teacher, steps, drawing="faces"):
    method = {"name": "gaussian", "teacher_share": teacher, "template_share": TEMPLATE}
    model = {"drawing": drawing, "generator": "gaussian"}
    table = {"method": method, "model": model, "privacy": {"epsilon": 1.0, "delta": 1e-5}}
    shape = DataShape(Sizes(0, 100, 0, 0), (1, 8, 8), ("a", "b"))
    return SumsRelease(plan_run(build_config(table, "the test"), shape), 10, steps_share=steps).share


def test_releases_on_all_shares_are_as_private_as_one():
    """Squared signals of Gaussian releases add up: 1 / m^2 of everything together."""
    parts = [(TEMPLATE, 3), (share_of_sums(TEACHER, STEPS), 1), (TEACHER, 80), (STEPS, 400)]
    assert sum(share for share, _ in parts) == pytest.approx(1)
    signal = sum(count / noise_on(share, 2.5, count) ** 2 for share, count in parts)
    assert signal == pytest.approx(1 / 2.5**2)
    assert share_of_sums(0.0, 0.0, drawing="plain") == 1


def test_sampled_steps_have_the_signal_of_their_share_in_the_limit():
    """The variance of the privacy loss of T steps at rate q is q^2 T (e^(1 / sigma^2) - 1)."""
    sigma = noise_on(0.2, 2.5, 400, 0.01)
    assert 0.01**2 * 400 * math.expm1(1 / sigma**2) == pytest.approx(0.2 / 2.5**2)
    assert sigma < noise_on(0.2, 2.5, 400)  # coins save noise


@pytest.mark.parametrize("name", ["dp-gan", "dp-sgd", "diffusion", "scattering-linear"])
@pytest.mark.parametrize("clip_norm", [0.0, 1e-7, 1e7, math.inf, math.nan])
def test_a_clip_norm_beyond_the_proof_is_refused_by_its_key(name, clip_norm):
    privacy = {"epsilon": 1.0, "delta": 1e-5} | ({"sample_rate": 0.1} if name == "dp-gan" else {})
    model = {"model": {"generator": "diffusion"}} if name == "diffusion" else {}
    table = {"method": {"name": name, "clip_norm": clip_norm}, "privacy": privacy, **model}
    with pytest.raises(ConfigError, match=r"method\.clip_norm"):
        build_config(table, "the test")
    build_config({**table, "method": {"name": name, "clip_norm": 1e-6}}, "the test")
