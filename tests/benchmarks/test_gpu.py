"""benchmarks/gpu.py on the CPU: one file with every part, and parts that failed say why."""

import json
import sys
from types import SimpleNamespace

import gpu
import gpu_steps
import pytest
import torch

from tests.privacy.recording import Recording, driver

__all__ = ["driver"]
CPU = torch.device("cpu")


def measured(monkeypatch, tmp_path, *options):
    """The file that the script writes, and its exit code."""
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path), "--device", "cpu", "--quick", *options])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    return json.loads((tmp_path / "gpu.json").read_text()), ended.value.code


@pytest.mark.slow
def test_all_parts_are_measured_and_a_finished_run_is_not_trained_again(monkeypatch, tmp_path):
    options = ["--methods", "gaussian"]
    found, code = measured(monkeypatch, tmp_path, *options)
    assert code == 0
    assert all(value for name, value in found["parts"]["facts"]["found"].items() if name != "kernel holds")
    assert max(row["backward error"] for row in found["parts"]["svd"]["found"]) < 1e-10
    assert found["parts"]["steps: dp-gan, 28, 74"]["found"]["weights"] == pytest.approx(2e5, rel=0.1)
    judged = [found["parts"][f"gaussian epsilon {epsilon}: judge"]["found"] for epsilon in gpu.EPSILONS]
    assert all(row["utility"]["scores"][0]["accuracies"] for row in judged)
    assert "gaussian epsilon 1.0: train" in found["parts"]
    again, code = measured(monkeypatch, tmp_path, *options)
    assert code == 0
    assert "gaussian epsilon 1.0: train" not in again["parts"]


@pytest.mark.usefixtures("driver")
def test_a_recorded_chunk_is_looked_at_slot_by_slot(monkeypatch):
    assert gpu_steps.graph_facts(CPU, 8) == {"a captured chunk's bits": True, "tile proof under graphs": True}
    replay, calls = Recording.replay, []

    def other(graph):  # from the tenth replay on, those of the check at the first use are over
        replay(graph)
        calls.append(1)
        graph.sums()[0].flatten()[0] += len(calls) if len(calls) > 9 else 0

    monkeypatch.setattr(Recording, "replay", other)
    assert gpu_steps.graph_facts(CPU, 8) == {"a captured chunk's bits": True, "tile proof under graphs": False}


def test_adapters_without_diffusers_are_left_out_with_the_reason(monkeypatch):
    options = SimpleNamespace(images=64, steps=3, device="cpu")
    monkeypatch.setattr(gpu_steps.importlib.util, "find_spec", lambda name: None)
    assert "diffusers is not installed" in gpu_steps.step("lora", 16, 8, options)["skipped"]
    assert any(case[0] == "lora" for case in gpu.CASES)


def test_what_cannot_be_measured_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "by_size", lambda *_: None)
    monkeypatch.setattr(gpu, "pytest_command", lambda quick: [sys.executable, "-c", "raise SystemExit('no such luck')"])
    found, code = measured(monkeypatch, tmp_path, "--methods", "no-such-method")
    assert code == 1
    assert "no such luck" in found["parts"]["tests"]["why"]
    assert "gaussian" in found["parts"]["no-such-method epsilon 1.0"]["why"]


@pytest.mark.parametrize("minutes", ["0", "0.005"])
def test_a_part_that_takes_too_long_is_ended(monkeypatch, tmp_path, minutes):
    monkeypatch.setattr(gpu, "by_size", lambda *_: None)
    monkeypatch.setattr(gpu, "pytest_command", lambda quick: [sys.executable, "-c", "import time; time.sleep(60)"])
    found, code = measured(monkeypatch, tmp_path, "--methods", "none", "--minutes", minutes)
    assert code == 1
    assert "time" in found["parts"]["tests"]["why"]
