"""A random QR code is put on a picture and can be read there; what learns to hide it: tests/publish/test_trained.py."""

import numpy as np
import torch
from papers import qr_codes


def test_codes_can_be_read_and_change_nothing_else():
    images = torch.full((6, 3, 32, 32), 0.5)
    coded = qr_codes.with_codes(images, np.random.default_rng(1))
    changed = (coded != images).any(1)
    assert changed.flatten(1).sum(1).tolist() == [25 * 25] * 6  # 21 modules and an edge of 2
    assert len({tuple(place.nonzero()[0].tolist()) for place in changed}) > 1
    assert qr_codes.codes_read(coded) == 1.0
    assert qr_codes.codes_read(images) == 0.0
