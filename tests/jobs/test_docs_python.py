"""The examples of docs/guide/python.md run, one after the other."""

import re
from pathlib import Path

from idpgan.commands import process_ledger
from idpgan.kinds import verify

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "python.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(process_ledger, "_DONE", [])
    names = {}
    for example in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S):
        exec(example, names)
    assert verify(tmp_path / "digits-release").problems == ()
    assert len(names["generator"].sample(3)) == 3
    said = capsys.readouterr().out
    assert "2 releases of these images" in said
    assert "logistic" in said
    assert said.count("torch.Size([50, 1, 8, 8])") == 4
