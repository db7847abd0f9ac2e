"""Releases of the GANs: sound ones are never caught, the one that shares its noise is, and runs are audited as set."""

import dataclasses
import json
import math

import pytest
import torch

from idpgan.audit.entry import Request
from idpgan.audit.statistics import Nearness
from idpgan.commands.audit import method_case
from idpgan.errors import InputError
from idpgan.models.perturbed import PixelNoise
from idpgan.privacy import Guarantee, Noise, Relation, Unit
from idpgan.privacy.sums import CellSums
from idpgan.privacy.tradeoff import gaussian_mu
from idpgan.synthesis.idp_published import pixels_case
from idpgan.synthesis.sums_audit import sums_case

REPLACE = Relation.REPLACE_ONE
SOUND = [
    ("idp-gan-aggregate", Request(1.0, law="laplace"), 0.9),
    ("idp-gan-aggregate", Request(1.0, law="laplace", relation=REPLACE), 0.9),
    ("idp-gan-aggregate", Request(1.0, law="laplace", unit=Unit.PERSON), 0.9),
    ("idp-gan-aggregate", Request(4.0), 1.3),
    ("idp-gan-aggregate", Request(4.0, relation=REPLACE), 1.3),
    ("idp-gan-published", Request(0.3, draw="once"), 0.0),
]
RUNS = {"idp-gan-published": 4000}
CONFIDENCE = 1 - 0.001 / len(SOUND)


@pytest.mark.parametrize(("name", "request_", "least"), SOUND)
def test_a_sound_release_is_never_caught(name, request_, least):
    audited = method_case(name, request_).run(RUNS.get(name, 60_000), confidence=CONFIDENCE, seed=3)
    assert least <= audited.result.epsilon_lower <= audited.case.proven.epsilon
    assert not audited.violation


def test_the_aggregate_is_audited_to_nine_tenths_of_its_mu_at_epsilon_ten():
    audited = method_case("idp-gan-aggregate", Request(10.0)).run(60_000, seed=3)
    proven = gaussian_mu(audited.case.proven.epsilon, 1e-5)
    assert audited.proven_mu == proven
    assert 0.9 * proven <= audited.result.separation.mu_lower <= proven
    assert audited.result.epsilon_lower < audited.implied_epsilon < 10


def test_noise_shared_by_a_batch_goes_beyond_the_claim_to_the_cap():
    audited = method_case("idp-gan-published", Request(1.0, draw="per_batch")).run(2000, seed=1)
    assert audited.result.epsilon_lower == audited.result.cap > 5
    assert (audited.exceeds_claim, audited.violation) == (True, False)
    assert "claim is false" in audited.verdict
    assert audited.to_json()["proven"] == "inf"


def test_noise_drawn_once_or_per_step_goes_beyond_the_claim():
    per_step = method_case("idp-gan-published", Request(1.0, draw="per_step")).run(1500, seed=1)
    once = method_case("idp-gan-published", Request(1.0, draw="once")).run(5000, seed=1)
    assert 1 < once.result.epsilon_lower < per_step.result.epsilon_lower
    assert not once.violation
    assert not per_step.violation


