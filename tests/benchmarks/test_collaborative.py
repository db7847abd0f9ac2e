"""benchmarks/collaborative.py goes over the values of a setting with several seeds, each with the others' settings."""

import json
import sys

import collaborative
import pytest


def test_a_setting_is_varied_over_seeds(monkeypatch, capsys):
    def judged(name, table, split):
        method, seed = table["method"], table["training"]["seed"]
        assert (name, method["participants"]) == (f"method.upload_share={method['upload_share']:g}", 1)
        return method["upload_share"] + 0.01 * seed

    monkeypatch.setattr(collaborative, "judged", judged)
    argv = ["", "configs/digits-dssgd.toml", "method.participants=1", "--vary", "method.upload_share", "0.5", "0.1"]
    monkeypatch.setattr(sys, "argv", [*argv, "--seeds", "0", "1", "2"])
    collaborative.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["setting"] for row in rows] == ["method.upload_share=0.5", "method.upload_share=0.1"]
    assert [row["mean"] for row in rows] == pytest.approx([0.51, 0.11])
    assert [row["std"] for row in rows] == pytest.approx([0.01, 0.01])
