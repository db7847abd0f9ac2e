"""The benchmark of `idpgan doctor`: tiny contests, its verdicts, and what it prints."""

import importlib.util
import json
import time

import pytest
import torch

from idpgan.commands import benchmark
from idpgan.commands.benchmark import QUICK, Contest, Row, measure

CPU = torch.device("cpu")


def contest(ours=lambda: None, theirs=lambda: None, library=True):
    return Contest("a thing", 10, "things", ours, theirs, "the library", library)


def test_the_quick_measure_of_a_clipped_step_and_of_the_library_is_finite():
    rows = [measure(each, CPU, QUICK) for each in benchmark._clipped(4, 8, CPU)]
    assert [row.contest.against for row in rows] == ["plain backward", "Opacus", "Opacus, fast clipping"]
    assert all(0 < row.ratio < 100 for row in rows)
    assert "weights" in str(rows[0])


def test_both_engines_of_the_library_clip_the_same_sum():
    for contest in list(benchmark._clipped(4, 8, CPU))[1:]:
        ours, theirs = contest.ours(), contest.theirs()
        assert set(theirs) == set(ours)
        assert all(torch.allclose(theirs[name], ours[name].float() * 2**-32, atol=1e-4) for name in ours)
        assert any(not torch.allclose(theirs[name], ours[name].float() * 2**-31, atol=1e-4) for name in ours)


def test_sampling_with_a_teacher_is_measured_against_the_generator_alone():
    each = benchmark._sampling(6, CPU)
    chosen, drawn = each.ours(), each.theirs()
    assert chosen.shape == drawn.shape == (6, 1, 28, 28)
    assert not torch.equal(chosen, drawn)
    row = measure(each, CPU, QUICK)
    assert 0 < row.ratio < 100
    assert row.to_json()["against"] == "generator alone"


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
    _, opacus, _ = benchmark._clipped(4, 8, CPU)
    row = measure(opacus, CPU, QUICK)
    assert (row.ratio, row.verdict) == (None, "Opacus is not installed")
    assert json.dumps(row.to_json())


@pytest.mark.slow
def test_all_rows_are_measured():
    rows = benchmark.benchmark(CPU, QUICK)
    words = [row.contest.what.split()[0] for row in rows]
    assert words == [
        *("clipped", "clipped", "clipped", "aggregate,", "dp-gan,", "sampling"),
        *("svd", "discrete", "rounded", "votes"),
    ]
    assert json.dumps(benchmark.to_json(rows, CPU), allow_nan=False)
