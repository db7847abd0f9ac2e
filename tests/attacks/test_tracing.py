"""Tracing: members of exact sums are found, noise hides them, and a sum that they are not in says nothing."""

import pytest
import torch

from idpgan.attacks.evaluate import evaluate_scores
from idpgan.attacks.membership import trace
from idpgan.data.images import Images
from idpgan.errors import InputError
from idpgan.training.method import ReleasedSums

NUM = 80


def images(seed, num=NUM):
    rng = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (num, 1, 16, 16), generator=rng, dtype=torch.uint8)
    return Images(pixels, torch.arange(num) % 2, ("a", "b"))


def vectors(found):
    """Pixels around their middle, as long as 1 at most, with a number that counts."""
    flat = found.images.flatten(1).double() / 255 - 0.5
    return torch.cat([flat / 8, torch.full((len(flat), 1), 0.5, dtype=torch.float64)], 1), found.labels


def sums_of(found, noise_std):
    each, rows = vectors(found)
    total = torch.zeros(2, each.shape[1], dtype=torch.float64).index_add_(0, rows, each)
    rng = torch.Generator().manual_seed(9)
    return ReleasedSums(total + noise_std * torch.randn(total.shape, generator=rng).double(), noise_std, vectors)


MEMBERS, OTHERS, REFERENCE = images(1), images(2), images(3, 800)


def result(released, confidence=0.95):
    scores = [trace(part, released, REFERENCE) for part in (MEMBERS, OTHERS)]
    return evaluate_scores(*scores, confidence=confidence)


def test_members_of_an_exact_sum_are_traced_and_noise_hides_them():
    areas = [result(sums_of(MEMBERS, noise_std)).auc for noise_std in (1e-6, 20.0)]
    assert areas[0] > 0.85
    assert areas[1] < 0.7


def test_a_sum_of_others_says_nothing():
    low, high = result(sums_of(images(4), 1e-6), 0.9999).auc_interval
    assert low < 0.5 < high


def test_few_references_are_refused():
    with pytest.raises(InputError, match="20 are needed"):
        trace(MEMBERS, sums_of(MEMBERS, 0.1), REFERENCE.select(torch.arange(19)))
