"""The benchmark of `idpgan doctor`: tiny contests, its verdicts, and what it prints."""

import importlib.util
import json
import time

import pytest
import torch

from idpgan.jobs import benchmark
from idpgan.jobs.benchmark import QUICK, Contest, Row, measure
from tests.privacy.clipped import clipped

CPU = torch.device("cpu")


def contest(ours=lambda: None, theirs=lambda: None, library=True):
    return Contest("a thing", 10, "things", ours, theirs, "the library", library)


def test_the_quick_measure_of_a_clipped_step_and_of_the_library_is_finite():
    plain, opacus = (measure(each, CPU, QUICK) for each in benchmark._clipped(4, 8, CPU))
    assert 0 < plain.ratio < 100
    assert 0 < opacus.ratio < 100
    assert "weights" in str(plain)


def test_the_library_clips_the_same_sum():
    critic = benchmark.Critic(benchmark.ModelConfig(width=4), (1, 28, 28), 10)
    images, labels = torch.randn(2, 6, 1, 28, 28, generator=torch.Generator().manual_seed(1)), torch.arange(6)
    loss = benchmark.CriticLoss(critic, "non-saturating", penalty=0.0, paired=True)
    plan = benchmark.DPSGDPlan(sample_rate=0.01, clip_norm=1.0, divisor=6, noise_multiplier=1.0)
    records = [images[0], labels, images[1], torch.zeros(6), labels]
    ours = clipped(plan, loss.of_record, dict(critic.named_parameters()), records, physical_batch=6).sums
    found = benchmark._opacus(critic, (images[0], images[1]), labels)()
    assert set(found) == set(ours)
    assert all(torch.allclose(found[name], ours[name].float(), atol=1e-4) for name in ours)


def test_the_slower_one_is_seen_with_a_verdict():
    row = measure(contest(ours=lambda: time.sleep(0.02), theirs=lambda: time.sleep(0.001)), CPU, QUICK)
    assert row.ratio < 0.5
    assert row.verdict.startswith("SLOWER than the library")
    assert not Row(contest(), 1.0, 1.0).verdict
    assert not Row(contest(), 1.04, 1.0).verdict
    assert Row(contest(), 1.06, 1.0).verdict
    assert not Row(contest(library=False), 9.0, 1.0).verdict  # no library does the same


def test_a_library_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    _, opacus = benchmark._clipped(4, 8, CPU)
    row = measure(opacus, CPU, QUICK)
    assert (row.ratio, row.verdict) == (None, "Opacus is not installed")
    assert json.dumps(row.to_json())


@pytest.mark.slow
def test_all_rows_are_measured():
    rows = benchmark.benchmark(CPU, QUICK)
    words = [row.contest.what.split()[0] for row in rows]
    assert words == ["clipped", "clipped", "aggregate,", "dp-gan,", "svd", "discrete", "rounded", "votes"]
    assert json.dumps(benchmark.to_json(rows, CPU), allow_nan=False)
