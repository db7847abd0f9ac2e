"""Cells of figures 2 to 4: one config and budget each, made once, left alone while another process is at them."""

import argparse
import json
import sys

import paper_figures
import pytest
import readme_tables
import sample_cells
import sample_figures
from sample_cells import Cell

from idpgan.data.faces import draw
from idpgan.files import file_lock
from tests.data import layouts

METHODS = [*sample_cells.PLANS["mnist"]]


def options(out, **changes):
    """The options of a tiny cell of digits."""
    usual = {"out": out, "data_root": None, "steps": 2, "device": "cpu", "samples": 100, "classifiers": ["logistic"]}
    return argparse.Namespace(**(usual | {"judges": 1} | changes))


def test_the_cells_come_first_seed_first_and_the_slow_methods_have_one():
    found = sample_cells.cells("mnist", ["real", *METHODS], [0.3, 11.0], [0, 1, 2])
    assert len(found) == len({*found}) == 1 + 3 + 3 * 2 * 3 + 6 * 2
    assert [cell.seed for cell in found] == sorted(cell.seed for cell in found)
    first = [cell.minutes for cell in found if cell.seed == 0]
    assert first == sorted(first)
    assert {cell.seed for cell in found if cell.method in sample_cells.SLOW} == {0}
    assert {cell.epsilon for cell in found if cell.method in ("real", "wgan-gp")} == {None}


@pytest.mark.parametrize("data", ["mnist", "digits", "celeba", "faces-wild"])
def test_every_cell_spends_its_epsilon(data, tmp_path):
    ours = sample_cells.cells(data, [*sample_cells.PLANS[data]], [0.3, 11.0], [0, 5])
    configs = [sample_cells.cell_config(cell, options(tmp_path, steps=None)) for cell in ours]
    assert len({config.identity() for config in configs}) == len(ours)
    for cell, config in zip(ours, configs, strict=True):
        assert (config.method.name, config.training.seed) == (cell.method.split()[0], cell.seed)
        privacy = config.privacy.model_dump()
        if cell.method == "idp-gan-published":
            assert privacy["epsilon1"] + privacy["epsilon2"] == pytest.approx(cell.epsilon)
        elif cell.epsilon is not None:
            assert privacy["epsilon"] == cell.epsilon
    lengths = {cell.method: config.training.steps for cell, config in zip(ours, configs, strict=True)}
    if data == "mnist":
        assert lengths["dp-gan"] == 3500


