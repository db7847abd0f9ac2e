"""By group: who is served worse is found, with intervals in which images of one person stand or fall together."""

import numpy as np
import pytest
import torch

from idpgan.data.images import Images
from idpgan.metrics.predictions import Judges, check_fairlearn, measure_groups, table

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries


@pytest.fixture(autouse=True, scope="module")
def fairlearn():
    pytest.importorskip("fairlearn", reason="the extra idpgan[fairness] is not installed")
    check_fairlearn()


def judges(labels, groups, people=None):
    pixels = torch.arange(len(labels) * 64).view(-1, 1, 8, 8).remainder(251).byte()
    pixels[:, 0, 0, 0], pixels[:, 0, 0, 1] = torch.arange(len(labels)) // 256, torch.arange(len(labels)) % 256
    images = Images(pixels, torch.tensor(labels), ("left", "right"), people)
    return Judges(images, list(range(len(labels))), [], list(groups))


def test_a_group_that_is_served_worse_is_found():
    """All is right about the dark ones, and left is said of the light ones; blanks are left out."""
    labels, groups = [0, 1] * 100, ["dark", "dark", "light", "light", ""] * 40
    said = torch.tensor([0 if group == "light" else label for label, group in zip(labels, groups, strict=True)])
    found = measure_groups("tone", judges(labels, groups), said)
    dark, light = found.groups["dark"], found.groups["light"]
    assert (dark["num_real"], dark["accuracy"], found.unknown) == (80, 1.0, 40)
    assert light["interval"][0] < light["accuracy"] == 0.5 < light["interval"][1] < dark["interval"][0]
    assert found.discrimination == 0.5
    shown = table({"by_group": found.to_json(), "part": "test"})
    assert [row[0] for row in shown.rows] == ["dark", "light"]
    assert "40 images" in shown.lines[0]
    assert "50.0% apart" in shown.lines[1]


def test_decisions_that_follow_the_group_are_told_from_fair_ones():
    labels, groups = [0, 1, 1, 0] * 50, ["a", "a", "b", "b"] * 50
    case = judges(labels, groups)
    assert measure_groups("side", case, torch.tensor(labels)).discrimination == 0.0
    assert measure_groups("side", case, torch.tensor([group == "b" for group in groups]).long()).discrimination == 1.0


def test_images_of_one_person_stand_or_fall_together():
    right = np.repeat([0, 1, 1, 0, 1, 1], 50)
    alone, together = (
        measure_groups("side", judges([1] * 600, ["a"] * 300 + ["b"] * 300, people), torch.tensor([*right, *right]))
        for people in (None, torch.arange(12).repeat_interleave(50))
    )
    (low, high), (lower, higher) = alone.groups["a"]["interval"], together.groups["a"]["interval"]
    assert alone.groups["a"]["accuracy"] == together.groups["a"]["accuracy"] == pytest.approx(2 / 3)
    assert higher - lower > 3 * (high - low)
