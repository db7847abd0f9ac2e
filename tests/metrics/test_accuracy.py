"""The interval of an accuracy: exact for independent images, and right where images stand or fall together."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from idpgan.data.images import Images
from idpgan.metrics.accuracy import measure_accuracy, share_interval
from idpgan.models.private_classifier import PrivateClassifier


def test_independent_answers_get_clopper_and_pearsons_interval():
    for hits in (0, 1, 37, 50):
        right = np.arange(50) < hits
        expected = binomtest(hits, 50).proportion_ci(0.95)
        assert share_interval(right.astype(float), np.arange(50)) == pytest.approx(tuple(expected))


def test_answers_about_one_person_are_no_independent_draws():
    """40 people with 15 images each, easy or hard for all of them: it covers the truth, the naive one does not."""
    rng, covered, naive = np.random.default_rng(0), 0, 0
    people = np.repeat(np.arange(40), 15)
    for _ in range(200):
        right = (rng.random(600) < rng.choice([0.5, 0.95], 40)[people]).astype(float)
        low, high = share_interval(right, people)
        covered += low <= 0.725 <= high
        low, high = share_interval(right, np.arange(600))
        naive += low <= 0.725 <= high
    assert covered >= 184  # 190 are expected, with a standard deviation of 3
    assert naive <= 150


class _Halves(PrivateClassifier):
    """Says class 1 where the first pixel is bright."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.image_shape, self.classes = (1, 2, 2), ("dark", "bright")

    def logits(self, images):
        bright = (images[:, 0, 0, 0] > 127).float()
        return torch.stack([1 - bright, bright], 1)


def test_equal_images_are_one_draw_and_people_are_where_they_are_known():
    pixels = torch.arange(40, dtype=torch.uint8).mul(6).view(40, 1, 1, 1).repeat(1, 1, 2, 2)
    labels = (torch.arange(40) % 5 > 0).long() * (pixels[:, 0, 0, 0] > 127).long()  # some are wrong
    once = Images(pixels, labels, ("dark", "bright"))
    often = once.select(torch.arange(40).repeat_interleave(10))
    people = Images(often.images, often.labels, often.classes, identities=torch.arange(40).repeat_interleave(10))
    alone, copied, named = (measure_accuracy(_Halves(), images) for images in (once, often, people))
    assert alone.mean == copied.mean < 1
    assert copied.independent == named.independent == alone.independent == 40
    assert copied.interval == named.interval == pytest.approx(alone.interval, abs=0.02)
