"""benchmarks/clipped_step.py on little: every engine clips the same sum, and the ratios are finite."""

import json
import sys

import clipped_step
import torch

CPU = torch.device("cpu")


def test_both_engines_of_the_library_clip_the_same_sum():
    _, calls = clipped_step.contenders(4, 8, CPU)
    for ours, theirs in (("ours", "Opacus"), ("ours, one image", "Opacus, fast clipping")):
        mine, other = calls[ours](), calls[theirs]()
        assert set(other) == set(mine)
        assert all(torch.allclose(other[name], mine[name].float() * 2**-32, atol=1e-4) for name in mine)
        assert any(not torch.allclose(other[name], mine[name].float() * 2**-31, atol=1e-4) for name in mine)


def test_what_is_measured_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["clipped_step.py", "--widths", "4", "--batch", "8", "--turns", "1"])
    clipped_step.main()
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert set(row["ratios"]) == {"ours over plain", "Opacus over ours", "Opacus, fast clipping over ours"}
    assert all(0 < ratio < 100 for ratio in row["ratios"].values())


def test_without_the_library_the_plain_pass_is_left(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert set(clipped_step.contenders(4, 8, CPU)[1]) == {"ours", "plain"}
