"""Cells of figures 5 and 6: each has its size, its budget and what is set for all."""

import argparse

import paper_figures
import pytest


def test_a_cell_has_its_size_its_budget_and_what_is_set():
    usual = {"data": "digits", "data_root": None, "num_images": None, "steps": 7, "width": 8}
    arguments = argparse.Namespace(**usual, device="cpu", set=["method.learning_rate=5e-4"])
    config = paper_figures.cell_config(paper_figures.Cell("idp-gan-published", 2.0, 500, 3), arguments)
    assert config.method.learning_rate == 5e-4
    assert (config.training.steps, config.training.seed, config.model.width) == (7, 3, 8)
    assert config.privacy.epsilon1 + config.privacy.epsilon2 == pytest.approx(2.0)
    assert paper_figures.describe(config.data).num_private == 500


def test_faces_are_split_by_people():
    assert all(paper_figures.FACES[name]["split_by"] == "identity" for name in ("faces", "celeba"))


def row_of(seed, *, nearest, calibrated):
    """A row whose intervals reach 0.02 to either side."""
    aucs = {"nearest-sample": nearest, "nearest-sample-calibrated": calibrated}
    return {"seed": seed, "auc": aucs, "auc_interval": {name: [auc - 0.02, auc + 0.02] for name, auc in aucs.items()}}


def test_a_leak_is_what_a_calibrated_attack_finds_in_every_seed():
    same_by_chance = [row_of(seed, nearest=0.544, calibrated=0.501) for seed in range(3)]
    found = paper_figures.over_seeds(same_by_chance)
    assert (found["leak"], found["leaking"]) == (False, [])
    assert found["auc_mean"]["nearest-sample"] == pytest.approx(0.544)
    once = [*same_by_chance[:2], row_of(2, nearest=0.544, calibrated=0.596)]
    assert paper_figures.over_seeds(once)["leak"] is False
    always = [row_of(seed, nearest=0.7, calibrated=0.6) for seed in range(3)]
    assert paper_figures.over_seeds(always)["leaking"] == ["nearest-sample-calibrated"]
    assert paper_figures.over_seeds(always[:2])["leak"] is None
