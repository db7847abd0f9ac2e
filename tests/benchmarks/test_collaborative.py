"""benchmarks/collaborative.py goes over the values of a setting with several seeds, each with the others' settings."""

import json
import sys

import collaborative
import numpy as np
import pytest
from scipy.io import savemat
from sklearn.datasets import load_digits

from idpgan.data.sources import svhn


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


def colored_digits(folder):
    """Write scikit-learn's digits, each in two colors of its own and 32 x 32, as files of SVHN are: a stand-in."""
    digits, rng = load_digits(), np.random.default_rng(0)
    order = rng.permutation(len(digits.target))
    drawn = (digits.images[order] / 16).repeat(4, 1).repeat(4, 2)[..., None]
    ink, ground = rng.random((2, len(order), 1, 1, 3)) / 2
    pixels = (255 * (ground + (ink + 0.5 - ground) * drawn)).astype(np.uint8)
    labels = np.where(digits.target == 0, 10, digits.target)[order].astype(np.uint8)
    for name, part in ((svhn.TRAIN, slice(0, 1438)), (svhn.TEST, slice(1438, None))):
        savemat(folder / name, {"X": pixels[part].transpose(1, 2, 3, 0), "y": labels[part, None]})
    return folder


@pytest.mark.trained
def test_the_papers_mlp_learns_colored_digits_from_files_as_those_of_svhn(monkeypatch, capsys, tmp_path):
    files = ["data.name=svhn", f"data.root={colored_digits(tmp_path)}", 'method.network="mlp"']
    argv = ["", "configs/digits-dssgd.toml", *files, "training.steps=6", "--vary", "method.upload_share", "0.1"]
    monkeypatch.setattr(sys, "argv", [*argv, "--seeds", "0"])
    collaborative.main()
    found = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (found["weights"], found["images"]) == (402_250, 1295)
    assert found["accuracy"] > 0.5  # 20 rounds, seeds 0 to 2: .978 (.975, .978, .981); chance is a tenth
