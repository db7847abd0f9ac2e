"""Adapters on one process and on two: a record's row hangs on no other record, and the noise comes once."""

import pytest
import torch

from idpgan.ranks import ALONE
from tests.training.pair_of_adapters import NUM, steps
from tests.training.pairs import in_pair


def test_on_two_ranks_no_other_row_moves_and_the_step_is_that_of_one(tmp_path):
    pair, alone = in_pair(steps, tmp_path), steps(ALONE)
    assert [result["moved"] for result in (*pair, alone)] == [[], [], []]
    assert [len(result["positions"]) for result in pair] == [NUM // 2, NUM // 2]
    assert pair[0]["positions"] + pair[1]["positions"] == alone["positions"]
    assert torch.equal(pair[0]["weights"], pair[1]["weights"])
    assert torch.allclose(pair[0]["weights"], alone["weights"], atol=1e-6)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_through_attention_capture_finds_what_vmap_does(precision):
    capture, vmap = (steps(ALONE, precision, way) for way in ("capture", "vmap"))
    assert capture["moved"] == vmap["moved"] == []
    along = torch.nn.functional.cosine_similarity(capture["sum"], vmap["sum"], dim=0)
    assert along > (0.999999 if precision == "float32" else 0.995)
