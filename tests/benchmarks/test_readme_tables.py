"""The measured tables of README and docs are those of the committed results, and these hold what they say."""

import json
import shutil

import measured
import pytest
import readme_tables
import sample_figures

ROOT = measured.ROOT
RESULTS = measured.read_results()


def test_the_pages_say_what_the_results_say():
    pages = dict(readme_tables.rendered(ROOT))
    assert ROOT / "README.md" in pages
    for path, text in pages.items():
        written = path.read_text(encoding="utf-8")
        assert written == text, f"{path.name} is out of date: python benchmarks/readme_tables.py"


def test_no_measured_table_was_typed():
    page = (ROOT / "docs" / "results" / "measured.md").read_text(encoding="utf-8")
    assert len(readme_tables.BLOCK.findall(page)) >= 3
    assert "|---" not in readme_tables.BLOCK.sub("", page)
    assert "|---" not in readme_tables.BLOCK.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_agrees_with_itself(name):
    row = RESULTS[name]
    assert (row["format"], row["name"]) == (measured.FORMAT, name)
    assert json.loads(json.dumps(measured.summary(row["runs"]))) == row["summary"]
    assert (ROOT / row["config"]).is_file()
    assert '"/' not in json.dumps(row)  # no path of a machine
    assert len({run["config_sha256"] for run in row["runs"]}) == len({run["seed"] for run in row["runs"]})


def test_every_result_is_shown_somewhere():
    asked = (measured.RESULTS / "tables.toml").read_text(encoding="utf-8")
    for name in RESULTS:
        assert f'"{name}"' in asked or f"{{{name}:" in asked


def test_a_page_follows_its_result():
    rows = [
        {"words": "ours", "result": "here"},
        {"words": "absent", "result": "gone"},
        ["{here:fid}", "{gone:fid}", "x"],
    ]
    table = {"head": ["a", "b", "c"], "facts": ["runs", "accuracy"], "rows": rows}
    result = {"runs": [{}, {}], "summary": {"accuracy cnn": {"mean": 0.75, "std": 0.125, "values": [0.5, 1.0]}}}
    page = "before <!-- measured:t -->\nold\n<!-- /measured --> after"
    filled = readme_tables.fill(page, {"t": table}, {"here": result})
    assert "| ours | 2 | 75.0 +- 12.5 % |" in filled
    assert "absent" not in filled
    assert "| not measured | not measured | x |" in filled
    assert "old" not in filled
    assert readme_tables.fill(filled, {"t": table}, {"here": result}) == filled
    with pytest.raises(SystemExit, match=r"no \[t\]"):
        readme_tables.fill(page, {}, {})
    with pytest.raises(SystemExit, match="unknown fact"):
        readme_tables.cell("{here:beauty}", {"here": result})


def test_a_page_follows_the_cells_of_a_figure(tmp_path, monkeypatch):
    cells = [
        {"method": "gaussian", "epsilon": epsilon, "seed": seed, "inception": {"mean": mean}}
        for epsilon, seed, mean in ((11.0, 0, 8.0), (1.0, 0, 6.0), (1.0, 1, 7.0))
    ]
    wanted = [["mnist", "gaussian", epsilon, 0] for epsilon in (11.0, 0.3, 1.0)] + [["mnist", "wgan-gp", None, 0]]
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "mnist.json").write_text(json.dumps({"wanted": wanted, "cells": cells}))
    for module in (readme_tables, sample_figures):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    figures = readme_tables.read_figures()
    assert readme_tables.cell("{mnist gaussian:inception by epsilon}", figures) == "not measured, 6.50, 8.00"
    assert readme_tables.cell("{mnist gaussian 1:inception}, {mnist gaussian 11:runs}", figures) == "6.50 +- 0.71, 1"
    assert readme_tables.cell("{mnist wgan-gp:inception}", figures) == "not measured"


