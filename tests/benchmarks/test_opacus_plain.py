"""DP-SGD by Opacus' PrivacyEngine alone: its release is priced anew by our accountant, and says who trained."""

import json
from pathlib import Path

import pytest
from papers import opacus_plain

from idpgan.kinds import verify

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.slow
def test_a_release_of_opacus_alone_verifies_at_the_price_that_both_accountants_find(tmp_path, capsys, monkeypatch):
    words = ["training.steps=3", "training.batch_size=640", "data.holdout_share=0.01", "--seeds", "4"]
    monkeypatch.setattr(
        "sys.argv", ["opacus_plain.py", str(CONFIGS / "digits-dp-sgd.toml"), *words, "--out", str(tmp_path / "out")]
    )
    opacus_plain.main()
    row = json.loads(capsys.readouterr().out.splitlines()[0])
    assert 2.9 < row["epsilon by idpgan"] <= row["epsilon by Opacus"] <= 3.0  # 3 of the config; ours is tighter
    assert {"Opacus alone", "ours"} < set(row)
    folder = tmp_path / "out" / "opacus-seed-4"
    assert list(verify(folder).problems) == []
    assert "by Opacus' PrivacyEngine alone" in (folder / "README.md").read_text(encoding="utf-8")


def test_another_method_is_refused_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["opacus_plain.py", str(CONFIGS / "digits-dp-gan.toml")])
    with pytest.raises(SystemExit):
        opacus_plain.main()
    assert "is of dp-gan. Take one of dp-sgd." in capsys.readouterr().err
