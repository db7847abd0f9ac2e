"""By group: who is served worse and who is missing is found, with intervals, and the reader's own error counts."""

import dataclasses

import numpy as np
import pytest
import torch

from idpgan.data.images import Images
from idpgan.data.load import Split
from idpgan.errors import InputError
from idpgan.metrics import evaluate_images, features
from idpgan.metrics.cache import Cache
from idpgan.metrics.evaluation import metric_tables
from idpgan.metrics.groups import Grouped, Measured, corrected, judged_groups, measured

NAMES = ("dark", "light")


def pictures(num, seed, light=0.5, noisy=0.0):
    """Return images whose class is the half that is bright, and whose group is how bright the other half is.

    Of a share ``noisy`` of the light ones the class is drawn anew, so that nobody can learn it from them.
    """
    draw = torch.Generator().manual_seed(seed)
    labels, group = (torch.rand(num, generator=draw) < 0.5).long(), (torch.rand(num, generator=draw) < light).long()
    pixels = 60.0 + 60.0 * group[:, None, None, None] + torch.zeros(num, 1, 8, 8)
    for side in (0, 1):
        pixels[labels == side, :, :, 4 * side : 4 * side + 4] += 100
    pixels += 10 * torch.randn(pixels.shape, generator=draw)
    anew = (group == 1) & (torch.rand(num, generator=draw) < noisy)
    labels = torch.where(anew, (torch.rand(num, generator=draw) < 0.5).long(), labels)
    return Images(pixels.clamp(0, 255).byte(), labels, ("left", "right")), group


def by_group(images, group):
    return dataclasses.replace(images, labels=group, classes=NAMES)


@pytest.fixture
def few_epochs(monkeypatch):
    monkeypatch.setattr(features, "MIN_STEPS_PER_EPOCH", 1)
    recipe = features.RECIPES["cnn"]
    monkeypatch.setitem(features.RECIPES, "cnn", recipe.model_copy(update={"epochs": 3}))


@pytest.fixture
def real():
    """A data set of 600 images, and the same with its groups as classes."""
    (private, groups), (test, test_groups) = pictures(400, 1), pictures(200, 2)
    none = private.select(torch.arange(0))
    split = Split(none, private, none, test)
    return split, Split(*(by_group(none, none.labels),), by_group(private, groups), by_group(none, none.labels),
                        by_group(test, test_groups))  # fmt: skip


def evaluated(images, real, folder):
    options = {"metrics": [], "num_seeds": 1, "by": ("tone", real[1]), "cache": Cache(folder)}
    found = evaluate_images(images, real[0], **options)
    return found, {group.value: group for group in found.results["groups"].groups}


@pytest.mark.usefixtures("few_epochs")
def test_a_group_that_is_missing_and_served_worse_is_found(real, tmp_path):
    """One in ten images under test is light, and half of these teach nothing; a fair set is the negative control."""
    fair_images, fair_groups = pictures(400, 4)
    found, groups = evaluated(pictures(400, 3, light=0.1, noisy=1.0)[0], real, tmp_path)
    _, fair = evaluated(fair_images, real, tmp_path)
    light, dark = groups["light"], groups["dark"]
    assert light.share.interval[1] < light.real_share.interval[0]
    assert light.share.interval[0] <= 0.1 <= light.share.interval[1]
    assert light.coverage.interval[1] < dark.coverage.interval[0]
    low, high = fair["light"].share.interval
    assert low < float(fair_groups.double().mean()) < high
    assert low < fair["light"].real_share.interval[1]
    assert abs(fair["light"].coverage.value - fair["dark"].coverage.value) < 0.15
    for each in (*groups.values(), *fair.values()):
        for name in ("real_share", "accuracy", "coverage", "read", "found", "mistaken", "share"):
            share = getattr(each, name)
            assert 0 <= share.interval[0] <= share.value <= share.interval[1] <= 1
    said = str(found)
    assert "never in release/" in said
    assert "reader wrong" in said
    table = next(table for table in metric_tables(found.to_json()) if table.caption.startswith("By tone"))
    assert [row[0].split()[0] for row in table.rows] == list(NAMES)
    assert "Edwards and Storkey" in table.lines[-1]