@pytest.fixture
def run(tmp_path):
    """A function that makes the folder of a finished run, as far as a row reads it."""

    def make(name, *, seed=0, accuracies=(0.5, 0.7), more=""):
        folder = tmp_path / name
        (folder / "release").mkdir(parents=True)
        text = (ROOT / "configs" / "digits-gaussian.toml").read_text(encoding="utf-8")
        (folder / "config.toml").write_text(f"{text}\n{more}\n[training]\nseed = {seed}\n", encoding="utf-8")
        environment = {"git": {"commit": "abc", "changed": False}, "versions": {}, "cpus": 2, "device_name": "x"}
        guarantee = {"epsilon": 1.0, "delta": 1e-5, "unit": "image", "relation": "zero-out-one", "basis": "b"}
        privacy = {"num_private": 9, "report": {"claimed": guarantee, "proven": guarantee, "private": True}}
        utility = {"scores": [{"name": "cnn", "accuracies": accuracies}], "majority": 0.1, "seeds": [0, 1]}
        evaluation = {"format": measured.EVALUATION, "source": str(folder), "part": "test", "num_images": 4}
        evaluation |= {"images_digest": name, "environment": environment, "utility": utility}
        (folder / "environment.json").write_text(json.dumps(environment))
        (folder / "release" / "privacy.json").write_text(json.dumps(privacy))
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
        return folder / "evaluation.json"

    return make


def test_a_row_is_made_from_its_runs(run, tmp_path):
    first, second = run("first"), run("second", seed=1, accuracies=(0.8, 1.0))
    row = measured.make_result("digits-gaussian-eps1", [first, second])
    assert row["config"] == "configs/digits-gaussian.toml"
    assert row["overrides"] == []
    assert [run["seed"] for run in row["runs"]] == [0, 1]
    score = row["summary"]["accuracy cnn"]
    assert (score["spread_of"], score["values"]) == ("runs", pytest.approx([0.6, 0.9]))
    assert score["mean"] == pytest.approx(0.75)
    assert measured.summary(row["runs"][:1])["accuracy cnn"]["spread_of"] == "judges"
    assert str(tmp_path) not in json.dumps(row)
    assert measured.read_results(measured.write_result(row, tmp_path).parent) == {row["name"]: row}


def test_images_that_no_run_made_have_a_row_too(run):
    row = measured.make_result("floor", [run("drawn")], [ROOT / "configs" / "digits-gaussian.toml"])
    assert (row["method"], row["config"]) == ("none", "configs/digits-gaussian.toml")
    assert row["summary"]["accuracy cnn"]["mean"] == pytest.approx(0.6)
    assert "privacy" not in row


def test_two_evaluations_of_the_same_images_are_one_run(run, tmp_path):
    first = run("first")
    other = json.loads(first.read_text()) | {"inception": {"mean": 3.0}}
    (tmp_path / "other.json").write_text(json.dumps({**other, "utility": None}))
    row = measured.make_result("one", [first, tmp_path / "other.json"])
    assert len(row["runs"]) == 1
    assert {"accuracy cnn", "inception"} <= {*row["summary"]}
    (tmp_path / "other.json").write_text(json.dumps({**other, "images_digest": "of others"}))
    with pytest.raises(SystemExit, match="images_digest"):
        measured.make_result("one", [first, tmp_path / "other.json"])


def test_a_run_of_other_settings_is_no_run_of_the_row(run):
    first, second = run("first"), run("second", more="[release]\nsamples = 9")
    measured.make_result("one", [first, second])  # the size of the grid is nobody's result
    third = run("third")
    text = (third.parent / "config.toml").read_text()
    (third.parent / "config.toml").write_text(text.replace("latent_dim", "codes = 3\nlatent_dim"))
    with pytest.raises(SystemExit, match="overrides differ"):
        measured.make_result("one", [first, third])


def test_what_is_no_evaluation_is_refused(run, tmp_path):
    first = run("first")
    with pytest.raises(SystemExit, match="is not an evaluation"):
        measured.make_result("one", [first.parent / "environment.json"])
    shutil.rmtree(first.parent / "release")
    with pytest.raises(SystemExit, match="not a finished run here"):
        measured.make_result("one", [first])
    with pytest.raises(SystemExit, match="lower-case"):
        measured.make_result("One row", [first])
