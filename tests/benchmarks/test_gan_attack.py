"""What either participant has when one attacks the other; the attack itself is `benchmarks/papers/gan_attack.py`."""

import pytest
import torch
from papers import gan_attack

from idpgan.data.config import DataConfig
from idpgan.data.images import to_unit
from idpgan.data.load import load


def test_the_adversary_has_no_digit_of_the_victim_and_the_silent_victim_no_digit_at_all():
    images = load(DataConfig(name="digits")).private
    dealt, own = gan_attack.two_participants(images, uploads=True)
    victim, adversary = dealt.labels[0::2], dealt.labels[1::2]
    assert victim.unique().tolist() == [0, 1, 2, 3, 4]
    assert adversary.unique().tolist() == [5, 6, 7, 8, 9, gan_attack.FAKE]
    assert len(victim) == len(adversary) > 500
    assert (dealt.labels[own] == gan_attack.FAKE).all()
    assert int((dealt.labels == gan_attack.FAKE).sum()) == len(own) == gan_attack.FAKES
    silent, _ = gan_attack.two_participants(images, uploads=False)
    assert silent.is_null.nonzero()[:, 0].tolist() == list(range(0, len(dealt), 2))
    assert torch.equal(silent.images[1::2], dealt.images[1::2])


def test_real_digits_are_judged_as_drawn_well_and_other_ones_are_not():
    images = load(DataConfig(name="digits")).private
    five = torch.stack([to_unit(images.images[images.labels == digit])[:60] for digit in range(5)], 1).flatten(0, 1)
    found = gan_attack.judged(five, images)
    assert found["drawn as their digit"] > 0.8
    assert (found["means as their digit"], found["correlation of the means"]) == (5, pytest.approx(1.0, abs=0.02))
    wrong = gan_attack.judged(five.roll(1, 0), images)
    assert wrong["drawn as their digit"] < 0.1
    assert wrong["means as their digit"] == 0