@pytest.mark.slow
def test_a_cell_is_made_once_and_read_back(tmp_path, capsys, monkeypatch):
    cell, missing = Cell("digits", "gaussian", 1.0, 0), Cell("digits", "gaussian", 11.0, 0)
    arguments = options(tmp_path, budget_minutes=60.0, most_cells=1)
    with file_lock(f"{sample_cells.names(cell, arguments)[0]}.lock"):
        assert sample_cells.make(cell, arguments) == sample_cells.BUSY
    assert sample_cells.kept(cell, arguments) is None
    sample_figures.make_missing([cell, missing], arguments)
    found = sample_cells.kept(cell, arguments)
    assert found["privacy"]["proven"]["epsilon"] == pytest.approx(1.0, abs=0.01)
    assert 1.0 <= found["inception"]["mean"] <= 10.0
    assert found["num_images"] == 100
    assert sample_cells.names(cell, arguments)[0].with_suffix(".png").is_file()
    assert str(tmp_path) not in json.dumps(found)

    arguments.budget_minutes = 1.0  # less than a cell takes
    sample_figures.make_missing([cell, missing], arguments)
    assert sample_cells.kept(missing, arguments) is None
    lines = sample_figures.table([cell, missing], [found])
    assert [sample_figures.MISSING in line for line in lines[2:]] == [False, True]

    words = "--figure 2 --data digits --methods gaussian --epsilons 1 11 --samples 100 --classifiers logistic --steps 2"
    command = [*words.split(), "--device", "cpu", "--budget-minutes", "0", "--out", str(tmp_path)]
    for figure in "24":
        command[1] = figure
        monkeypatch.setattr(sys, "argv", ["paper_figures.py", *command])
        paper_figures.main()
        assert "1 of 2 cells" in capsys.readouterr().out
        assert (tmp_path / f"figure{figure}-digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_figures_3_and_4_on_celeba(tmp_path, capsys, monkeypatch):
    layouts.write_celeba(tmp_path / "celeba", draw(120, 16, people=40, seed=9))
    words = "--figure 3 --data celeba --methods gaussian --epsilons 1 --samples 20 --classifiers logistic --steps 2"
    command = [*words.split(), "--device", "cpu", "--data-root", str(tmp_path), "--out", str(tmp_path / "out")]
    for figure in "34":
        command[1] = figure
        monkeypatch.setattr(sys, "argv", ["paper_figures.py", *command])
        paper_figures.main()
        assert "1 of 1 cells" in capsys.readouterr().out
        assert (tmp_path / "out" / f"figure{figure}-celeba.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("data", [*sample_cells.PLANS])
def test_zhang_stands_beside_dp_gan_and_a_method_without_a_cell_is_named_in_one_line(
    data, tmp_path, capsys, monkeypatch
):
    command = ["paper_figures.py", "--figure", "4", "--data", data, "--list", "--out", str(tmp_path), "--methods"]
    monkeypatch.setattr(sys, "argv", [*command, "dp-gan-zhang", "dp-gan method.groups=5", "dp-gan"])
    paper_figures.main()
    assert capsys.readouterr().out.count("missing") == 3 * len(sample_cells.EPSILONS)
    monkeypatch.setattr(sys, "argv", [*command, sample_cells.OURS])
    if sample_cells.OURS in sample_cells.PLANS[data]:
        paper_figures.main()
        return
    with pytest.raises(SystemExit):
        paper_figures.main()
    assert f"--data {data} has no cell of dp-gan training.steps=500; it has: real, gaussian" in capsys.readouterr().err


def test_a_finished_run_is_only_judged(tmp_path):
    cell, arguments = Cell("mnist", "dp-gan", 1.0, 0), options(tmp_path)
    assert sample_cells.minutes_left(cell, arguments) == cell.minutes > sample_cells.JUDGING
    release = sample_cells.names(cell, arguments)[0] / "release"
    release.mkdir(parents=True)
    (release / "privacy.json").touch()
    assert sample_cells.minutes_left(cell, arguments) == sample_cells.JUDGING


def test_a_cell_that_cannot_be_made_is_not_tried_again(tmp_path):
    cell = Cell("digits", "gaussian", 1.0, 0)
    arguments = options(tmp_path, samples=3, budget_minutes=60.0, most_cells=None)  # ten splits of three images
    sample_figures.make_missing([cell], arguments)
    assert "splits" in sample_cells.failed(cell, arguments)
    made = [path.stat().st_mtime_ns for path in tmp_path.glob("*.failed")]
    sample_figures.make_missing([cell], arguments)
    assert [path.stat().st_mtime_ns for path in tmp_path.glob("*.failed")] == made


def test_seeds_give_the_error_and_one_seed_has_that_of_its_splits():
    row = {"method": "gaussian", "epsilon": 1.0, "steps": 5, "config_steps": 9, "privacy": None}
    rows = [row | {"inception": {"mean": mean, "std": 0.25}} for mean in (2.0, 4.0)]
    assert sample_figures.inception(rows[:1]) == (2.0, 0.25)
    assert sample_figures.inception(rows) == (3.0, pytest.approx(2**0.5))
    assert sample_figures.steps(row) == "5 of 9"
    unsound = rows[0] | {"privacy": {"proven": {"epsilon": "inf"}}}
    assert sample_figures.beside(unsound) == "IS 2.00, proven epsilon infinite"


def test_no_picture_shows_real_faces_or_unprotected_ones():
    assert not sample_figures.drawable(Cell("faces-wild", "real", None, 0))
    assert not sample_figures.drawable(Cell("faces-wild", "wgan-gp", None, 0))
    assert not sample_figures.drawable(Cell("celeba", "wgan-gp", None, 0))
    assert sample_figures.drawable(Cell("faces-wild", "gaussian", 1.0, 0))


def test_committed_cells_are_a_table_of_the_docs(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_figures, "RESULTS", tmp_path)
    cell = Cell("digits", "gaussian", 1.0, 0)
    sample_figures.write_results([cell], {}, options(tmp_path, data="digits"))
    assert sample_figures.MISSING in readme_tables.body({"figure": "digits"}, {})


def test_what_was_committed_stays_while_it_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_figures, "RESULTS", tmp_path)
    arguments = options(tmp_path, data="digits")
    first, second = Cell("digits", "gaussian", 1.0, 0), Cell("digits", "gaussian", 11.0, 0)

    def row(cell):
        identity = sample_cells.cell_config(cell, arguments).identity()
        judged = {"num_images": 100, "classifiers": ["logistic"], "judges": 1}
        return cell._asdict() | judged | {"config_sha256": identity}

    def written():
        return [(cell, row is not None) for cell, row in sample_figures.committed("digits")]

    sample_figures.write_results([first], {first: row(first)}, arguments)
    sample_figures.write_results([second], {second: row(second)}, arguments)
    assert written() == [(first, True), (second, True)]
    sample_figures.write_results([second], {second: row(second) | {"new": 1}}, arguments)
    assert sample_figures.committed("digits")[1][1]["new"] == 1
    sample_figures.write_results([second], {second: row(second) | {"config_sha256": "of before"}}, arguments)
    sample_figures.write_results([first], {}, arguments)
    assert written() == [(first, True), (second, False)]
    gone = Cell("digits", "of before", 1.0, 0)
    sample_figures.write_results([first], {}, arguments)
    text = (tmp_path / "figures" / "digits.json").read_text()
    (tmp_path / "figures" / "digits.json").write_text(text.replace('"wanted": [', f'"wanted": [{json.dumps(gone)},'))
    assert sample_figures.committed("digits")[0][0] == gone
    sample_figures.write_results([first], {}, arguments)
    assert written() == [(first, True), (second, False)]
    arguments.judges = 3
    sample_figures.write_results([second], {}, arguments)
    assert written() == [(first, False), (second, False)]
