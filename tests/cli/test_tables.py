"""Tables that are printed through a pipe fit into 80 columns, and nothing of them is cut off."""

import dataclasses

import pytest
import torch

from idpgan.attacks.evaluate import evaluate_scores
from idpgan.attacks.findings import Findings
from idpgan.attacks.outcome import Outcome
from idpgan.attacks.registry import select_attacks
from idpgan.commands.attack import print_attacks
from idpgan.commands.evaluate import print_evaluation
from idpgan.metrics.accuracy import Accuracy
from idpgan.metrics.evaluation import METRICS, Evaluation
from idpgan.metrics.fidelity import FidelityResult
from idpgan.metrics.utility import ClassifierScore, UtilityResult


@pytest.fixture(autouse=True)
def _pipe(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # what Rich and the standard library take where there is no terminal


def boxed(out):
    """Return the lines of tables with a frame; the sentences around them may be longer."""
    return [line for line in out.splitlines() if line[:1] in set("┏┃┡│├└")]


def test_the_table_of_attacks(capsys):
    scores = torch.rand(10_000, generator=torch.Generator().manual_seed(0))
    result = dataclasses.replace(
        evaluate_scores(scores, scores.flip(0)), tpr_at_fpr={0.01: 1.0, 0.001: 1.0}, precision=1.0, notes=()
    )
    outcomes = tuple(Outcome(attack, result) for attack in select_attacks(["all"], "generator"))
    facts = {"method": "idp-gan-aggregate", "data": "faces-wild", "num_members": 10_000}
    print_attacks(Findings(outcomes, None, facts, ()))
    out = capsys.readouterr().out
    assert max(len(line.rstrip()) for line in out.splitlines() if not line.startswith("note")) <= 80
    assert "…" not in out
    for attack in select_attacks(["all"], "generator"):
        row = next(line for line in out.splitlines() if line.split()[:1] == [attack.name])
        assert row.split()[-2:] == ["100.0%", "100.0%"]


def test_the_tables_of_an_evaluation(capsys):
    score = ClassifierScore("logistic", 1000, (0.0, 1.0), (0.5, 0.5))
    utility = UtilityResult((score,), (0, 1), 60_000, 10_000, 0.1, "a", "b", "p 1")
    rates = dict.fromkeys(("precision", "recall", "density", "coverage"), 0.123)
    others = {field.name: 0 for field in dataclasses.fields(FidelityResult)}
    fidelity = FidelityResult(**others | rates | {"fid": 1234.567, "kid": 12.3456, "notes": (), "network": "x"})
    results = dict.fromkeys(METRICS) | dict.fromkeys(("utility", "ceiling", "floor"), utility)
    results |= {"fidelity": fidelity, "fidelity_ceiling": fidelity}
    results["classifier"] = Accuracy(9_000, 10_000, (0.89, 0.91), 0.1, 10_000)
    run = {"epsilon": 1, "delta": 1e-5, "unit": "image"}
    print_evaluation({**Evaluation(results, part="test", notes=()).to_json(), "classifier_run": run})
    out = capsys.readouterr().out
    assert max(map(len, boxed(out))) <= 80
    assert "…" not in out
    for number in ("1234.567", "12.3456", "50.00% +- 70.71%", "90.00%"):
        assert number in out


def test_the_table_of_an_audit(capsys):
    from idpgan.audit.entry import Request
    from idpgan.commands.audit import method_case, print_audited

    print_audited(method_case("scattering-linear", Request(1.0)).run(100, seed=1))
    rows = boxed(capsys.readouterr().out)
    assert max(map(len, rows)) <= 80
    assert any("audited (lower bound)" in row for row in rows)
