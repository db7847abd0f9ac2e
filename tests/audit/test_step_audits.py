"""dp-gan, alone and after a release: the real steps follow their law, are never caught, and every mistake is."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from idpgan.audit.entry import Request
from idpgan.audit.gradient_canaries import canary_case, canary_images
from idpgan.commands.audit import method_case
from idpgan.commands.canaries import gradients_once
from idpgan.errors import InputError
from idpgan.privacy import DPSGDPlan, Noise, Relation, Unit, layer_gradients
from idpgan.privacy.sums import CellSums
from idpgan.synthesis.dp_gan import Settings, canaries
from idpgan.synthesis.sums_audit import sums_case
from idpgan.training.config import section_of

DELTA = 0.01  # where few runs show a violation; the law is the same at every delta
PLAN = canaries(section_of(Settings, "method")(), sample_rate=0.3, noise_multiplier=0.9, count=5)
RUNS = 5000
CONFIDENCE = 1 - 0.001 / 8


@pytest.fixture(scope="module")
def case():
    return canary_case("dp-gan", PLAN, Request(10.0, DELTA))


@pytest.fixture(scope="module")
def audited(case):
    return case.run(RUNS, confidence=CONFIDENCE, seed=1)


def drawn(present, sigma, seed=0, runs=4000):
    """Scores and ranges as the law says, without a line of ours."""
    rng = np.random.default_rng(seed)
    coins = rng.random((runs, PLAN.count)) < PLAN.sample_rate * present
    seen = coins + sigma * rng.normal(size=coins.shape)
    score = np.log(1 - 0.3 + 0.3 * np.exp((seen - 0.5) / PLAN.noise_multiplier**2)).sum(1)
    return score, np.ptp(seen, axis=1)


@pytest.mark.parametrize("present", [False, True])
def test_the_real_steps_follow_the_law(present):
    played = PLAN.play(torch.full((2000,), present), Noise.fixed(5)).numpy()
    for column, wanted, wrong in zip(played.T, drawn(present, 0.9), drawn(present, 0.72), strict=True):
        assert ks_2samp(column, wanted).pvalue > 1e-3
        assert ks_2samp(column, wrong).pvalue < 1e-4  # a fifth less noise
    assert ks_2samp(played[:, 0], drawn(not present, 0.9)[0]).pvalue < 1e-6


def test_a_null_record_adds_nothing_to_any_step():
    """The first canary's image is all black, as a null record's pixels are."""
    once = canaries(section_of(Settings, "method")(), 1.0, 0.01, 1)
    assert canary_images(1).images.sum() == 0
    score = once.play(torch.tensor([False, True, False, False]), Noise.fixed(1))[:, 0]
    assert (score > 0).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    "changed",
    [
        {"loss": "wgan-gp"},
        {"fakes": "separate"},
        {"clip_norm": 0.03},
        {"augment": 1.0},
        {"engine": "opacus"},
        {"engine": "opacus", "secure_mode": True, "fakes": "separate", "loss": "hinge"},
    ],
)
def test_every_variant_of_the_step_clips_its_canary_to_the_norm(changed):
    once = canaries(section_of(Settings, "method")(**changed), 1.0, 1e-3, 1)
    score = once.play(torch.arange(200) % 2 == 1, Noise.fixed(2))[:, 0]
    # log-likelihood ratio (y - 1/2) / sigma^2 of y = 0 and y = 1
    assert torch.allclose(score[1::2] * 1e-6, torch.tensor(0.5).double(), atol=0.01)
    assert torch.allclose(score[::2] * 1e-6, torch.tensor(-0.5).double(), atol=0.01)


def test_the_steps_are_audited_to_three_quarters_and_never_above(audited):
    assert audited.result.epsilon_lower <= audited.case.proven.epsilon
    assert 0.75 * audited.proven_mu < audited.result.separation.mu_lower <= audited.proven_mu
    assert not audited.violation
    assert audited.to_json()["epsilon_if_gaussian"] == pytest.approx(audited.implied_epsilon)
    assert audited.result.statistic == "exact log-likelihood ratio"


def changing(monkeypatch, name, **changes):
    """Let one part of the plan work with other numbers than it is priced by."""
    part = getattr(DPSGDPlan, name)

    def changed(self, *args, **options):
        numbers = {key: change(getattr(self, key)) for key, change in changes.items()}
        return part(dataclasses.replace(self, **numbers), *args, **options)

    monkeypatch.setattr(DPSGDPlan, name, changed)


def half_the_noise(monkeypatch):
    changing(monkeypatch, "noisy_step", noise_multiplier=lambda sigma: sigma / 2)


def clip_forgotten(monkeypatch):
    monkeypatch.setattr(layer_gradients, "SLACK", -9.0)  # norms are clipped to C (1 - SLACK)


def everybody_in(monkeypatch):
    changing(monkeypatch, "sample", sample_rate=lambda _: 1.0)


def noise_drawn_once(monkeypatch):
    drawn, step, fresh = {}, DPSGDPlan.noisy_step, DPSGDPlan.grid_noise

    def reused(self, optimizer, weights, sums, noise):
        def once(plan, count, noise):
            return drawn.setdefault(optimizer, fresh(plan, count, noise))  # of one training

        with monkeypatch.context() as patch:
            patch.setattr(DPSGDPlan, "grid_noise", once)
            step(self, optimizer, weights, sums, noise)

    monkeypatch.setattr(DPSGDPlan, "noisy_step", reused)


@pytest.mark.parametrize("broken", [half_the_noise, clip_forgotten, everybody_in, noise_drawn_once])
def test_a_mistake_in_the_steps_is_a_violation(case, monkeypatch, broken):
    broken(monkeypatch)
    audited = case.run(RUNS, confidence=CONFIDENCE, seed=2)
    assert audited.violation
    assert audited.result.epsilon_lower > 1.1 * case.proven.epsilon
    assert (audited.result.statistic == "range over the steps") == (broken is noise_drawn_once)


def sums_of(epsilon):
    terms = {"unit": Unit.IMAGE, "relation": Relation.ZERO_OUT}
    return CellSums.calibrated(3, 8, "gaussian", epsilon=epsilon, delta=DELTA, **terms)


def test_a_release_and_its_steps_are_audited_together(case, audited, monkeypatch):
    sums = sums_of(2.0)
    joined = sums_case("diffusion", sums, Request(10.0, DELTA), steps=PLAN)
    assert joined.proven.epsilon > case.proven.epsilon
    both = joined.run(RUNS, confidence=CONFIDENCE, seed=3)
    assert both.result.separation.mu_lower > audited.result.separation.mu_lower + 0.1
    assert both.result.epsilon_lower <= joined.proven.epsilon
    mechanism = CellSums.mechanism
    fifth = property(lambda self: dataclasses.replace(mechanism.fget(self), scale=mechanism.fget(self).scale // 5))
    monkeypatch.setattr(CellSums, "mechanism", fifth)  # a fifth of the noise in the release
    wrong = dataclasses.replace(sums_case("diffusion", sums, Request(10.0, DELTA), steps=PLAN), proven=joined.proven)
    assert wrong.run(RUNS, confidence=CONFIDENCE, seed=3).violation


def test_one_training_with_many_canaries_stays_below_the_proof():
    case = canary_case("dp-gan", PLAN, Request(10.0, 1e-5))
    found = case.run_once(2000, seed=1)
    assert 0.8 < found.epsilon_lower < found.fdp.epsilon_lower <= case.proven.epsilon
    assert found.fdp.law == "the mechanism's own"
    for number in (5, 10**9, 1.5, True):
        with pytest.raises(InputError, match="canaries = "):
            case.run_once(number)


def test_one_release_of_sums_with_many_canaries(monkeypatch):
    """Each canary has a cell of its own; Gaussian sums have a Gaussian law."""
    terms = {"unit": Unit.IMAGE, "relation": Relation.ZERO_OUT}
    sums = CellSums.calibrated(3, 8, "gaussian", epsilon=4.0, delta=1e-5, **terms)
    case = sums_case("idp-gan-aggregate", sums, Request(4.0, 1e-5))
    found = gradients_once(case, 5000, seed=1)
    result = found.results["sums"]
    assert result.fdp.law == "Gaussian"
    assert 1 < result.epsilon_lower < result.fdp.epsilon_lower <= case.proven.epsilon
    assert not found.violation
    assert any("sums, f-DP: epsilon >=" in line and "if the law is Gaussian" in line for line in found.lines())
    mechanism = CellSums.mechanism
    half = property(lambda self: dataclasses.replace(mechanism.fget(self), scale=mechanism.fget(self).scale // 2))
    monkeypatch.setattr(CellSums, "mechanism", half)
    wrong = sums_case("idp-gan-aggregate", sums, Request(4.0, 1e-5))
    wrong = dataclasses.replace(wrong, events=case.events, proven=case.proven)
    again = gradients_once(wrong, 5000, seed=1)
    assert again.results["sums"].epsilon_lower < case.proven.epsilon < again.results["sums"].fdp.epsilon_lower
    assert again.violation  # by the second bound alone


SLOW = [pytest.param(name, "the mechanism's own", marks=pytest.mark.slow) for name in ("diffusion", "dp-sgd")]


@pytest.mark.parametrize(("method", "law"), [("scattering-linear", "Gaussian"), ("evolution", "Gaussian"), *SLOW])
def test_all_methods_with_steps_or_sums_have_both_bounds(method, law):
    case = method_case(method, Request(10.0))
    (result,) = gradients_once(case, 400, seed=1).results.values()
    assert result.fdp.law == law
    assert 0.8 < result.epsilon_lower < result.fdp.epsilon_lower <= case.proven.epsilon


def test_a_long_plan_is_simulated_in_part_and_says_so():
    long = dataclasses.replace(PLAN, sample_rate=0.005, count=100_000)
    assert long.simulated == 10_000
    assert "10,000 of 100,000 steps were simulated" in long.notes[-1]
    case = canary_case("dp-gan", long, Request(10.0, 1e-5))
    assert case.runs == case.rows == 8000
    assert PLAN.simulated == PLAN.count
    assert not any("simulated" in note for note in PLAN.notes)
    assert math.isclose(PLAN.event.noise_multiplier, 0.9)
