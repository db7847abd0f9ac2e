"""The table of what the papers describe: whole, as written, and its commands are there; a sample of them runs."""

import shlex
from pathlib import Path

import pytest
from papers import rows

ROWS = rows.read()
ROOT = Path(__file__).parents[2]


def test_every_row_is_there_with_a_verdict_and_a_reason():
    assert [row["row"] for row in ROWS] == list(range(1, 125))
    assert {row["verdict"] for row in ROWS} <= set(rows.VERDICTS)
    assert {row["paper"] for row in ROWS} == set(rows.PAPERS)
    assert [row["row"] for row in ROWS if row["verdict"] != "works" and not row["remark"]] == []
    # The claims of the papers' authors' hardware is no thing to show.
    assert [row["row"] for row in ROWS if row["verdict"] == "works" and not row["command"]] == [115]


def test_the_page_is_that_of_the_table():
    assert rows.PAGE.read_text(encoding="utf-8") == rows.page(ROWS)
    assert rows.page(ROWS[:-1]) != rows.page(ROWS)
    text = rows.PAPERS_PAGE.read_text(encoding="utf-8")
    assert text == rows.papers_page(ROWS, text)


def test_every_script_that_shows_a_row_stands_on_a_page_of_the_docs():
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    scripts = {word for row in ROWS for key in ("command", "yours") for word in row.get(key, "").split()}
    scripts = {word for word in scripts if word.startswith("benchmarks/")}
    assert len(scripts) > 10
    assert [script for script in sorted(scripts) if script not in pages] == []


@pytest.mark.parametrize("command", sorted({row.get(key, "") for row in ROWS for key in ("command", "yours")} - {""}))
def test_what_a_command_names_is_there(command):
    words = shlex.split(command)
    assert words[0] in ("pytest", "idpgan", "python")
    assert [word for word in words if word.endswith(".py") and not (ROOT / word).is_file()] == []


def test_the_tests_that_the_suite_leaves_out_run_with_the_papers(pytestconfig, monkeypatch):
    """Their mark is out of the suite's, so that a file that is not here would run nowhere."""
    commands = [row["command"] for row in rows.tests()]
    assert {command.split()[-1] for command in commands} == {
        str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "papers").glob("test_*.py")
    }
    assert commands
    assert all(command.startswith("pytest -m papers ") for command in commands)
    asked = []
    monkeypatch.setattr(rows, "run", lambda wanted, *_: asked.extend(wanted) or 0)
    monkeypatch.setattr("sys.argv", ["rows.py", "run"])
    assert rows.main() == 0
    assert [row["command"] for row in asked] == commands + [row["command"] for row in ROWS]
    assert " or papers)" in " ".join(pytestconfig.getini("addopts"))


def test_a_test_file_runs_as_in_the_suite_unless_the_row_says_which_tests(tmp_path):
    """Of another choice of marks a GPU's tests would be, which fail without one."""
    assert rows.call("pytest tests/a.py -k b", tmp_path)[3:] == ["-q", "-x", "tests/a.py", "-k", "b"]
    assert rows.call("python b.py --out OUT/c", tmp_path)[1:] == ["b.py", "--out", f"{tmp_path}/c"]


def test_a_sample_runs_and_a_failure_is_seen(capsys):
    assert rows.run([{"row": 116, "command": "idpgan methods"}], 60) == 0
    assert rows.run([{"row": 0, "command": "idpgan no-such-command"}], 60) == 1
    assert "FAILED (2)" in capsys.readouterr().out
    assert rows.run([{"row": 0, "command": "idpgan methods"}], 0) == 1
    assert "NOT REACHED in time, 0 s: rows 0: idpgan methods" in capsys.readouterr().out
