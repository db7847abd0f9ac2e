"""Cells of figures 5 and 6: each has its size, its budget and what is set for all."""

import argparse

import paper_figures
import pytest

from idpgan.data.faces import draw
from tests.data import layouts


def test_a_cell_has_its_size_its_budget_and_what_is_set():
    usual = {"data": "digits", "data_root": None, "num_images": None, "steps": 7, "width": 8}
    arguments = argparse.Namespace(**usual, device="cpu", set=["method.learning_rate=5e-4"])
    config = paper_figures.cell_config(paper_figures.Cell("idp-gan-published", 2.0, 500, 3), arguments)
    assert config.method.learning_rate == 5e-4
    assert (config.training.steps, config.training.seed, config.model.width) == (7, 3, 8)
    assert config.privacy.epsilon1 + config.privacy.epsilon2 == pytest.approx(2.0)
    assert paper_figures.describe(config.data).num_private == 500


def test_cells_on_celeba_are_of_its_own_configs_and_size(tmp_path):
    layouts.write_celeba(tmp_path / "celeba", draw(100, 16, people=100, seed=9))
    usual = {"data": "celeba", "data_root": tmp_path, "num_images": None, "steps": 4, "width": 8, "device": "cpu"}
    for method in paper_figures.METHODS:
        epsilon = None if method == "wgan-gp" else 2.0
        config = paper_figures.cell_config(
            paper_figures.Cell(method, epsilon, 20, 0), argparse.Namespace(**usual, set=[])
        )
        found = paper_figures.describe(config.data)
        assert (found.num_private, found.image_shape) == (20, (3, 48, 48))
        assert len(found.classes) == 4
        if method.startswith("dp-gan"):  # Zhang's of 1,000 faces was refused with the rate of its own config
            assert config.training.batch_size <= 5
            assert config.privacy.sample_rate is None
    assert paper_figures.own_config("dp-gan", "celeba").stem == "celeba-dp-gan"
    assert paper_figures.own_config("gaussian", "celeba").stem == "mnist-gaussian"
    assert paper_figures.own_config("idp-gan-aggregate", "mnist").stem == "mnist-aggregate-no-public"


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
