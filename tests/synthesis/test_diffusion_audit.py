"""Diffusion under attack: its real steps follow their law, and its loss tells members where there is no noise."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from idpgan.attacks.knowledge import Knowledge
from idpgan.attacks.losses import denoising_loss
from idpgan.attacks.registry import ATTACKS
from idpgan.audit.entry import Request
from idpgan.data.images import Images
from idpgan.methods import METHODS, load_audit
from idpgan.privacy import Noise
from idpgan.synthesis import edm
from idpgan.synthesis.diffusion import Settings, canaries
from idpgan.training.config import build_config, section_of
from tests.training.toy import CPU, digits

Section = section_of(Settings, "method")
PLAN = canaries(Section(), draws=2, sample_rate=0.3, noise_multiplier=0.9, count=3)


def drawn(present, sigma, runs=4000):
    """Scores as the law says, without a line of ours."""
    rng = np.random.default_rng(0)
    seen = (rng.random((runs, 3)) < 0.3 * present) + sigma * rng.normal(size=(runs, 3))
    return np.log(1 - 0.3 + 0.3 * np.exp((seen - 0.5) / PLAN.noise_multiplier**2)).sum(1)


@pytest.mark.parametrize("present", [False, True])
def test_the_real_steps_follow_the_law(present):
    played = PLAN.play(torch.full((1000,), present), Noise.fixed(5)).numpy()
    assert ks_2samp(played[:, 0], drawn(present, 0.9)).pvalue > 1e-3
    assert ks_2samp(played[:, 0], drawn(present, 0.65)).pvalue < 1e-4  # less noise
    assert ks_2samp(played[:, 0], drawn(not present, 0.9)).pvalue < 1e-6
    assert (played[:, 1] > 0).all()  # fresh noise at every step


def noise_ratio(multiplier):
    """Spread of what the method's steps release of absent records, over sigma as planned: 7,500 numbers."""
    step = dataclasses.replace(PLAN, noise_multiplier=multiplier).training(
        torch.zeros(2500, dtype=torch.bool), Noise.fixed(7)
    )
    return torch.cat([step(number) for number in (1, 2, 3)]).std() / PLAN.noise_multiplier


def test_a_step_has_the_noise_that_is_charged():
    assert abs(noise_ratio(PLAN.noise_multiplier) - 1) < 0.04  # five standard errors
    assert noise_ratio(0.9 * PLAN.noise_multiplier) < 0.96


def test_a_null_record_adds_nothing_to_any_step():
    once = dataclasses.replace(PLAN, sample_rate=1.0, noise_multiplier=0.01, count=1)
    score = once.play(torch.tensor([False, True, False, False]), Noise.fixed(1))[:, 0]
    assert (score > 0).tolist() == [False, True, False, False]


@pytest.mark.slow  # the accountant searches
def test_the_case_holds_sums_and_steps():
    case = load_audit("diffusion").case("diffusion", Request(2.0))
    assert [event.kind for event in case.events] == ["gaussian", "poisson-gaussian"]
    assert 0.97 * 2 <= case.proven.epsilon <= 2


def test_the_steps_of_adapters_are_played_as_those_of_a_run_without_a_base():
    adapting = canaries(Section(start_share=0.0), 2, PLAN.sample_rate, PLAN.noise_multiplier, PLAN.count)
    present = torch.arange(40) % 2 == 0
    found, expected = (plan.play(present, Noise.fixed(3)) for plan in (adapting, PLAN))
    assert torch.equal(found, expected)


def test_edm_has_nothing_to_audit():
    assert "raw images without noise" in METHODS["edm"].nothing_to_audit


def test_the_loss_finds_members_of_a_denoiser_that_learned_them_by_heart():
    model = {"generator": "diffusion", "latent_dim": 20, "width": 8, "conditional": False}
    table = {"model": model, "method": {"name": "edm"}, "training": {"steps": 150, "batch_size": 64, "device": "cpu"}}
    split = digits()
    few = dataclasses.replace(split, private=split.private.select(torch.arange(4)))
    method = edm.Method.of(build_config(table, "test"), few, device=CPU)
    for step in range(1, 151):
        method.step(step)
    members, others = few.private.images, split.holdout.images[:100]
    row = ATTACKS["diffusion-loss"]
    assert row.missing(Knowledge()) == "needs the denoiser inside a released generator"
    knowledge = Knowledge(denoiser=method.generator.denoising_loss)
    scores = row.scores(Images(torch.cat([members, others])), knowledge)
    assert (scores[:4, None] > scores[4:]).float().mean() > 0.85
    again = denoising_loss(members, None, method.generator.denoising_loss)
    assert torch.allclose(scores[:4], again, atol=1e-5)  # the same noise for every image