def halved(mechanism):
    return dataclasses.replace(mechanism, scale=mechanism.scale // 2)


def test_half_the_noise_in_cell_sums_is_a_violation(monkeypatch):
    """The audit of a release goes through its own code: what is wrong there shows."""
    sums = CellSums.calibrated(3, 8, "laplace", epsilon=1.0, delta=0.0, unit=Unit.IMAGE, relation=Relation.ZERO_OUT)
    mechanism = CellSums.mechanism
    assert not sums_case("sums", sums, Request(1.0)).run(20_000, seed=1).violation
    proven = sums_case("sums", sums, Request(1.0)).proven
    monkeypatch.setattr(CellSums, "mechanism", property(lambda self: halved(mechanism.fget(self))))
    broken = dataclasses.replace(sums_case("sums", sums, Request(1.0)), proven=proven).run(20_000, seed=1)
    assert broken.violation
    assert broken.verdict.startswith("VIOLATION")
    assert broken.result.epsilon_lower > 1.5


def test_a_clip_forgotten_in_cell_sums_is_a_violation(monkeypatch):
    sums = CellSums.calibrated(3, 8, "laplace", epsilon=1.0, delta=0.0, unit=Unit.IMAGE, relation=Relation.ZERO_OUT)

    def unclipped(self, vectors, cells, weights):
        total = torch.zeros(self.num_cells, self.dimensions, dtype=torch.float64)
        return total.index_add(0, cells, (vectors.double() / self.grid.step).round())

    monkeypatch.setattr(CellSums, "_exact_sum", unclipped)
    assert sums_case("sums", sums, Request(1.0)).run(20_000, seed=1).result.epsilon_lower > 1.5


def test_the_simulated_release_is_that_of_the_whole_call():
    """One call of `CellSums` on the case's two data sets: same law of the sum that differs."""
    sums = CellSums.calibrated(1, 2, "gaussian", epsilon=2.0, delta=1e-5, unit=Unit.IMAGE, relation=Relation.ZERO_OUT)
    case, noise, runs = sums_case("sums", sums, Request(2.0, 1e-5)), Noise.fixed(4), 400
    vectors = torch.tensor([[0.25, 0.25], [3.0, 0.0]]).double()  # bystander and target
    whole = torch.stack([sums.release([(vectors, torch.zeros(2).long(), None)], noise) for _ in range(runs)])[:, 0, 0]
    single = case.release(case.pair.neighbor.expand(runs, 1, 2), noise)[:, 0, 0]
    error = 5 * sums.noise_std / math.sqrt(runs)
    assert whole.mean().item() == pytest.approx(1.25, abs=error)
    assert single.mean().item() == pytest.approx(1.25, abs=error)
    assert single.std().item() == pytest.approx(whole.std().item(), rel=0.2)


def test_an_allocation_is_audited_with_its_scales():
    beta = (0.25, 1.75, 1.0, 1.0)
    claimed = Guarantee(1.0, 0.0, Unit.IMAGE, REPLACE, "x")
    for draw, least in (("once", 1.0), ("per_step", 1.2), ("per_batch", 4.0)):
        case = pixels_case(PixelNoise((1, 2, 2), 4.0, draw, beta), 3, 0.0, claimed)
        audited = case.run(4000, seed=5)
        assert least < audited.result.epsilon_lower <= case.proven.epsilon
    even = PixelNoise((1, 2, 2), 4.0, "once", (1.0,) * 4)
    score = pixels_case(even, 1, 0.0, claimed).statistics[0](-torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
    outputs = torch.randn(9, 1, 1, 2, 2, generator=torch.Generator().manual_seed(1))
    plain = Nearness(-torch.ones(4), torch.ones(4), unit=4.0)
    assert torch.allclose(score(outputs), plain(outputs))


@pytest.mark.parametrize(
    ("name", "request_", "words"),
    [
        ("idp-gan-agregate", Request(1.0), "idp-gan-aggregate"),
        ("laplace", Request(0.0), "epsilon = 0.0"),
        ("laplace", Request(math.inf), "nothing to audit"),
        ("laplace", Request(1.0, draw="once"), "no choice of draw"),
        ("lap", Request(1.0, unit=Unit.PERSON), "no unit person"),
        ("lap", Request(1.0, pair="twins"), "no pair twins"),
        ("idp-gan-published", Request(1.0, draw="twice"), "once, per_step, per_batch"),
        ("idp-gan-aggregate", Request(1.0, 0.0), "no pure guarantee"),
    ],
)
def test_bad_requests_are_refused(name, request_, words):
    with pytest.raises(InputError, match=words):
        method_case(name, request_)


def test_a_case_is_written_as_json():
    audited = method_case("lap", Request(1.0, pair="nearly-equal")).run(1000, seed=1)
    data = json.loads(json.dumps(audited.to_json(), allow_nan=False))
    assert data["result"]["runs"] == 1000
    assert data["unit"] == "pixel"
    assert "lighter" in data["neighbors"]
