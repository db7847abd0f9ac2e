"""A user's type checker sees the types of names that are loaded on first use, and finds their misuse."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USE = """
import idpgan
from idpgan import attacks, publish
generator = idpgan.load_generator("release")
reveal_type(generator.sample(3, ["smiling", "neutral", "smiling"]))
reveal_type(idpgan.SyntheticDataset("release").privacy)
reveal_type(publish.release)
reveal_type(idpgan.audit.audit)
reveal_type(attacks.evaluate_scores)
generator.sample("three")
idpgan.load_generator(3)
idpgan.publish.release(1, 2, epsilon="much")
"""


@pytest.mark.slow
def test_mypy_sees_types_through_lazy_names(tmp_path):
    (tmp_path / "use.py").write_text(USE)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache"), "--strict", tmp_path / "use.py"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    revealed = [line.split("Revealed type is ")[1] for line in said.splitlines() if "Revealed type" in line]
    assert len(revealed) == 5, said
    assert "Tensor" in revealed[0]
    assert "PrivacyReport" in revealed[1]
    assert "Release" in revealed[2]
    assert "AuditResult" in revealed[3] or "Audited" in revealed[3]
    assert "AttackResult" in revealed[4]
    assert [kind for kind in revealed if kind == '"Any"'] == []
    wrong = [line for line in said.splitlines() if "error:" in line and "use.py" in line]
    assert {int(line.split(":")[1]) for line in wrong} == {10, 11, 12}, said
