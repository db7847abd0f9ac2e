"""Cells of figures 5 and 6: each has its size, its budget and what is set for all."""

import argparse

import paper_figures
import pytest


def test_a_cell_has_its_size_its_budget_and_what_is_set():
    usual = {"data": "digits", "data_root": None, "num_images": None, "steps": 7, "width": 8, "seed": 3}
    arguments = argparse.Namespace(**usual, device="cpu", set=["method.learning_rate=5e-4"])
    config = paper_figures.cell_config(paper_figures.Cell("idp-gan-published", 2.0, 500), arguments)
    assert config.method.learning_rate == 5e-4
    assert (config.training.steps, config.training.seed, config.model.width) == (7, 3, 8)
    assert config.privacy.epsilon1 + config.privacy.epsilon2 == pytest.approx(2.0)
    assert paper_figures.describe(config.data).num_private == 500
