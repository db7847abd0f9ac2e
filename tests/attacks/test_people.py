"""Attacks on images of people: whom an interval speaks of."""

import pytest
import torch

from idpgan.attacks.knowledge import Attack, Knowledge, people_of
from idpgan.attacks.run import attack
from idpgan.data.images import Images


def images(people):
    pixels = torch.zeros(len(people), 1, 8, 8, dtype=torch.uint8)
    return Images(pixels, identities=torch.tensor(list(people)))


def guess():
    return Attack(
        "guess",
        "nothing",
        (),
        "none",
        lambda judged, seed, progress: torch.rand(len(judged), generator=torch.Generator().manual_seed(1)),
    )


def guessed(members, others):
    """What one attack that knows nothing has found."""
    return attack(members, others, Knowledge(), [guess()]).outcomes[0].result


def test_intervals_are_those_of_people_where_nobody_is_on_both_sides():
    people = torch.arange(12).repeat_interleave(10)
    result = guessed(images(people.tolist()), images((people + 50).tolist()))
    alone = guessed(images(range(120)), images(range(200, 320)))
    assert result.num_people == (12, 12)
    assert alone.num_people == (120, 120)


@pytest.mark.parametrize("others", [[1, 2, 3, 4], None])
def test_they_are_those_of_images_where_people_are_on_both_sides_or_unknown(others):
    members = images([1, 1, 2, 2])
    unknown = Images(members.images)
    sides = members, unknown if others is None else images(others)
    assert people_of(*sides) is None
    assert guessed(*sides).num_people is None
