"""Two processes share a publication, an audit and an attack: one charge, one draw of noise, all runs, equal scores."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from idpgan.kinds import verify
from idpgan.privacy.folder_ledger import FolderLedger
from idpgan.ranks import ALONE, Ranks
from tests.training import commands
from tests.training.commands import ATTACKS, IMAGES, RUNS, order
from tests.training.pairs import in_pair

NUM_FACES = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    (folder / "faces").mkdir()
    for number in range(NUM_FACES):
        pixels = np.random.default_rng(number).integers(256, size=(20, 16), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "faces" / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def lost(folder):
    return in_pair(commands.commands, folder / "pair", folder)[0]["lost"]


@pytest.fixture(scope="module")
def found(folder, lost):
    return [torch.load(folder / f"found{rank}.pt", weights_only=True) for rank in range(2)]


def test_each_image_is_published_once_with_one_draw_of_noise(found):
    first, _ = (result["published"] for result in found)
    assert first["both"].shape == IMAGES.shape
    noise = first["both"] - IMAGES
    assert noise.double().square().mean() == pytest.approx(2.0, rel=0.08)  # 2 b^2, b = 1; five standard deviations
    assert len(noise.flatten(1).unique(dim=0)) == len(IMAGES)
    # The controls: a draw on each rank for all, and the same key on both ranks.
    assert first["noise of each"].double().square().mean() == pytest.approx(4.0, rel=0.08)
    assert len((first["one key"] - IMAGES).flatten(1).unique(dim=0)) == len(IMAGES) // 2


def test_what_two_ranks_publish_is_what_one_makes_of_their_shares_by_the_same_noise(found):
    assert found[0]["published"]["both"].equal(found[0]["published"]["shares"])


def test_a_publication_of_two_ranks_is_whole_and_charged_once(found, folder):
    assert verify(folder / "whole" / "release").problems == ()
    assert len([*(folder / "whole" / "release").rglob("0*.png")]) == NUM_FACES
    report = json.loads((folder / "whole" / "curator" / "report.json").read_text())
    assert len(report["images"]) == NUM_FACES
    assert len(report["ledger"]["publications"]) == 1


def test_a_rank_whose_code_has_other_charges_ends_the_publication(found):
    assert "rank 1 has other charges, that is other code, than rank 0" in found[0]["differs"]


def test_a_killed_rank_leaves_a_charge_and_no_release(lost, folder):
    assert "another process of this run has ended" in lost
    assert f"Nothing was published, but the charge stands on {order(folder, 'torn').ledger_path}." in lost
    assert len(FolderLedger.read(order(folder, "torn").ledger_path, "faces").publications) == 2
    assert {path.name for path in folder.iterdir() if "torn" in path.name} == set()


@pytest.mark.parametrize("name", ATTACKS)
def test_two_ranks_score_as_one_does(name, found):
    first, second = (result["attacks"] for result in found)
    alone = first[f"{name} alone"]
    assert alone.std() > 0
    assert torch.allclose(first[name], alone, rtol=1e-5, atol=1e-6)
    assert second == {}


def test_the_runs_of_an_audit_add_up(found):
    first, second = (result["noiseless"] for result in found)
    assert first["runs"] + second["runs"] == 2 * RUNS
    assert abs(first["runs"] - second["runs"]) <= 4  # two parts, two sides
    assert first["result"] == second["result"]
    assert (first["result"]["true_positives"], first["result"]["false_positives"]) == (RUNS // 2, 0)
    assert first["result"]["epsilon_lower"] == first["result"]["cap"]


def test_all_ranks_learn_the_same_statistic(found):
    first, second = (result["learned"] for result in found)
    assert first == second
    assert first["epsilon_lower"] > 1


def test_an_audit_of_two_ranks_keeps_to_the_law_and_each_rank_has_noise_of_its_own(found):
    first, second = (result["laplace"] for result in found)
    assert 0.6 < first["result"]["epsilon_lower"] <= 1.0
    assert first["result"]["runs"] == RUNS
    assert not torch.isin(first["first"], second["first"]).any()


# One process ---------------------------------------------------------------------------------------------------------


def test_alone_rows_and_values_come_back(monkeypatch):
    monkeypatch.setattr(Ranks, "_number", lambda *_: pytest.fail("nobody is there"))
    rows = torch.arange(3)
    assert ALONE.gather_rows(rows, 3) is rows
    assert ALONE.broadcast(rows) is rows
    assert ALONE.broadcast_value([1]) == [1]
    with ALONE.order({"task": "none"}):
        pass


def test_a_share_of_another_length_is_no_share():
    with pytest.raises(ValueError, match="rank 1 has 2 rows, and its share of 5 are 3"):
        Ranks(1, 2).gather_rows(torch.zeros(2), 5)
