"""Scores of people with several images each: intervals that hold, and what is refused."""

import numpy as np
import pytest
from scipy.stats import norm

from idpgan.attacks import evaluate_scores
from idpgan.attacks.clusters import People
from idpgan.errors import InputError


def scores(rng, people=40, images=8, shift=0.5, alike=0.9):
    """Return scores and people of members and non-members; images of one person correlate by ``alike``."""
    sides = []
    for offset, first in ((shift, 0), (0.0, 1_000_000)):
        person = np.repeat(np.arange(people), rng.integers(1, 2 * images, people))
        own = rng.normal(size=people)[person] * alike**0.5
        sides.append((own + rng.normal(size=len(person)) * (1 - alike) ** 0.5 + offset, person + first))
    num = min(len(found) for found, _ in sides)
    return [found[:num] for side in sides for found in side]


def covered(intervals, truth):
    return np.mean([low <= truth <= high for low, high in intervals])


def test_intervals_by_person_hold_and_those_by_image_do_not():
    rng = np.random.default_rng(5)
    by_person, by_image, accuracy, accuracy_by_image = [], [], [], []
    for _ in range(60):
        members, who, others, who_else = scores(rng)
        found = evaluate_scores(members, others, member_groups=who, non_member_groups=who_else)
        naive = evaluate_scores(members, others)
        assert found.auc == naive.auc
        assert found.num_people == (len(set(who)), len(set(who_else)))
        by_person.append(found.auc_interval)
        by_image.append(naive.auc_interval)
        for result, hits in ((found, accuracy), (naive, accuracy_by_image)):
            true = (norm.cdf(result.threshold) + norm.sf(result.threshold - 0.5)) / 2
            hits.append(result.accuracy_interval[0] <= true <= result.accuracy_interval[1])
    truth = norm.cdf(0.5 / 2**0.5)
    assert covered(by_person, truth) >= 0.9
    assert np.mean(accuracy) >= 0.9
    assert covered(by_image, truth) < 0.7  # the control: 8 alike images are not 8
    assert np.mean(accuracy_by_image) < 0.8


def test_true_positive_rate_by_person():
    rng = np.random.default_rng(6)
    truth, by_person, by_image = norm.sf(norm.isf(0.01) - 1), [], []
    for _ in range(24):
        members, who, others, who_else = scores(rng, people=120, shift=1.0)
        result = evaluate_scores(members, others, member_groups=who, non_member_groups=who_else)
        if result.tpr_intervals[0.01] is None:  # people were cut off with the longer side's images
            continue
        by_person.append(result.tpr_intervals[0.01])
        by_image.append(evaluate_scores(members, others).tpr_intervals[0.01])
    assert len(by_person) > 10
    assert covered(by_person, truth) >= 0.9
    assert np.mean(np.diff(by_person)) > 1.3 * np.mean(np.diff(by_image))


def test_one_image_a_person_is_as_without_people():
    rng = np.random.default_rng(7)
    members, others = rng.normal(0.5, 1, 400), rng.normal(0, 1, 400)
    found = evaluate_scores(members, others, member_groups=np.arange(400), non_member_groups=np.arange(400, 800))
    alone = evaluate_scores(members, others)
    assert found.threshold == alone.threshold
    assert found.accuracy == pytest.approx(alone.accuracy)
    for name in ("auc_interval", "accuracy_interval", "precision_interval"):
        np.testing.assert_allclose(getattr(found, name), getattr(alone, name), atol=0.02)
    assert found == evaluate_scores(
        members, others, member_groups=np.arange(400), non_member_groups=np.arange(400, 800)
    )  # equal scores, equal intervals


def test_perfect_attacks_are_as_sure_as_there_are_people():
    who = np.arange(100) // 20
    result = evaluate_scores(np.full(100, 2.0), np.zeros(100), member_groups=who, non_member_groups=who + 5)
    assert result.auc == result.accuracy == result.precision == 1.0
    assert result.auc_interval == pytest.approx((0.025 ** (1 / 5), 1.0))
    assert result.accuracy_interval[0] < 0.5  # four people judged
    assert evaluate_scores(np.full(100, 2.0), np.zeros(100)).accuracy_interval[0] > 0.95
    assert result.tpr_at_fpr[0.01] is None
    assert "5 people among the non-members, 100 needed" in result.notes[0]


def test_a_person_calibrates_or_is_judged_but_not_both():
    """Nobody differs, and a person's images are one: whoever calibrates by some and judges by others learns people."""
    rng = np.random.default_rng(8)
    who = np.repeat(np.arange(8), 6)
    by_person, by_image = [], []
    for _ in range(60):
        members, others = rng.normal(size=8)[who], rng.normal(size=8)[who]
        by_person.append(evaluate_scores(members, others, member_groups=who, non_member_groups=who + 8).accuracy)
        by_image.append(evaluate_scores(members, others).accuracy)
    assert abs(np.mean(by_person) - 0.5) < 0.06
    assert np.mean(by_image) > 0.6


def test_people_are_numbered_as_they_appear_and_drawn_with_replacement():
    people = People(np.array([9, 9, 4, 7, 4]), 0)
    assert people.person.tolist() == [0, 0, 1, 2, 1]
    assert (people.draws.sum(1) == 3).all()
    assert set(np.unique(people.draws)) == {0, 1, 2, 3}
    assert people.sums(np.arange(5.0))[:3].tolist() == (people.draws[:3] @ [1.0, 6.0, 3.0]).tolist()


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"member_groups": [1, 1, 2, 2]}, "one side only"),
        ({"member_groups": [1, 1, 2, 2], "non_member_groups": [3, 3, 2, 4]}, "1 people, the first number 2, are among"),
        ({"member_groups": [1, 1, 2], "non_member_groups": [3, 3, 4, 4]}, r"member_groups must be one whole number"),
        (
            {"member_groups": [1, 1, 2, 2.5], "non_member_groups": [3, 3, 4, 4]},
            "member_groups must be one whole number",
        ),
        ({"member_groups": [1, 1, 1, 1], "non_member_groups": [3, 3, 4, 4]}, "At least 2 people"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups, expected):
    with pytest.raises(InputError, match=expected):
        evaluate_scores([1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 2.0, 3.0], **groups)
