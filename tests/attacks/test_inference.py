"""The static and the adaptive attacker on toys whose answer is known."""

import pytest
import torch
from papers.splits import person_disjoint, picture_disjoint

from idpgan.attacks.inference import train_attacker
from idpgan.errors import InputError


def toys(num, seed, people=4):
    """Images that a person's own pattern is on, and whose they are."""
    rng, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(7)
    patterns = torch.rand(people, 1, 16, 16, generator=fixed)
    who = torch.arange(num) % people
    images = 0.2 + 0.6 * patterns[who] + 0.05 * torch.randn(num, 1, 16, 16, generator=rng)
    return images.clamp(0, 1), who


@pytest.mark.trained
def test_the_adaptive_attacker_beats_the_static_one_where_images_are_turned_inside_out():
    known, asked = toys(80, 1), toys(80, 2)
    hidden = (1 - known[0], known[1])
    static = train_attacker([known], epochs=16)
    adaptive = train_attacker([known, hidden], epochs=16)
    assert static.infer(*asked).accuracy > 0.95
    assert static.infer(1 - asked[0], asked[1]).accuracy < 0.5
    found = adaptive.infer(1 - asked[0], asked[1])
    assert found.accuracy > 0.95
    assert found.low <= found.accuracy <= found.high
    assert (found.chance, found.num_labels, found.num_test) == (0.25, 4, 80)


@pytest.mark.trained
def test_what_says_nothing_is_told_at_chance():
    rng = torch.Generator().manual_seed(3)
    (known, who), (asked, truth) = toys(160, 1), toys(1000, 2)
    noise = torch.rand(len(known), 1, 16, 16, generator=rng), torch.rand(len(asked), 1, 16, 16, generator=rng)
    found = train_attacker([(known, who), (noise[0], who)], epochs=4).infer(noise[1], truth, confidence=1 - 1e-8)
    assert abs(found.accuracy - 0.25) < 0.08
    assert found.low < 0.25
    assert found.high > 0.25


@pytest.mark.trained
def test_intervals_of_people_are_wider():
    """An attacker who knows two people of four, and is wrong of the others: their images are no independent trials."""
    asked, people = toys(200, 2)
    truth = torch.where(people < 2, people, (people + 1) % 4)
    attacker = train_attacker([toys(160, 1)], epochs=16)
    alone, by_person = attacker.infer(asked, truth), attacker.infer(asked, truth, people=people)
    assert by_person.accuracy == alone.accuracy
    assert abs(alone.accuracy - 0.5) < 0.2
    assert by_person.high - by_person.low > alone.high - alone.low


@pytest.mark.parametrize("share", [0.1, 0.5, 0.75, 0.9])
def test_splits_are_disjoint_by_picture_and_by_person(share):
    rng = torch.Generator().manual_seed(5)
    identities = torch.randint(20, (300,), generator=rng) * 3
    first, second = picture_disjoint(identities, share)
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(300))
    assert set(identities[first].tolist()) == set(identities[second].tolist())
    assert abs(len(first) / 300 - share) < 0.06
    first, second = person_disjoint(identities, share)
    assert sorted([*first.tolist(), *second.tolist()]) == list(range(300))
    assert set(identities[first].tolist()).isdisjoint(identities[second].tolist())
    assert len(identities[first].unique()) == max(1, round(20 * share))


def test_what_cannot_be_attacked_is_refused():
    images, who = toys(8, 1)
    with pytest.raises(InputError, match="nothing to tell apart"):
        train_attacker([(images, torch.zeros(8, dtype=torch.int64))])
    with pytest.raises(InputError, match="clip a release first"):
        train_attacker([(images * 3, who)])
    with pytest.raises(InputError, match="has one picture"):
        picture_disjoint(torch.tensor([1, 1, 2]))
    with pytest.raises(InputError, match="share = 1"):
        person_disjoint(who, 1.0)
