"""What either participant has when one attacks the other; the attack itself is `benchmarks/papers/gan_attack.py`."""

import torch
from papers import gan_attack

from idpgan.data.config import DataConfig
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
