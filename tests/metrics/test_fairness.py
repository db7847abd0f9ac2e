"""Fairness of decisions, by hand."""

import pytest
import torch

from idpgan.errors import InputError
from idpgan.metrics.accuracy import measure_fairness


def test_discrimination_is_the_difference_of_the_groups_rates():
    groups = torch.tensor([0] * 4 + [1] * 5)
    decided = torch.tensor([1, 0, 0, 0, 1, 1, 1, 0, 0])  # 1/4 and 3/5
    truth = torch.tensor([1, 1, 0, 0, 1, 1, 1, 0, 0])  # one is wrong
    found = measure_fairness(decided, truth, groups)
    assert found.discrimination == pytest.approx(0.35)
    assert found.accuracy == pytest.approx(8 / 9)
    assert found.delta == pytest.approx(8 / 9 - 0.35)
    assert measure_fairness(decided, truth, 1 - groups).discrimination == found.discrimination


def test_one_answer_for_all_is_fair_and_right_by_chance():
    groups, truth = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    assert measure_fairness(torch.ones_like(truth), truth, groups).to_json() == {
        "accuracy": 0.5,
        "discrimination": 0.0,
        "delta": 0.5,
    }


@pytest.mark.parametrize(
    ("decided", "groups", "said"),
    [
        (torch.tensor([0, 1]), torch.tensor([1, 1]), "one group only"),
        (torch.tensor([0, 2]), torch.tensor([0, 1]), "decided must hold 0 and 1, found 0 to 2"),
        (torch.tensor([0.0, 1.0]), torch.tensor([0, 1]), "must be int64"),
        (torch.tensor([0]), torch.tensor([0, 1]), "must be int64"),
    ],
)
def test_what_cannot_be_compared_is_refused(decided, groups, said):
    with pytest.raises(InputError, match=said):
        measure_fairness(decided, torch.tensor([0, 1]), groups)