def test_a_wrong_reading_is_corrected_and_a_blind_one_says_nothing():
    """Of 1,000 images 20 % are of the group; the reader finds 70 % of it, and takes 10 % of the others for it."""
    rng = np.random.default_rng(1)

    def share(chance, num=1000):
        return measured((rng.random(num) < chance).astype(float), np.arange(num))

    read, found, mistaken = share(0.2 * 0.7 + 0.8 * 0.1), share(0.7), share(0.1)
    right = corrected(read, found, mistaken)
    assert right.interval[0] < 0.2 < right.interval[1] < 0.3
    # Must be rejected: the reading as it is, of a reader that errs more.
    wrong = share(0.2 * 0.7 + 0.8 * 0.3)
    assert not wrong.interval[0] < 0.2 < wrong.interval[1]
    assert corrected(read, share(0.5), share(0.5)).interval == (0.0, 1.0)
    assert corrected(read, found, None) is None
    assert corrected(Measured(0.05, (0.04, 0.06)), found, mistaken).value == 0.0


def test_images_are_joined_by_position_and_blanks_are_left_out():
    images, group = pictures(6, 5)
    missing = dataclasses.replace(images, null=torch.tensor([True, False, False, False, False, False]))
    blank = by_group(images, group)
    blank = dataclasses.replace(blank, null=torch.tensor([False, True, False, False, False, False]))
    grouped = Grouped.of("tone", missing, blank)
    assert (len(grouped.images), grouped.unknown) == (4, 1)
    assert torch.equal(grouped.images.images, images.images[2:])
    assert torch.equal(grouped.group, group[2:])
    with pytest.raises(InputError, match="does not give each image"):
        Grouped.of("tone", images.select(torch.arange(5)), blank)
    with pytest.raises(InputError, match="no image that judges has a value"):
        Grouped.of("tone", images, dataclasses.replace(blank, null=torch.ones(6, dtype=torch.bool)))


def test_a_released_classifier_is_judged_by_group():
    """It is right about dark images alone, and calls light ones left."""

    class OfDarkOnes:
        def logits(self, images):
            halves = images.double().mean((1, 2)).unflatten(1, (2, 4)).mean(2)  # (n, 2)
            return torch.where(images.double().mean((1, 2, 3))[:, None] > 140, torch.tensor([1.0, 0.0]), halves)

    images, group = pictures(200, 6)
    found = judged_groups(OfDarkOnes(), Grouped.of("tone", images, by_group(images, group)))
    dark, light = found.groups
    assert dark.accuracy.value == 1.0
    assert light.accuracy.interval[0] < 0.5 < light.accuracy.interval[1] < dark.accuracy.interval[0]
    assert light.coverage is light.share is None


def test_images_of_one_person_stand_or_fall_together():
    hits, people = np.repeat([0.0, 1.0, 1.0, 0.0, 1.0, 1.0], 50), np.repeat(np.arange(6), 50)
    alone = measured(hits, np.arange(300))
    together = measured(hits, people)
    assert together.value == alone.value == pytest.approx(2 / 3)
    assert together.interval[1] - together.interval[0] > 3 * (alone.interval[1] - alone.interval[0])


def test_decisions_that_follow_the_group_are_told_from_fair_ones():
    """What is decided is the class, or the group: both are right about as often as the class follows the group."""
    images, group = pictures(400, 7)
    grouped = Grouped.of("tone", images, by_group(images, group))
    labels = images.labels.numpy()
    fair, unfair = (
        grouped.result(400, (decided == labels).astype(float), lambda *_: {}).fairness
        for decided in (labels, group.numpy())
    )
    assert fair.accuracy == 1.0
    assert fair.discrimination < 0.15  # the classes of the groups differ by chance alone
    assert unfair.discrimination == 1.0
    three = dataclasses.replace(images, classes=("a", "b", "c"))
    assert Grouped.of("tone", three, by_group(images, group)).result(400, labels * 1.0, lambda *_: {}).fairness is None
