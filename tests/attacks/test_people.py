"""Attacks on images of people: whom an interval speaks of."""

import pytest
import torch

from idpgan.attacks.attack import Attack, Knowledge, Membership, run_attack
from idpgan.data.images import Images


def images(people):
    pixels = torch.zeros(len(people), 1, 8, 8, dtype=torch.uint8)
    return Images(pixels, identities=torch.tensor(people))


def membership(members, others):
    return Membership(images(members), images(others), images([99]))


def guess():
    return Attack(
        "guess",
        "nothing",
        (),
        "none",
        lambda knowledge, judged, progress: torch.rand(len(judged), generator=torch.Generator().manual_seed(1)),
    )


def test_intervals_are_those_of_people_where_nobody_is_on_both_sides():
    people = torch.arange(12).repeat_interleave(10)
    result = run_attack(guess(), Knowledge(), membership((people).tolist(), (people + 50).tolist())).result
    alone = run_attack(guess(), Knowledge(), membership(list(range(120)), list(range(200, 320)))).result
    assert result.num_people == (12, 12)
    assert alone.num_people == (120, 120)


@pytest.mark.parametrize("others", [[1, 2, 3, 4], None])
def test_they_are_those_of_images_where_people_are_on_both_sides_or_unknown(others):
    members = images([1, 1, 2, 2])
    unknown = Images(members.images)
    found = Membership(members, unknown if others is None else images(others), members)
    assert found.people is None
    assert run_attack(guess(), Knowledge(), found).result.num_people is None
