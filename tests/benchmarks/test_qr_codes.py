"""A random QR code is put on a picture, can be read there, and is what the obfuscator learns to hide."""

import numpy as np
import pytest
import torch
from papers import qr_codes

from idpgan.errors import InputError
from idpgan.publish import make_obfuscator


def test_codes_can_be_read_and_change_nothing_else():
    images = torch.full((6, 3, 32, 32), 0.5)
    coded = qr_codes.with_codes(images, np.random.default_rng(1))
    changed = (coded != images).any(1)
    assert changed.flatten(1).sum(1).tolist() == [25 * 25] * 6  # 21 modules and an edge of 2
    assert len({tuple(place.nonzero()[0].tolist()) for place in changed}) > 1
    assert qr_codes.codes_read(coded) == 1.0
    assert qr_codes.codes_read(images) == 0.0


def test_towards_makes_all_images_look_like_those_without_the_secret():
    """The secret is a bright half; the obfuscator may darken it, and need not touch the others."""
    rng = torch.Generator().manual_seed(0)
    images, secret = 0.3 * torch.rand(96, 1, 8, 8, generator=rng), torch.arange(96) % 2
    images[secret == 1, :, :4] += 0.6
    method = make_obfuscator(
        "obfuscator", (1, 8, 8), num_utilities=2, num_identities=2, towards=0, width=2, steps=40, learning_rate=1e-2
    )
    method.fit(images, secret, secret)
    hidden = method.transform(images)
    bright = [float(part[:, :, :4].mean()) for part in (hidden[secret == 1], hidden[secret == 0])]
    assert bright[0] < 0.5  # 0.75 before
    assert bright[1] < 0.35
    with pytest.raises(InputError, match="towards = 2"):
        make_obfuscator("obfuscator", (1, 8, 8), num_utilities=2, num_identities=2, towards=2)
